"""Time of the fused dueling TD loss beside XLA's value_and_grad of the plain formula, on one GPU.

    python scripts/benchmark_dueling.py --out dueling.json           # the table of docs/kernels.md, about a minute
    python scripts/benchmark_dueling.py --tiles --out tiles.json     # the tile sizes choose_tiles picks from

Both sides give the loss, td_error and every gradient. "kernels" is the sum of kernel durations in a profiler trace,
microseconds a call; "scan" is wall time a call inside a lax.scan whose calls depend on each other, with the scan's
own small launches. "error" is the worst entry of any result against IEEE float32, relative to its array's largest.
Prints a line a case and writes all of it as JSON.
"""

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels as pk
from pallas_kernels import dueling_td, td_pass
from pallas_kernels.backend import Backend

ACTIONS = (11, 45)
BATCHES = (256, 4096, 65536)
HIDDEN = 128
TRACED_CALLS, SCANNED_CALLS, SCAN_REPEATS = 20, 50, 7
TILES = tuple(
    td_pass.Tiles(rows=rows, blocks=blocks, warps=warps)
    for rows, blocks, warps in ((16, 264, 4), (32, 264, 4), (64, 264, 4), (32, 528, 4), (16, 528, 2), (64, 132, 8))
)


def main() -> None:
    """Run every case of the table, or every tile size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("dueling.json"), help="JSON file to write")
    parser.add_argument("--tiles", action="store_true", help="sweep tile sizes instead of comparing with XLA")
    options = parser.parse_args()
    device = jax.devices()[0]
    if device.platform != "gpu":
        raise SystemExit("this benchmark needs an NVIDIA GPU; JAX sees only " + device.platform)
    compare_case = tiles_of if options.tiles else compare
    cases = [compare_case(*case) for case in ((a, b, one) for one in (True, False) for a in ACTIONS for b in BATCHES)]
    record = {"device": device.device_kind, "jax": jax.__version__, "hidden": HIDDEN, "cases": cases}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


def compare(actions: int, batch: int, one_array: bool) -> dict[str, Any]:
    """One line of the table: XLA in TF32 and IEEE, and the kernels."""
    arguments = sample(actions, batch, one_array)
    case: dict[str, Any] = {"actions": actions, "batch": batch, "hidden_arrays": 1 if one_array else 2}
    with jax.default_matmul_precision("highest"):
        expected = measure(case, "xla_ieee", gradients("xla"), arguments)
    tf32 = measure(case, "xla_tf32", gradients("xla"), arguments)
    ours = measure(case, "pallas", gradients("pallas"), arguments)
    case["xla_tf32"]["error"], case["pallas"]["error"] = worst(tf32, expected), worst(ours, expected)
    fastest = min(case["xla_ieee"]["kernels"], case["xla_tf32"]["kernels"])
    case["speedup"] = fastest / case["pallas"]["kernels"]
    print(
        f"A={actions} B={batch} hidden arrays {case['hidden_arrays']}: kernels "
        + ", ".join(f"{name} {case[name]['kernels']:.1f}" for name in ("xla_tf32", "xla_ieee", "pallas"))
        + f" us; {case['speedup']:.2f} times; scan "
        + ", ".join(f"{case[name]['scan']:.1f}" for name in ("xla_tf32", "xla_ieee", "pallas"))
        + f" us; error {case['pallas']['error']:.0e}; temporary {case['pallas']['temporary_mib']:.1f} MiB",
        flush=True,
    )
    return case


def tiles_of(actions: int, batch: int, one_array: bool) -> dict[str, Any]:
    """Kernel time of every tile size at one shape."""
    arguments = sample(actions, batch, one_array)
    case: dict[str, Any] = {"actions": actions, "batch": batch, "hidden_arrays": 1 if one_array else 2}
    chosen = dueling_td.choose_tiles
    for tiles in TILES:
        dueling_td.choose_tiles = lambda *_, tiles=tiles: tiles
        name = f"rows {tiles.rows} blocks {tiles.blocks} warps {tiles.warps}"
        kernels, _ = kernel_times(jax.jit(gradients("pallas")).lower(*arguments).compile(), arguments)
        case[name] = kernels
    dueling_td.choose_tiles = chosen
    print(case, flush=True)
    return case


def sample(actions: int, batch: int, one_array: bool) -> tuple[Any, ...]:
    """Random params, hidden rows, target params, target rows, and the four vectors."""
    random = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(scale * random.normal(size=shape), jnp.float32)

    def heads() -> dict[str, jax.Array]:
        scale = HIDDEN**-0.5
        w_v, w_a = normal(HIDDEN, scale=scale), normal(HIDDEN, actions, scale=scale)
        return {"w_v": w_v, "b_v": normal(), "w_a": w_a, "b_a": normal(actions)}

    def rows() -> tuple[jax.Array, ...]:
        return tuple(normal(batch, HIDDEN) for _ in range(1 if one_array else 2))

    taken = jnp.asarray(random.integers(0, actions, size=batch), jnp.int32)
    discounts = jnp.asarray(0.99 ** random.integers(1, 6, size=batch), jnp.float32)
    weights = jnp.asarray(random.uniform(0.5, 1.5, size=batch), jnp.float32)
    return heads(), rows(), heads(), rows(), taken, normal(batch), discounts, weights


def gradients(backend: Backend) -> Callable[..., Any]:
    """((loss, td_error), gradients at the params and at each hidden array)."""

    def loss(params: Any, h: Any, target_params: Any, th: Any, taken: Any, rewards: Any, discounts: Any, w: Any) -> Any:
        hidden = (h[0], h[-1], th[0], th[-1])
        return pk.dueling_q_td_loss(
            params, target_params, *hidden, taken, rewards, discounts, weights=w, backend=backend
        )

    return jax.value_and_grad(loss, (0, 1), has_aux=True)


def measure(case: dict[str, Any], name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Record both times and the temporary memory of a function under the name; return its result."""
    compiled = jax.jit(function).lower(*arguments).compile()
    kernels, launches = kernel_times(compiled, arguments)
    memory: Any = compiled.memory_analysis()
    case[name] = {
        "kernels": kernels,
        "launches": launches,
        "scan": scan_time(function, arguments),
        "temporary_mib": memory.temp_size_in_bytes / 2**20,
    }
    return compiled(*arguments)


