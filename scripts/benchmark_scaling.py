"""Speed of a PPO iteration on one and on several devices, each with as much work as the one.

Twice the devices at best do twice as much.

    python scripts/benchmark_scaling.py                          # every number of devices that is a power of two
    python scripts/benchmark_scaling.py --devices 1 2 --out scaling.json
    XLA_FLAGS=--xla_force_host_platform_device_count=2 python scripts/benchmark_scaling.py --episodes 8 --steps 8 \\
        --seeds 2 --seed-episodes 4 --bars 500 --dtypes float32  # anything, anywhere

One run whose episodes are divided over the devices (`scale.data_parallel`), and many runs side by side on each
(`scale.seeds`), each by both executors; then one run against many on a single device, with the networks as shipped and
with small ones. Calls of several updates on a random market, preset plan. "times" is throughput over that of one device
of the same kind; "spread" is (largest - smallest) / median. "collectives" is the share of the device's time that a
profiler trace of one more call gives to NCCL, waiting for the slowest device included.

At the end of every run with several devices, the weights of all of them are compared, bit for bit.
"""

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from benchmark_programs import configured, random_market
from benchmark_timing import peak_mib, spread

from jaxrl_trade import scale
from jaxrl_trade.config import PPOConfig
from jaxrl_trade.market import Market

SMALL = {"actor_hidden": (64, 64), "critic_hidden": (64, 64)}
EXECUTORS: tuple[scale.Executor, ...] = ("shard_map", "pmap")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is timed: a config and how many runs of it on how many devices; no runs: one, divided over them."""

    name: str
    config: PPOConfig
    devices: int
    runs: int | None
    executor: scale.Executor

    @property
    def steps(self) -> int:
        """Experiences of an update."""
        return self.config.total_experiences * (self.runs or 1)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Time every case; the record that is also written as JSON."""
    options = parse(arguments)
    market = random_market(options.bars)
    device = jax.devices()[0]
    record: dict[str, Any] = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "options": {name: str(value) for name, value in vars(options).items()},
        "cases": [],
    }
    alone: dict[tuple[Any, ...], float] = {}
    print(f"{'':34} {'dtype':9} {'executor':10} devices   ms/update spread  M steps/s  times  collectives  peak MiB")
    for case in cases(options):
        row = timed(case, market, options)
        kind = case.name, case.executor, case.config.compute_dtype
        row["times"] = row["steps_per_s"] / alone.setdefault(kind, row["steps_per_s"])
        record["cases"].append(row)
        print(line(row), flush=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return record


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    there = jax.device_count()
    powers = [2**k for k in range(there.bit_length())]
    parser.add_argument("--devices", type=int, nargs="+", default=powers, help="how many, in this order")
    parser.add_argument("--episodes", type=int, default=8192, help="of one run, for each device")
    parser.add_argument("--seeds", type=int, default=64, help="runs side by side, on each device")
    parser.add_argument("--seed-episodes", type=int, default=128, help="of each of them")
    parser.add_argument("--steps", type=int, default=500, help="L, steps of a collection and of an episode")
    parser.add_argument("--bars", type=int, default=10_000, help="of the random market")
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "tf32", "bfloat16"), default=["bfloat16"])
    parser.add_argument("--executors", nargs="+", choices=EXECUTORS, default=list(EXECUTORS))
    parser.add_argument("--updates", type=int, default=3, help="of a call")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls")
    parser.add_argument("--out", type=Path, default=Path("scaling.json"), help="JSON file to write")
    options = parser.parse_args(arguments)
    if max(options.devices) > there:
        parser.error(f"--devices {max(options.devices)}, but JAX sees {there}")
    if min(options.repeats, options.updates) < 1:
        parser.error("--repeats and --updates must be at least 1")
    return options


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """One run and many runs on every number of devices, then small networks on one."""
    for dtype in options.dtypes:
        large = configured(options, options.episodes, dtype)
        own = configured(options, options.seed_episodes, dtype)
        for executor in options.executors:
            for devices in options.devices:
                whole = dataclasses.replace(large, n_episodes=options.episodes * devices)
                yield Case(name="one run", config=whole, devices=devices, runs=None, executor=executor)
            for devices in options.devices:
                runs = options.seeds * devices
                yield Case(name=f"{options.seeds} runs each", config=own, devices=devices, runs=runs, executor=executor)
        small = dataclasses.replace(own, n_episodes=32, timesteps_per_episode=min(128, options.steps), **SMALL)
        for runs in (1, options.seeds):
            name = f"64-64, 32 episodes, {runs} run{'s' if runs > 1 else ''}"
            yield Case(name=name, config=small, devices=1, runs=runs, executor=options.executors[0])


def timed(case: Case, market: Market, options: argparse.Namespace) -> dict[str, Any]:
    """What calls of a case took."""
    make = scale.data_parallel if case.runs is None else scale.seeds
    program = make(case.config, market, case.devices, case.executor)
    key = jax.random.key(0)
    state = program.init(key if case.runs is None else jax.random.split(key, case.runs))
    times = []
    for repeat in range(options.repeats + 1):
        begin = time.perf_counter()
        state, metrics = jax.block_until_ready(program.advance(state, None, options.updates))
        seconds = time.perf_counter() - begin
        if repeat:  # the first one compiles
            times.append(1e3 * seconds / options.updates)
    if not np.isfinite(np.asarray(metrics.reward)).all():
        raise SystemExit(f"{case.name}: the rewards are not finite")
    scale.check_replicas(state)
    share = collectives(lambda: jax.block_until_ready(program.advance(state, None, options.updates)))
    wall = spread(times)
    return {
        "name": case.name,
        "dtype": case.config.compute_dtype,
        "executor": case.executor,
        "devices": case.devices,
        "wall_ms": wall,
        "steps_per_s": 1e3 * case.steps / wall["median"],
        "collectives": share,
        "peak_mib_so_far": [peak_mib(device) for device in jax.devices()[: case.devices]],
    }


def collectives(call: Any) -> float | None:
    """The share of the devices' busy time that NCCL takes in a call; None where nothing is traced."""
    if jax.devices()[0].platform != "gpu":
        call()
        return None
    settings = jax.profiler.ProfileOptions()
    settings.python_tracer_level, settings.host_tracer_level = 0, 1
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=settings):
            call()
        (file,) = Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(file))
    planes = [plane for plane in profile.planes if plane.name.startswith("/device:GPU")]
    lines = [line for plane in planes for line in plane.lines if "Stream" in line.name]
    events = [(event.duration_ns, "nccl" in event.name.lower()) for line in lines for event in line.events]
    busy = sum(duration for duration, _ in events)
    return sum(duration for duration, is_nccl in events if is_nccl) / busy if busy else None


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    wall, share = row["wall_ms"], row["collectives"]
    peak = max((mib for mib in row["peak_mib_so_far"] if mib is not None), default=None)
    return (
        f"{row['name']:34} {row['dtype']:9} {row['executor']:10} {row['devices']:7} {wall['median']:11.2f} "
        f"{(wall['max'] - wall['min']) / wall['median']:6.0%} {row['steps_per_s'] / 1e6:10.2f} {row['times']:6.2f} "
        f"{'' if share is None else format(share, '.1%'):>12} {'' if peak is None else format(peak, ',.0f'):>9}"
    )


if __name__ == "__main__":
    main()
