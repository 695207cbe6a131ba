"""Speed on a CPU: collecting beside the scan that computes everything in its loop, training beside Stable-Baselines3.

    python scripts/benchmark_cpu.py --out cpu.json             # collecting at N = 1 to 1,024, a quarter of an hour
    python scripts/benchmark_cpu.py --train --out cpu.json     # training beside the peers: pip install ".[peers]" first

Both sides run in this process, turn by turn. Prints a table of medians, with the quartiles of each side and of the ratio
of neighbouring turns, and writes all times as JSON. Other programs' share of the CPU stands beside each row: a row
measured while others were busy says little about either side.
"""

import argparse
import functools
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmark_programs import collect_in_loop

import jaxrl_trade as jt
from jaxrl_trade.train.agent import agent_of
from jaxrl_trade.train.placement import run_chunk

Run = Callable[[], Any]
STEPS = 500
EPISODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# name, config, and how many times Stable-Baselines3's speed is wanted
TRAINED = (
    ("the plan's networks, 8 episodes", jt.PPOConfig.net(n_episodes=8), 2.5),
    ("64-64, 32 episodes", jt.PPOConfig.net(n_episodes=32, actor_hidden=(64, 64), critic_hidden=(64, 64)), 8.0),
    ("the plan's networks, 128 episodes", jt.PPOConfig.net(), 1.6),
)


def main() -> None:
    """Measure collecting, or training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("cpu.json"), help="JSON file to write")
    parser.add_argument("--train", action="store_true", help="train beside Stable-Baselines3, instead of collecting")
    parser.add_argument("--episodes", type=int, nargs="+", default=EPISODES, help="N of the collections")
    parser.add_argument("--threads", type=int, help="of PyTorch; its own choice when left out, 1 if others are busy")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each side")
    options = parser.parse_args()
    if jax.default_backend() != "cpu":
        raise SystemExit(f"this benchmark is of the CPU; JAX takes {jax.default_backend()}: set JAX_PLATFORMS=cpu")
    market = jt.Market.from_bars(jt.sample_bars())
    cases = []
    for case in (
        training_cases(market, options.threads) if options.train else collecting_cases(market, options.episodes)
    ):
        cases.append(compare(**case, repeats=options.repeats))
        print(row(cases[-1]), flush=True)
        options.out.write_text(json.dumps({**surroundings(), "cases": cases}, indent=1) + "\n")


def collecting_cases(market: jt.Market, episodes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One complete collection, advantages included."""
    for n in episodes:
        config = jt.PPOConfig(n_episodes=n, timesteps_per_episode=STEPS)
        key_params, key_starts, key = jax.random.split(jax.random.key(0), 3)
        starts = market.draw_starts(key_starts, (n,), config.env.episode_length)
        arguments = (jt.init_ppo(key_params, config), market, jt.env.reset(market, config.env, starts), key)
        ours = functools.partial(jt.collect_ppo, *arguments, config)
        theirs = functools.partial(jax.jit(functools.partial(collect_in_loop, config=config)), *arguments)
        check_agreement(ours()[0], theirs()[0])
        yield {"name": f"collect, N = {n}", "steps": n * STEPS, "ours": ours, "theirs": theirs, "wanted": 1.0}


def check_agreement(ours: Any, theirs: Any) -> None:
    """Refuses to time two ways of collecting that differ where they took the same actions."""
    same = np.asarray((ours.actions == theirs.actions).all(axis=0))  # rounding may decide a near-tie of the sampling
    for name in ("rewards", "values", "advantages"):
        found, expected = (np.asarray(getattr(x, name))[:, same] for x in (ours, theirs))
        if same.mean() < 0.75 or not np.allclose(found, expected, rtol=0.0, atol=1e-4 * np.abs(expected).max()):
            raise SystemExit(f"the two ways of collecting differ in {name}; {same.mean():.0%} of the lanes act alike")


def training_cases(market: jt.Market, threads: int | None) -> Iterator[dict[str, Any]]:
    """One update: a collection and the passes over it."""
    for name, config, wanted in TRAINED:
        yield {
            "name": f"train, {name}",
            "steps": config.total_experiences,
            "ours": our_updates(market, config),
            "theirs": their_updates(market, config, threads),
            "wanted": wanted,
        }


def our_updates(market: jt.Market, config: jt.PPOConfig) -> Run:
    """An update as `train_ppo` runs it, metrics on the host included."""
    agent = agent_of(config)
    state = jax.jit(agent.init_state, static_argnames="config")(jax.random.key(0), market, config=config)
    hypers = jax.tree.map(jnp.float32, config.hypers)

    def run() -> Any:
        nonlocal state
        state, metrics = run_chunk(state, hypers, market, np.int32(1), config=agent.static(config))
        return jax.device_get(metrics)

    return run


