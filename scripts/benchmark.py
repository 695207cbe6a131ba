"""Time and memory of collecting experience and of training on it, every way side by side in one process.

    python scripts/benchmark.py                                  # the tables of docs/benchmarks.md, on one GPU
    python scripts/benchmark.py --quick                          # 128 episodes only
    python scripts/benchmark.py --n 4 --steps 8 --bars 500       # anything, anywhere

Collecting: the scan with actor, critic, curiosity model, diversity and account in every step; the scan with only actor
and account in it (`collect_ppo(backend="xla")`); the fused path (`backend="auto"`). Then every pass of the fused path
apart, a whole PPO iteration (`train.ppo.update_step`), and where nvcc is found scripts/thread_per_episode.cu. All in
the same dtype, on the same market, weights and draws, and compared: with the hoisted scan, the share of equal actions
and the largest difference of an advantage in lanes whose actions are all equal.

"wall" is the median time of a call, launch included, its arguments on the device; "spread" is (largest - smallest) /
median; "kernels" is the sum of kernel and copy durations in a profiler trace. "floor" is the larger of bytes over
bandwidth and FLOP over rate: bytes of every array that goes in or out once, FLOP of the matrix products only, bandwidth
and rates measured in this run. "memory" is what the compiled program holds: arguments, results and temporaries.

Prints the tables and writes them as JSON, and with --markdown as Markdown. Preset plan, networks as shipped.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import itertools
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import thread_per_episode
from benchmark_tables import markdown, summary, tables

import pallas_kernels as pk
from jaxrl_trade import env, networks
from jaxrl_trade.advantages import gae
from jaxrl_trade.agents import curiosity, ppo
from jaxrl_trade.config import Backend, ComputeDtype, EnvConfig, PPOConfig
from jaxrl_trade.env import diversity
from jaxrl_trade.market import Market
from jaxrl_trade.networks import PPOParams, init_ppo
from jaxrl_trade.rollout import Experience, Transitions, collect_ppo, hoisted, sequential
from jaxrl_trade.train.ppo import PPOState, update_step

Array = jax.Array
World = dict[str, Any]  # what the programs of one N take and give, by name

EPISODES = (128, 1024, 8192, 32768)
FEATURES = 51
ACTOR, CRITIC, CURIOSITY = (54, 128, 64, 45), (54, 512, 384, 256, 128, 64, 1), (35, 64, 32)  # widths, as shipped
BOUND = {"gpu": (8192, 1 << 28), "cpu": (256, 1 << 18)}  # matrix size and floats of the ceilings' operands
THREAD_LANES, THREAD_SECONDS = 8192, 5.0  # one thread per episode: most lanes, and when no further repeat begins
IN_LOOP, HOISTED, FUSED = "all in the loop, scan", "hoisted, scan", "fused"
PPO_ITERATION = "PPO iteration"


@dataclasses.dataclass(kw_only=True)
class Program:
    """A function to compile and time: what it takes of the world, what becomes of its results, what was measured."""

    name: str
    lanes: int  # N; 0 for the ceilings
    dtype: ComputeDtype | None  # of its matrix products, where it has any
    function: Callable[..., Any]
    inputs: Callable[[World], tuple[Any, ...]]
    flop: float = 0.0
    keep: str | None = None  # name of its results in the world
    kept: Callable[[Any], Any] = staticmethod(lambda results: results)  # what of them
    is_timed: bool = True
    future: Any = None  # of (compiled, seconds)
    compiled: Any = None
    measured: dict[str, Any] = dataclasses.field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Compile everything, then measure it, N by N; the record that is also written as JSON."""
    begin = time.perf_counter()
    options = parse(arguments)
    device = jax.devices()[0]
    market = random_market(options.bars)
    weights = random_weights(options.config)
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 1))
    with pool, tempfile.TemporaryDirectory() as folder:
        library = pool.submit(build_threads, device, Path(folder))
        groups = {0: ceilings(device.platform, options.dtypes)}
        groups |= {n: list(programs(n, market, options)) for n in options.n}
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
    parser.add_argument("--n", type=int, nargs="+", default=list(EPISODES), help="episodes side by side, each apart")
    parser.add_argument("--quick", action="store_true", help="128 episodes only")
    parser.add_argument("--steps", type=int, default=500, help="L, steps of a collection and of an episode")
    parser.add_argument("--bars", type=int, default=10_000, help="of the random market")
    dtypes = ("float32", "tf32", "bfloat16")
    parser.add_argument("--dtypes", nargs="+", choices=dtypes, default=["bfloat16", "float32"], help="of the products")
    parser.add_argument("--repeats", type=int, default=7, help="timed calls of each program")
    parser.add_argument("--out", type=Path, default=Path("benchmark.json"), help="JSON file to write")
    parser.add_argument("--markdown", type=Path, help="file for the tables as Markdown")
    options = parser.parse_args(arguments)
    options.n = [128] if options.quick else options.n
    if min(*options.n, options.steps, options.repeats, 1) < 1 or options.bars <= options.steps + 1:
        parser.error("--n, --steps and --repeats must be 1 or more, and --bars more than the steps of an episode")
    options.config = PPOConfig(env=EnvConfig(episode_length=options.steps))
    return options


