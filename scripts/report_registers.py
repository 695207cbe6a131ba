"""Registers, spills and shared memory of every kernel of pallas_kernels, compiled for an H200 on a machine without a GPU.

    python3.11 -m venv aot && aot/bin/pip install jax==0.10.2 flax optax     # an environment of its own: the plugin
    aot/bin/pip install --no-deps jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2 nvidia-cuda-nvcc   # would be seen
    PYTHONPATH=. aot/bin/python scripts/report_registers.py                  # all that tests/.../lower_for_cuda.py lists
    PYTHONPATH=. aot/bin/python scripts/report_registers.py mlp              # those with "mlp" in their name

Prints a line a launch: threads of a block, registers of a thread, bytes of a thread that spill, shared memory of a
block in KiB. Exits with status 1 if a kernel spills. Works with JAX 0.10.2 and 0.11.2; take the version that
will run, since each brings its own Triton. The assembler is the wheel's, newer than the one inside the plugin: counts
near a limit are indicative. Of the kernels for Hopper's warpgroups the plugin's own assembler reports registers and
spills; their registers are what a thread begins with, before warpgroups exchange them.
"""

import argparse
import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  l2_cache_size: 52428800 memory_bandwidth: 4800000000000 device_memory_size: 151397597184
  cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H200"
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """What the compilers made of one launch; spilled counts bytes stored to and loaded from local memory."""

    name: str
    registers: int
    spilled: int
    threads: int | None = None  # unknown of Mosaic's
    shared_bytes: int | None = None

    def __str__(self) -> str:
        """As it is printed."""
        threads = "" if self.threads is None else f"{self.threads:4} threads"
        shared = "" if self.shared_bytes is None else f"{self.shared_bytes / 1024:6.1f} KiB shared"
        return f"{self.name:28} {threads:12} {self.registers:4} registers {self.spilled:6} bytes spilled {shared}"


def main() -> None:
    """Compile every kernel whose name contains one of the words, or every kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of the kernels' names")
    parser.add_argument("--ptxas", type=Path, help="assembler; that of the wheel nvidia-cuda-nvcc unless given")
    options = parser.parse_args()
    ptxas = options.ptxas or find_ptxas()
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder)
        os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # the plugin looks for cuDNN, which compiling does not need
        flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_dump_emitter_re=ptx"  # the last for JAX 0.11's PTX
        os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"
        os.environ["MOSAIC_GPU_DUMP_PTXAS"] = "1"  # its assembler's report, on the standard output
        sharding = abstract_gpu()  # imports JAX, which reads all three
        spilling = report(sharding, options.words, dump, ptxas)
    sys.exit(1 if spilling else 0)


def find_ptxas() -> Path:
    """The assembler of the wheel nvidia-cuda-nvcc, or the one on the path."""
    found = [path for root in sys.path for path in Path(root).glob("nvidia/cu*/bin/ptxas")]
    on_path = shutil.which("ptxas")
    if not found and on_path is None:
        raise SystemExit("no ptxas: pip install nvidia-cuda-nvcc, or give --ptxas PATH")
    return found[0] if found else Path(str(on_path))


def abstract_gpu() -> Any:
    """A sharding on one H200 that need not exist."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    try:
        device = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=TARGET)
    except Exception as error:
        raise SystemExit(f"JAX cannot compile for CUDA here ({error}); see this script's first lines") from error
    mesh = topologies.make_mesh(device, (1,), ("x",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def report(sharding: Any, words: list[str], dump: Path, ptxas: Path) -> bool:
    """Print the launches of the chosen kernels; whether any spills."""
    import jax

    from pallas_kernels import backend
    from tests.pallas_kernels.lower_for_cuda import abstract_h200, hoppers, kernels

    spilling = False
    for capability, chosen in ((8.0, kernels()), (9.0, hoppers())):
        backend.capability = lambda capability=capability: capability  # type: ignore[misc]
        for name, function, arguments in chosen:
            if words and not any(word in name for word in words):
                continue
            shapes = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, jax.numpy.result_type(x), sharding=sharding), arguments
            )
            for file in filter(Path.is_file, dump.iterdir()):
                file.unlink()
            with abstract_h200():
                lowered = jax.jit(function).trace(*shapes).lower()
            ours = set(re.findall(r'name = "(\w+)", num_stages', lowered.as_text()))
            with standard_output() as printed:
                lowered.compile()
            found = [*launches(dump, ours, ptxas), *mosaic_launches(printed)]
            if not found:
                raise SystemExit(f"JAX {jax.__version__} wrote no PTX of {', '.join(ours)}; use another version of it")
            for launch in found:
                spilling |= launch.spilled > 0
                print(f"{name:48} {launch}", flush=True)
    return spilling


@contextlib.contextmanager
def standard_output() -> Iterator[list[str]]:
    """Collects what anything in this process writes there, compilers too, as one text when the block ends."""
    printed: list[str] = []
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            yield printed
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            printed.append(file.read().decode())


def mosaic_launches(printed: list[str]) -> Iterator[Launch]:
    """The kernels whose assembler's report is in a text."""
    for part in re.split(r"Compiling entry function ", "".join(printed))[1:]:
        name = part.split("'")[1].removesuffix("_mosaic_gpu_kernel")
        (registers,) = re.findall(r"Used (\d+) registers", part)
        yield Launch(name=name, registers=int(registers), spilled=sum(map(int, re.findall(r"(\d+) bytes spill", part))))


def launches(dump: Path, ours: set[str], ptxas: Path) -> Iterator[Launch]:
    """The kernels of those names in the module that was dumped last; the others are XLA's own."""
    listed = "".join(file.read_text() for file in dump.glob("*.thunk_sequence.txt"))
    pattern = r"kCustomKernel .*\] (\S+) grid: .* threads: \[(\d+), .*shared_memory: (\d+) bytes"
    sizes = {name: (int(threads), int(shared)) for name, threads, shared in re.findall(pattern, listed)}
    for file in sorted(dump.glob("*.ptx")):
        if not any(f".entry {name}(" in file.read_text() for name in ours):
            continue
        run = subprocess.run(
            [ptxas, "-v", "-arch=sm_90a", file, "-o", "/dev/null"], capture_output=True, text=True, check=True
        )
        for part in re.split(r"Compiling entry function ", run.stderr)[1:]:
            name = part.split("'")[1]
            if name not in ours:
                continue
            (registers,) = re.findall(r"Used (\d+) registers", part)
            spilled = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
            threads, shared = sizes[name]
            yield Launch(name=name, threads=threads, registers=int(registers), spilled=spilled, shared_bytes=shared)


if __name__ == "__main__":
    main()
