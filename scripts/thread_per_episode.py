"""Builds scripts/thread_per_episode.cu and calls it: a whole collection with one CUDA thread per episode.

    library = build(compiler, folder)
    collected = collect(library, block, weights, market, starts, uniforms, restarts, config, repeats, seconds)

The compiler is nvcc's command line, or a C++ compiler's, whose library runs the episodes one after another.
"""

import ctypes
import dataclasses
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_trade.config import PPOConfig
from jaxrl_trade.market import Market
from jaxrl_trade.networks import PPOParams

SOURCE = Path(__file__).with_suffix(".cu")
BLOCKS = (1, 8)  # outputs of a layer summed at once
LAYERS, ACTIONS = 11, 45


class Rules(ctypes.Structure):
    """`struct Rules` of the source."""

    _fields_ = [
        *(
            (name, ctypes.c_float)
            for name in ("capital", "max_position", "spread", "reserve", "ruin", "profit", "loss")
        ),
        *((f"{name}_scale", ctypes.c_float) for name in ("barrier", "diversity", "curiosity")),
        *((name, ctypes.c_float) for name in ("curiosity_max", "risk_weight", "gamma", "lam", "slope")),
        *((name, ctypes.c_int32) for name in ("episode_length", "barrier_max_bars")),
        *((name, ctypes.c_float * ACTIONS) for name in ("exposure", "fee_rate")),
    ]


class Inputs(ctypes.Structure):
    """`struct Inputs` of the source; the layers' pointers are weight and bias in turn."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("features", "close", "starts", "uniforms", "restarts")),
        ("layers", ctypes.c_void_p * (2 * LAYERS)),
        *((name, ctypes.c_int32) for name in ("bars", "lanes", "steps")),
    ]


class Outputs(ctypes.Structure):
    """`struct Outputs` of the source."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("action", "log_prob", "value", "reward", "equity", "position", "advantage", "returns", "done")
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collected:
    """Results `[L, N]`, and the milliseconds of each collection."""

    actions: np.ndarray
    log_probs: np.ndarray
    values: np.ndarray
    rewards: np.ndarray
    equity_after: np.ndarray
    position: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    done: np.ndarray
    milliseconds: list[float]


def nvcc(capability: str) -> list[str] | None:
    """The command line of CUDA's compiler for a GPU of that compute capability, "9.0" say; None where there is none."""
    found = shutil.which("nvcc")
    return (
        None
        if found is None
        else [found, "-O3", f"-arch=sm_{capability.replace('.', '')}", "-shared", "-Xcompiler", "-fPIC"]
    )


def build(compiler: Sequence[str], folder: Path) -> ctypes.CDLL:
    """The library.

    Raises:
      RuntimeError: the compiler refuses; the message is what it said.
    """
    library = folder / "thread_per_episode.so"
    run = subprocess.run([*compiler, str(SOURCE), "-o", str(library)], capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{compiler[0]} does not compile {SOURCE.name}: {run.stderr.strip()}")
    return ctypes.CDLL(str(library))


def collect(
    library: ctypes.CDLL,
    block: int,
    weights: PPOParams,
    market: Market,
    starts: Any,
    uniforms: Any,
    restarts: Any,
    config: PPOConfig,
    repeats: int,
    seconds: float,
) -> Collected:
    """Fresh episodes through the config's steps, the same way each time.

    Args:
      library: of `build`.
      block: one of BLOCKS.
      weights, market: as `collect_ppo` takes them.
      starts: `[N]`, the first bar of each episode.
      uniforms, restarts: `[L, N]`, the draws.
      config: preset plan, networks of the default widths.
      repeats: collections at most.
      seconds: none begins after that many.

    Raises:
      ValueError: a config that the source is not written for.
      RuntimeError: CUDA's own error.
    """
    check(config)
    steps, lanes = uniforms.shape
    held = [
        np.ascontiguousarray(x, dtype)
        for x, dtype in (
            (market.features, np.float32),
            (market.close, np.float32),
            (starts, np.int32),
            (uniforms, np.float32),
            (restarts, np.int32),
        )
    ]
    layers = [np.ascontiguousarray(x, np.float32) for x in _layers(weights)]
    out = [np.empty((steps, lanes), np.int32)]
    out += [np.empty((steps, lanes), np.float32) for _ in range(7)]
    out += [np.empty((steps, lanes), np.uint8)]
    pointers = (ctypes.c_void_p * (2 * LAYERS))(*(x.ctypes.data for x in layers))
    inputs = Inputs(*(x.ctypes.data for x in held), pointers, market.n_bars, lanes, steps)
    times = (ctypes.c_float * repeats)()
    run = library.thread_per_episode
    run.restype = ctypes.c_char_p
    run.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_int, ctypes.c_float, ctypes.c_void_p]
    rules, outputs = rules_of(config), Outputs(*(x.ctypes.data for x in out))
    structures = (ctypes.byref(x) for x in (inputs, rules, outputs))
    error = run(block, *structures, repeats, 1e3 * seconds, times)
    if error:
        raise RuntimeError(f"thread_per_episode: {error.decode()}")
    names = [field.name for field in dataclasses.fields(Collected)][:-1]
    return Collected(**dict(zip(names, out, strict=True)), milliseconds=[t for t in times if t > 0])


def check(config: PPOConfig) -> None:
    """Refuses what the source does not compute."""
    shipped = PPOConfig()
    same = ("actor_hidden", "critic_hidden", "curiosity_hidden", "reward_fn")
    free = ["max_position", "initial_capital", "spread", "reserve_fraction", "ruin_fraction", "episode_length"]
    free += ["barrier_profit_mult", "barrier_loss_mult", "barrier_max_bars"]
    plan = dataclasses.replace(shipped.env, **{name: getattr(config.env, name) for name in free})
    if (
        plan != config.env
        or plan.reserve_fraction is None
        or any(getattr(config, name) != getattr(shipped, name) for name in same)
    ):
        raise ValueError("one thread per episode knows only the preset plan and the networks' default widths")


def rules_of(config: PPOConfig) -> Rules:
    """The config's numbers as the source takes them."""
    env, hypers, scales = config.env, config.hypers, config.hypers.reward
    table = env.execution
    return Rules(
        capital=env.initial_capital,
        max_position=env.max_position,
        spread=env.spread,
        reserve=(env.reserve_fraction or 0.0) * env.initial_capital,
        ruin=env.ruin_fraction * env.initial_capital,
        profit=env.barrier_profit_mult,
        loss=env.barrier_loss_mult,
        barrier_scale=scales.barrier_scale,
        diversity_scale=scales.diversity_scale,
        curiosity_scale=scales.curiosity_scale,
        curiosity_max=scales.curiosity_max_reward,
        risk_weight=scales.risk_weight,
        gamma=hypers.gamma,
        lam=hypers.gae_lambda,
        slope=config.negative_slope,
        episode_length=env.episode_length,
        barrier_max_bars=env.barrier_max_bars,
        exposure=(ctypes.c_float * ACTIONS)(*table.exposure),
        fee_rate=(ctypes.c_float * ACTIONS)(*table.fee_rate),
    )


def _layers(weights: PPOParams) -> list[np.ndarray]:
    """Weight `[out, in]` and bias of every layer, in the source's order."""
    found = []
    for network in (weights.actor, weights.critic, weights.curiosity):
        for _, layer in sorted(network.items()):  # layer_0, layer_1, ..., output
            found += [np.asarray(jax.device_get(layer["kernel"])).T, np.asarray(layer["bias"])]
    return found