def write(record: dict[str, Any], options: argparse.Namespace) -> None:
    """Write what has been measured so far."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(markdown(record))


def random_market(n_bars: int) -> Market:
    """Bars whose close wanders by 0.4 % a step, with features that mean nothing."""
    random = np.random.default_rng(0)
    close = 100.0 * np.exp(np.cumsum(0.004 * random.normal(size=n_bars)))
    return Market.from_arrays(random.normal(size=(n_bars, FEATURES)), close)


def random_weights(config: PPOConfig) -> PPOParams:
    """Weights that keep the size of what goes through them; no orthogonal initialisation, which takes long to compile."""
    random = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda key: init_ppo(key, config, FEATURES), jax.random.key(0))

    def draw(leaf: Any) -> Array:
        scale = leaf.shape[0] ** -0.5 if len(leaf.shape) == 2 else 0.1
        return jnp.asarray(scale * random.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(draw, shapes)


def starting_world(market: Market, weights: PPOParams, n_episodes: int) -> World:
    """What stands before any program has run."""
    return {"market": market, "weights": weights, "key": jax.random.key(n_episodes)}


def ceilings(platform: str, dtypes: Sequence[ComputeDtype]) -> list[Program]:
    """A large matrix product in each dtype and a pass over memory."""
    size, floats = BOUND.get(platform, BOUND["cpu"])

    def operands(key: Array) -> tuple[Any, ...]:
        a, b = jax.random.normal(key, (2, size, size))
        return a, b, a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), jax.random.normal(key, (floats,))

    def product(precision: Any) -> Callable[[Array, Array], Array]:
        return lambda a, b: jnp.matmul(a, b, precision=precision)

    ways: dict[ComputeDtype, tuple[Any, slice]] = {
        "float32": (jax.lax.Precision.HIGHEST, slice(0, 2)),
        "tf32": (jax.lax.Precision.DEFAULT, slice(0, 2)),
        "bfloat16": (jax.lax.Precision.DEFAULT, slice(2, 4)),
    }
    found = [
        Program(name="operands", lanes=0, dtype=None, function=operands, inputs=lambda w: (w["key"],), is_timed=False)
    ]
    found[0].keep = "operands"
    for dtype in dtypes:
        precision, which = ways[dtype]
        inputs = lambda w, which=which: w["operands"][which]  # noqa: E731
        found.append(
            Program(
                name="product", lanes=0, dtype=dtype, function=product(precision), inputs=inputs, flop=2.0 * size**3
            )
        )
    found.append(
        Program(name="copy", lanes=0, dtype=None, function=lambda x: x + 1.0, inputs=lambda w: w["operands"][4:])
    )
    return found


def programs(n: int, market: Market, options: argparse.Namespace) -> Iterator[Program]:
    """Everything that is compiled for N episodes, in an order in which each finds what it takes."""
    first = options.dtypes[0]
    rows, bars = n * options.steps, market.n_bars
    plain = configured(options.config, n, options.steps, first)
    yield Program(
        name="begin",
        lanes=n,
        dtype=None,
        function=begin_of(plain),
        inputs=lambda w: (w["key"], w["weights"], w["market"]),
        keep="state",
        is_timed=False,
    )
    per_row = actor_flop(rows, bars), critic_flop(rows + n), curiosity_flop(min(rows, 3 * bars))
    for dtype in options.dtypes:
        config = configured(options.config, n, options.steps, dtype)
        ways: dict[str, Callable[..., Any]] = {
            IN_LOOP: functools.partial(collect_in_loop, config=config),
            HOISTED: collecting(config, "xla"),
            FUSED: collecting(config, "auto"),
        }
        for name, function in ways.items():
            yield Program(
                name=name,
                lanes=n,
                dtype=dtype,
                function=function,
                inputs=lambda w: (w["weights"], w["market"], w["state"].env, w["key"]),
                flop=sum(per_row),
                keep=f"{name} {dtype}",
                kept=lambda results: on_host(results[0]),
            )
        yield from passes(n, config, per_row, shared=dtype == first)
        yield Program(
            name=PPO_ITERATION,
            lanes=n,
            dtype=dtype,
            function=lambda state, market, config=config: update_step(state, config.hypers, market, config),
            inputs=lambda w: (w["state"], w["market"]),
            flop=sum(per_row)
            + config.epochs * (training_flop(ACTOR, rows) + training_flop(CRITIC, rows))
            + training_flop(CURIOSITY, rows),
        )


def passes(n: int, config: PPOConfig, flop: tuple[float, ...], shared: bool) -> Iterator[Program]:
    """The passes of the fused path; those without matrix products only where `shared`."""
    rules, dtype = config.env, config.compute_dtype
    shape = (config.timesteps_per_episode, n)

    def draws(key: Array, market: Market) -> tuple[Array, Array]:
        uniforms, restarts = jax.random.split(key, 2)
        return jax.random.uniform(uniforms, shape), market.draw_starts(restarts, shape, rules.episode_length)

    def rollout(actor: Any, market: Market, account: Any, draws: tuple[Array, Array]) -> Any:
        return sequential.rollout_actor(actor, market, account, *draws, config, "auto")

    def account(steps: pk.Steps, state: env.EnvState, market: Market) -> Transitions:
        return hoisted.transitions(steps, state.account, state.window, market, config, "auto")

    def penalties(t: Transitions, window: Array) -> Array:
        return diversity.penalties(t.action, t.step, window, rules.n_actions, t.base.dtype, "auto")

    def rewards(t: Transitions, model: Any, market: Market) -> tuple[Transitions, Array]:
        return hoisted.rewarded(t, model, market, config.hypers.reward, config)

    def critic(critic: Any, t: Transitions, market: Market) -> tuple[Array, Array]:
        return hoisted.values(critic, t, market, config, "auto")

    def advantages(rewarded: tuple[Transitions, Array], values: tuple[Array, Array]) -> tuple[Array, Array]:
        t, r = rewarded
        hypers = config.hypers
        return gae(r, *values, t.terminated | t.truncated, t.truncated, hypers.gamma, hypers.gae_lambda, "auto")

    def make(
        name: str, function: Callable[..., Any], inputs: Callable[[World], tuple[Any, ...]], **more: Any
    ) -> Program:
        return Program(name=f"  {name}", lanes=n, function=function, inputs=inputs, **more)

    if shared:
        yield make("draws", draws, lambda w: (w["key"], w["market"]), keep="draws", dtype=None)
    yield make(
        "rollout",
        rollout,
        lambda w: (w["weights"].actor, w["market"], w["state"].env.account, w["draws"]),
        keep="steps",
        dtype=dtype,
        flop=flop[0],
    )
    if shared:
        inputs = lambda w: (w["steps"][1], w["state"].env, w["market"])  # noqa: E731
        yield make("account and diversity", account, inputs, keep="transitions", dtype=None)
        yield make("of which diversity", penalties, lambda w: (w["transitions"], w["state"].env.window), dtype=None)
    yield make(
        "curiosity and reward",
        rewards,
        lambda w: (w["transitions"], w["weights"].curiosity, w["market"]),
        keep="rewarded",
        dtype=dtype,
        flop=flop[2],
    )
    yield make(
        "critic",
        critic,
        lambda w: (w["weights"].critic, w["transitions"], w["market"]),
        keep="values",
        dtype=dtype,
        flop=flop[1],
    )
    if shared:
        yield make("advantages", advantages, lambda w: (w["rewarded"], w["values"]), dtype=None)


def configured(config: PPOConfig, n: int, steps: int, dtype: ComputeDtype) -> PPOConfig:
    """The config of N episodes: 4 minibatches an epoch, from 1,024 episodes on one for every 256 of them, at most 32."""
    minibatches = math.gcd(n * steps, min(32, max(4, n // 256)))
    return dataclasses.replace(
        config, n_episodes=n, timesteps_per_episode=steps, compute_dtype=dtype, minibatches=minibatches
    )


def begin_of(config: PPOConfig) -> Callable[..., PPOState]:
    """(key, weights, market) -> the state of a run that begins with these weights."""

    def begin(key: Array, weights: PPOParams, market: Market) -> PPOState:
        starts = market.draw_starts(key, (config.n_episodes,), config.env.episode_length)
        return PPOState(
            learner=ppo.init(weights.actor, weights.critic),
            curiosity=weights.curiosity,
            curiosity_opt=curiosity.optimiser(0.0).init(weights.curiosity),
            env=env.reset(market, config.env, starts),
            key=key,
            update=jnp.zeros((), jnp.int32),
        )

    return begin


def collecting(config: PPOConfig, backend: Backend) -> Callable[..., tuple[Experience, env.EnvState]]:
    """`collect_ppo` of (weights, market, state, key)."""
    return lambda weights, market, state, key: collect_ppo(weights, market, state, key, config, backend=backend)


def collect_in_loop(
    weights: PPOParams, market: Market, state: env.EnvState, key: Array, config: PPOConfig
) -> tuple[Experience, env.EnvState]:
    """The same experience by one scan whose step does everything but the advantages, as one writes it down."""
    rules, scales = config.env, config.hypers.reward
    shape = (config.timesteps_per_episode, config.n_episodes)
    key_uniforms, key_restarts = jax.random.split(key, 2)
    restarts = market.draw_starts(key_restarts, shape, rules.episode_length)
    actor, critic = networks.actor(config), networks.critic(config)
    direction = jnp.sign(rules.execution.arrays().exposure).astype(jnp.int32) + 1

    def value(state: env.EnvState) -> Array:
        return critic.evaluate(weights.critic, env.observe(state, market, rules), "xla")[..., 0]

    def step(state: env.EnvState, draw: tuple[Array, Array]) -> tuple[env.EnvState, tuple[Transitions, Array, Array]]:
        account = state.account
        logits = actor.evaluate(weights.actor, env.observe(state, market, rules), "xla")
        action = pk.sample(logits, draw[0])
        after, out = env.step(state, action, draw[1], market, rules)
        errors = hoisted.prediction_errors(weights.curiosity, market, account.bar, direction[action], config)
        transitions = Transitions(
            bar=account.bar,
            step=account.step,
            action=action,
            log_prob=pk.log_prob(logits, action),
            position_before=account.position,
            max_position=account.max_position,
            curiosity_bonus=jnp.minimum(errors, scales.curiosity_max_reward),
            **{
                f.name: getattr(out, f.name)
                for f in dataclasses.fields(out)
                if f.name in Transitions.__dataclass_fields__
            },
        )
        return after, (transitions, hoisted.spec_reward(transitions, scales, market, rules), value(state))

    uniforms = jax.random.uniform(key_uniforms, shape, market.close.dtype)
    after, (t, rewards, values) = jax.lax.scan(step, state, (uniforms, restarts))
    next_values = jnp.concatenate([values[1:], value(after)[None]])  # plan: read only where no episode ended
    ends = t.terminated | t.truncated
    advantages, returns = gae(
        rewards, values, next_values, ends, t.truncated, config.hypers.gamma, config.hypers.gae_lambda, "xla"
    )
    experience = Experience(
        transitions=t,
        rewards=rewards,
        values=values,
        next_values=next_values,
        advantages=advantages,
        returns=returns,
        env=rules,
    )
    return experience, after


def actor_flop(rows: int, bars: int) -> float:
    """Of the actor's products, the features' part of the first layer once a bar; 2 account values change with the row."""
    hidden = ACTOR[1]
    return 2.0 * (rows * (2 * hidden + multiplications(ACTOR[1:])) + bars * FEATURES * hidden)


def critic_flop(rows: int) -> float:
    """Of the critic's products."""
    return 2.0 * rows * multiplications(CRITIC)