def kernel_times(compiled: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, float]:
    """Microseconds of kernels and number of launches a call, from a profiler trace of its GPU streams."""
    for _ in range(2):
        jax.block_until_ready(compiled(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(TRACED_CALLS):
                out = compiled(*arguments)
            jax.block_until_ready(out)
        (trace,) = Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(trace))
    planes = [plane for plane in profile.planes if plane.name.startswith("/device:GPU")]
    events = [event for plane in planes for line in plane.lines if "Stream" in line.name for event in line.events]
    return sum(event.duration_ns for event in events) / 1e3 / TRACED_CALLS, len(events) / TRACED_CALLS


def scan_time(function: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """Median microseconds a call inside a scan: each call's params depend on the last, and every result is carried.

    Carried, because a barrier alone lets XLA drop what nobody reads: then it forms no gradient at the hidden rows.
    """
    params, h, target_params, *rest = arguments

    @jax.jit
    def many(params: Any, target_params: Any, results: Any) -> Any:
        def body(results: Any, _: None) -> tuple[Any, None]:
            loss = results[0][0]
            nudged = jax.tree.map(lambda x: x * (1.0 + 1e-20 * loss), (params, target_params))
            return function(nudged[0], h, nudged[1], *rest), None

        return jax.lax.scan(body, results, length=SCANNED_CALLS)[0]

    run = functools.partial(many, params, target_params, jax.jit(function)(*arguments))
    jax.block_until_ready(run())
    times = []
    for _ in range(SCAN_REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return float(np.median(times)) / SCANNED_CALLS * 1e6


def worst(actual: Any, expected: Any) -> float:
    """Largest difference of any entry, relative to its array's largest."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return max(float(jnp.max(jnp.abs(x - y)) / jnp.max(jnp.abs(y))) for x, y in pairs)


if __name__ == "__main__":
    main()