def their_updates(market: jt.Market, config: jt.PPOConfig, threads: int | None) -> Run:
    """Stable-Baselines3's PPO on Gym-Trading-Env: the same bars, observation width, actions, networks, batches and epochs."""
    with warnings.catch_warnings():  # gym_trading_env turns every warning of the process into an error
        from gym_trading_env.environments import TradingEnv
    import pandas as pd
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    if threads is not None:
        torch.set_num_threads(threads)
    prices = {name: np.asarray(getattr(market, name), float) for name in ("open", "high", "low", "close")}
    features = np.asarray(market.features)
    columns = {f"feature_{i}": features[:, i] for i in range(features.shape[1])}
    table = pd.DataFrame({**prices, **columns}, index=pd.to_datetime(np.asarray(market.time, "int64") * 60, unit="s"))
    account = [
        lambda history: history["position", -1],
        lambda history: history["real_position", -1],
        lambda history: history["portfolio_valuation", -1] / 1000,
    ]

    def environment() -> Any:
        return TradingEnv(
            df=table,
            positions=list(config.env.execution.exposure),
            dynamic_feature_functions=account,
            trading_fees=config.env.execution.fee_rate[0],
            portfolio_initial_value=1000,
            initial_position=0.0,
            max_episode_duration=config.env.episode_length,
            verbose=0,
        )

    hypers = config.hypers
    model = PPO(
        "MlpPolicy",
        DummyVecEnv([environment] * config.n_episodes),
        n_steps=config.timesteps_per_episode,
        batch_size=config.total_experiences // config.minibatches,
        n_epochs=config.epochs,
        learning_rate=hypers.learning_rate,
        gamma=hypers.gamma,
        gae_lambda=hypers.gae_lambda,
        clip_range=hypers.clip,
        ent_coef=hypers.entropy_coef,
        vf_coef=hypers.value_coef,
        max_grad_norm=hypers.max_grad_norm,
        policy_kwargs={
            "net_arch": {"pi": list(config.actor_hidden), "vf": list(config.critic_hidden)},
            "activation_fn": torch.nn.LeakyReLU,
        },
        device="cpu",
        seed=0,
    )
    return lambda: model.learn(config.total_experiences, reset_num_timesteps=False)


def compare(name: str, steps: int, ours: Run, theirs: Run, wanted: float, repeats: int) -> dict[str, Any]:
    """Both sides' seconds, turn by turn after a first one that compiles, and other programs' share of the CPU meanwhile."""
    sides = {"ours": ours, "theirs": theirs}
    for run in sides.values():
        jax.block_until_ready(run())
    wall: dict[str, list[float]] = {side: [] for side in sides}
    cpu: dict[str, list[float]] = {side: [] for side in sides}
    before = cpu_seconds()
    for _ in range(repeats):
        for side, run in sides.items():
            start, own = time.perf_counter(), cpu_seconds()[0]
            jax.block_until_ready(run())
            wall[side].append(time.perf_counter() - start)
            cpu[side].append(cpu_seconds()[0] - own)
    own, busy, every = np.subtract(cpu_seconds(), before)
    ratios = np.divide(wall["theirs"], wall["ours"])
    return {
        "name": name,
        "steps": steps,
        "seconds": wall,
        "cpu_seconds": cpu,
        "ratio": float(np.median(ratios)),
        "ratio_quartiles": np.quantile(ratios, [0.25, 0.75]).tolist(),
        "wanted": wanted,
        "others_share_of_cpu": float(max(0.0, busy - own) / every),
    }


def cpu_seconds() -> tuple[float, float, float]:
    """CPU seconds so far: of this process, of all processes, and of all cores idle or not (Linux)."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    second = os.sysconf("SC_CLK_TCK")
    return time.process_time(), (sum(ticks) - ticks[3] - ticks[4]) / second, sum(ticks) / second


def row(case: dict[str, Any]) -> str:
    """A line of the table."""
    parts = []
    for side, seconds in case["seconds"].items():
        low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]) * 1e3
        cpu = float(np.median(case["cpu_seconds"][side])) * 1e3
        speed = case["steps"] / median * 1e3
        parts.append(f"{side} {median:.1f} ms ({low:.1f} to {high:.1f}; CPU {cpu:.1f}), {speed:,.0f} steps/s")
    low, high = case["ratio_quartiles"]
    return (
        f"{case['name']}: {'; '.join(parts)}; {case['ratio']:.2f} times ({low:.2f} to {high:.2f}), "
        f"wanted {case['wanted']}; others took {case['others_share_of_cpu']:.0%} of the CPU"
    )


def surroundings() -> dict[str, Any]:
    """What the times depend on."""
    names = ["jax", "jaxlib", "numpy", "torch", "stable-baselines3", "gym-trading-env", "gymnasium"]
    installed = {d.metadata["Name"].lower().replace("_", "-") for d in distributions()}
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "versions": {name: version(name) for name in names if name in installed},
    }


if __name__ == "__main__":
    main()