def curiosity_flop(rows: int) -> float:
    """Of the curiosity model's products."""
    return 2.0 * rows * multiplications(CURIOSITY)


def training_flop(widths: Sequence[int], rows: int) -> float:
    """Of one pass forward and backward; nobody needs the gradient at the inputs."""
    return 2.0 * rows * (3 * multiplications(widths) - widths[0] * widths[1])


def multiplications(widths: Sequence[int]) -> int:
    """Of one row through dense layers of these widths."""
    return sum(a * b for a, b in itertools.pairwise(widths))


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
    """Record wall times and memory of a program; its results."""
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
    program.measured |= {
        "wall_ms": spread(times),
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


def build_threads(device: Any, folder: Path) -> Any:
    """The library of one thread per episode, or None where there is no nvcc or nothing to run it on."""
    compiler = thread_per_episode.nvcc(device.compute_capability) if device.platform == "gpu" else None
    return compiler and thread_per_episode.build(compiler, folder)


def thread_rows(library: Any, world: World, options: argparse.Namespace, n: int) -> list[dict[str, Any]]:
    """One thread per episode on the same market, weights and draws; timed by CUDA's events."""
    rows = []
    try:
        if library.result() is None or n > THREAD_LANES:
            return []
        config = configured(options.config, n, options.steps, "float32")
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


def on_host(experience: Any) -> tuple[np.ndarray, np.ndarray]:
    """Actions and advantages."""
    return np.asarray(experience.actions), np.asarray(experience.advantages)


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


def fail(program: Program, error: Exception) -> None:
    """One line for a program that did not run; the others go on."""
    program.measured["error"] = one_line(error)
    print(f"{program.name.strip()}, N = {program.lanes}, {program.dtype}: {one_line(error)}", flush=True)


def one_line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


if __name__ == "__main__":
    main()
