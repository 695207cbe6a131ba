"""Compiles and times functions on the device: what scripts/benchmark.py does with each of its programs."""

import concurrent.futures
import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

World = dict[str, Any]  # what the programs of one N take and give, by name


def everything(results: Any) -> Any:
    """The results themselves."""
    return results


@dataclasses.dataclass(kw_only=True)
class Program:
    """A function to compile and time: what it takes of the world, what becomes of its results, what was measured."""

    name: str
    lanes: int  # N; 0 for the ceilings
    dtype: str | None  # of its matrix products, where it has any
    function: Callable[..., Any]
    inputs: Callable[[World], tuple[Any, ...]]
    flop: float = 0.0
    keep: str | None = None  # name of its results in the world
    kept: Callable[[Any], Any] = everything  # what of them
    is_timed: bool = True
    future: Any = None  # of (compiled, seconds)
    compiled: Any = None
    measured: dict[str, Any] = dataclasses.field(default_factory=dict)


def compile_all(group: list[Program], world: World, pool: concurrent.futures.Executor) -> None:
    """Trace every program here, on shapes alone, and have each compiled in a thread of its own."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), world)
    for program in group:
        try:
            begin = time.perf_counter()
            traced = jax.jit(program.function).trace(*program.inputs(shapes))
            if program.keep:
                shapes[program.keep] = traced.out_info
            lowered = traced.lower()
            program.measured["trace_s"] = time.perf_counter() - begin
            program.future = pool.submit(timed_compile, lowered)
        except Exception as error:
            fail(program, error)


def timed_compile(lowered: Any) -> tuple[Any, float]:
    """The compiled program and the seconds it took."""
    begin = time.perf_counter()
    return lowered.compile(), time.perf_counter() - begin


def run_group(group: list[Program], world: World, repeats: int) -> list[dict[str, Any]]:
    """Measure the programs of one N, then trace one more call of each; a row for each that is timed."""
    calls = []
    for program in group:
        if "error" in program.measured:
            continue
        try:
            program.compiled, program.measured["compile_s"] = program.future.result()
            inputs = program.inputs(world)
            results = measure(program, inputs, repeats) if program.is_timed else program.compiled(*inputs)
            if program.keep:
                world[program.keep] = program.kept(results)
            if program.is_timed:
                calls.append((program, inputs))
        except Exception as error:
            fail(program, error)
    try:
        trace(calls)
    except Exception as error:
        print(f"no profiler trace: {one_line(error)}", flush=True)
    rows = []
    for program in group:
        row = {"name": program.name, "lanes": program.lanes, "dtype": program.dtype, "flop": program.flop}
        if program.is_timed:
            rows.append({**row, **program.measured})
        program.compiled = program.future = None  # frees the program
    return rows


def measure(program: Program, inputs: tuple[Any, ...], repeats: int) -> Any:
    """Record wall times of calls one by one and of calls that wait in line, and memory, of a program; its results."""
    memory: Any = program.compiled.memory_analysis()
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    for _ in range(2):
        results = jax.block_until_ready(program.compiled(*inputs))
    times = []
    for _ in range(repeats):
        del results
        begin = time.perf_counter()
        results = jax.block_until_ready(program.compiled(*inputs))
        times.append(1e3 * (time.perf_counter() - begin))
    del results
    calls = max(repeats, math.ceil(100 / float(np.median(times))))  # a tenth of a second at least
    begin = time.perf_counter()
    for _ in range(calls):
        results = program.compiled(*inputs)
    jax.block_until_ready(results)
    queued = 1e3 * (time.perf_counter() - begin) / calls
    program.measured |= {
        "wall_ms": spread(times),
        "queued_ms": queued,
        "bytes": sizes[0] + sizes[1],
        "memory_mib": {
            name: size / 2**20 for name, size in zip(("arguments", "results", "temporary"), sizes, strict=True)
        },
        "peak_mib_so_far": peak_mib(jax.devices()[0]),
    }
    return results


def spread(times: Sequence[float]) -> dict[str, Any]:
    """Median, extremes and number of times."""
    return {"median": float(np.median(times)), "min": min(times), "max": max(times), "repeats": len(times)}


def peak_mib(device: Any) -> float | None:
    """The most that the device has held since the process began, where it counts that."""
    bytes_held = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return None if bytes_held is None else bytes_held / 2**20


def trace(calls: list[tuple[Program, tuple[Any, ...]]]) -> None:
    """Record the milliseconds of kernels and copies in one call of each program, and how many there were."""
    if not calls or jax.devices()[0].platform != "gpu":
        return
    settings = jax.profiler.ProfileOptions()
    settings.python_tracer_level, settings.host_tracer_level = 0, 1
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=settings):
            for i, (program, inputs) in enumerate(calls):
                with jax.profiler.TraceAnnotation(f"call {i}"):
                    jax.block_until_ready(program.compiled(*inputs))
                    time.sleep(0.002)  # device and host clocks differ by less
        (file,) = Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(file))
    begins, durations = device_events(profile)
    for plane in (plane for plane in profile.planes if plane.name.startswith("/host")):
        for event in (e for line in plane.lines for e in line.events if e.name.startswith("call ")):
            program = calls[int(event.name.split()[1])][0]
            during = (begins >= event.start_ns) & (begins < event.start_ns + event.duration_ns)
            if during.any():
                program.measured |= {"kernels_ms": float(durations[during].sum()) / 1e6, "launches": int(during.sum())}


def device_events(profile: Any) -> tuple[np.ndarray, np.ndarray]:
    """Begin and duration, ns, of everything on the GPU's streams."""
    planes = [plane for plane in profile.planes if plane.name.startswith("/device:GPU")]
    lines = [line for plane in planes for line in plane.lines if "Stream" in line.name]
    events = np.array([(e.start_ns, e.duration_ns) for line in lines for e in line.events], float).reshape(-1, 2)
    return events[:, 0], events[:, 1]


def fail(program: Program, error: Exception) -> None:
    """One line for a program that did not run; the others go on."""
    program.measured["error"] = one_line(error)
    print(f"{program.name.strip()}, N = {program.lanes}, {program.dtype}: {one_line(error)}", flush=True)


def one_line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
