"""Time and memory of collecting experience and of training on it, every way side by side in one process.

    python scripts/benchmark.py                                  # the tables of docs/benchmarks.md, on one GPU
    python scripts/benchmark.py --quick                          # 128 episodes only
    python scripts/benchmark.py --tiles --out tiles.json         # the tile sizes that the rollout kernel chooses from
    python scripts/benchmark.py --n 4 --steps 8 --bars 500       # anything, anywhere

Collecting: the scan with actor, critic, curiosity model, diversity and account in every step; the scan with only actor
and account in it (`collect_ppo(backend="xla")`); the fused path (`backend="auto"`). Then every pass of the fused path
apart, a whole PPO iteration (`train.ppo.update_step`), and where nvcc is found scripts/thread_per_episode.cu. All in
the same dtype, on the same market, weights and draws, and compared: with the hoisted scan, the share of equal actions
and the largest difference of an advantage in lanes whose actions are all equal.

"wall" is the median time of a call, launch included, its arguments on the device; "spread" is (largest - smallest) /
median; "kernels" is the sum of kernel and copy durations in a profiler trace. "floor" is the larger of bytes over
bandwidth and FLOP over rate: bytes of every array that goes in or out once, FLOP of the matrix products only, bandwidth
and rates measured in this run. "memory" is what the compiled program holds: arguments, results and temporaries;
"compile" is while all others are compiled, too.

Prints the tables and writes them as JSON, and with --markdown as Markdown. Preset plan, networks as shipped.
"""

import argparse
import concurrent.futures
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
import thread_per_episode
from benchmark_programs import (
    FEATURES,
    FUSED,
    HOISTED,
    IN_LOOP,
    ceilings,
    configured,
    on_host,
    programs,
    random_market,
    random_weights,
    starting_world,
    tile_programs,
)
from benchmark_tables import markdown, summary, tables
from benchmark_timing import World, compile_all, one_line, peak_mib, run_group, spread

EPISODES, TRAINED = (128, 1024, 8192, 32768), (128, 8192)
THREAD_LANES, THREAD_SECONDS = 8192, 5.0  # one thread per episode: most lanes, and when no further repeat begins


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Compile everything, then measure it, N by N; the record that is also written as JSON."""
    begin = time.perf_counter()
    options = parse(arguments)
    device = jax.devices()[0]
    market = random_market(options.bars)
    weights = random_weights()
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 1))
    with pool, tempfile.TemporaryDirectory() as folder:
        library = pool.submit(build_threads, device, Path(folder))
        groups = {0: ceilings(device.platform, options.dtypes)}
        chosen = tile_programs if options.tiles else programs
        groups |= {n: list(chosen(n, options)) for n in options.n}
        for n, group in groups.items():
            compile_all(group, starting_world(market, weights, n), pool)
            print(f"{time.perf_counter() - begin:6.1f} s: N = {n} traced", flush=True)
        concurrent.futures.wait([p.future for group in groups.values() for p in group if p.future] + [library])
        print(f"{time.perf_counter() - begin:6.1f} s: compiled", flush=True)
        record = {**about(device, options), "programs": [], "agreement": []}
        record["ceilings"] = limits(run_group(groups.pop(0), starting_world(market, weights, 0), options.repeats))
        for n, group in groups.items():
            world = starting_world(market, weights, n)
            rows = run_group(group, world, options.repeats)
            rows += thread_rows(library, world, options, n)
            record["programs"] += [with_floor(row, record["ceilings"]) for row in rows]
            record["agreement"] += agreement(world)
            print("\n" + tables({**record, "programs": rows}, [n]), flush=True)
            record |= {"seconds": time.perf_counter() - begin, "peak_mib": peak_mib(device)}
            write(record, options)
    print("\n" + summary(record) + f"\n{record['seconds']:.0f} s in all; {options.out} holds every number")
    return record


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command's options, and the config they make."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--n", type=int, nargs="+", help=f"episodes side by side; {EPISODES} with a PPO iteration at {TRAINED}"
    )
    parser.add_argument("--quick", action="store_true", help="128 episodes only")
    parser.add_argument("--steps", type=int, default=500, help="L, steps of a collection and of an episode")
    parser.add_argument("--bars", type=int, default=10_000, help="of the random market")
    dtypes = ("float32", "tf32", "bfloat16")
    parser.add_argument("--dtypes", nargs="+", choices=dtypes, default=["bfloat16", "float32"], help="of the products")
    parser.add_argument("--tiles", action="store_true", help="only the rollout kernel, with every tile size")
    parser.add_argument("--repeats", type=int, default=7, help="timed calls of each program")
    parser.add_argument("--out", type=Path, default=Path("benchmark.json"), help="JSON file to write")
    parser.add_argument("--markdown", type=Path, help="file for the tables as Markdown")
    options = parser.parse_args(arguments)
    options.trained = options.n or TRAINED
    options.n = [128] if options.quick else options.n or list(EPISODES)
    if min(*options.n, options.steps, options.repeats) < 1 or options.bars <= options.steps + 1:
        parser.error("--n, --steps and --repeats must be 1 or more, and --bars more than the steps of an episode")
    return options


def write(record: dict[str, Any], options: argparse.Namespace) -> None:
    """Write what has been measured so far."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(markdown(record))


def build_threads(device: Any, folder: Path) -> Any:
    """The library of one thread per episode, or None where there is no nvcc or nothing to run it on."""
    compiler = thread_per_episode.nvcc(device.compute_capability) if device.platform == "gpu" else None
    return compiler and thread_per_episode.build(compiler, folder)


def thread_rows(library: Any, world: World, options: argparse.Namespace, n: int) -> list[dict[str, Any]]:
    """One thread per episode on the same market, weights and draws; timed by CUDA's events."""
    rows = []
    try:
        if library.result() is None or n > THREAD_LANES or options.tiles:
            return []
        config = configured(options, n, "float32")
        starts, (uniforms, restarts) = world["state"].env.account.bar, world["draws"]
        for block in thread_per_episode.BLOCKS:
            collected = thread_per_episode.collect(
                library.result(),
                block,
                world["weights"],
                world["market"],
                starts,
                uniforms,
                restarts,
                config,
                options.repeats,
                THREAD_SECONDS,
            )
            world[f"{thread_name(block)} float32"] = on_host(collected)
            row = {"name": thread_name(block), "lanes": n, "dtype": "float32", "flop": 0.0}
            rows.append({**row, "wall_ms": spread(collected.milliseconds)})
    except Exception as error:
        print(f"one thread per episode, N = {n}: {one_line(error)}", flush=True)
        rows.append({"name": thread_name(1), "lanes": n, "dtype": "float32", "error": one_line(error)})
    return rows


def thread_name(block: int) -> str:
    """How the tables call it."""
    return "one CUDA thread per episode" + (f", {block} sums at once" if block > 1 else "")


def about(device: Any, options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers are of."""
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "steps": options.steps,
        "bars": options.bars,
        "features": FEATURES,
        "dtypes": options.dtypes,
        "repeats": options.repeats,
        "episodes": options.n,
    }


def limits(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Bytes/s of memory and FLOP/s of the products in each dtype."""
    found = {}
    for row in rows:
        if "wall_ms" in row:
            seconds = row.get("kernels_ms", row["wall_ms"]["median"]) / 1e3
            found[row["dtype"] or "bytes"] = (row["flop"] or row["bytes"]) / seconds
    return found


def with_floor(row: dict[str, Any], ceilings: dict[str, float]) -> dict[str, Any]:
    """The row with the milliseconds that its bytes and its FLOP take at least; the larger one bounds it."""
    if "bytes" in row and "bytes" in ceilings:
        row["bytes_ms"] = 1e3 * row["bytes"] / ceilings["bytes"]
        row["flop_ms"] = 1e3 * row["flop"] / ceilings[row["dtype"]] if row["dtype"] in ceilings else 0.0
        row["floor_ms"] = max(row["bytes_ms"], row["flop_ms"])
    return row


def agreement(world: World) -> list[dict[str, Any]]:
    """How the ways of collecting differ from the hoisted scan of the same dtype."""
    found = []
    for dtype in ("float32", "tf32", "bfloat16"):
        reference = world.get(f"{HOISTED} {dtype}")
        for name in (IN_LOOP, FUSED, *(thread_name(block) for block in thread_per_episode.BLOCKS)):
            other = world.get(f"{name} {dtype}")
            if reference is not None and other is not None:
                found.append({"name": name, "dtype": dtype, **differences(reference, other)})
    return found


def differences(expected: tuple[np.ndarray, np.ndarray], actual: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    """Share of equal actions, of lanes in which all are equal, and there the largest difference of an advantage, relative."""
    same = actual[0] == expected[0]
    lanes, wanted = same.all(0), expected[1]
    error = np.abs(actual[1] - wanted)[:, lanes].max(initial=0.0) / np.abs(wanted).max()
    return {
        "lanes": same.shape[1],
        "same_actions": float(same.mean()),
        "same_lanes": float(lanes.mean()),
        "error": float(error) if lanes.any() else None,
    }


if __name__ == "__main__":
    main()
