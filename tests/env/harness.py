"""What the environment's tests share: synthetic bars, action sequences, and one jitted rollout of the public `step`.

Prices are rounded to float32 and kept as float64, so that the float32 environment and the float64 reference see the same
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_trade as jt
from jaxrl_trade.env import EnvState, Outcome

Bars = dict[str, np.ndarray]
N_FEATURES = 4  # the account does not look at them, so a few will do


def as_float32(x: Any) -> np.ndarray:
    return np.asarray(x, np.float32).astype(np.float64)


def bars_from(close: Sequence[float] | np.ndarray, **given: Any) -> Bars:
    """Bars around given closes; open, high and low default to SPEC's: the last close, and the range of open and close."""
    close = as_float32(close)
    open_ = as_float32(given.get("open", np.append(close[:1], close[:-1])))
    features = as_float32(np.random.default_rng(len(close)).normal(size=(len(close), N_FEATURES)))
    return {
        "features": features,
        "open": open_,
        "high": as_float32(given.get("high", np.maximum(open_, close))),
        "low": as_float32(given.get("low", np.minimum(open_, close))),
        "close": close,
    }


def random_bars(seed: int, length: int, volatility: float = 0.004, jumps: dict[int, float] | None = None) -> Bars:
    """A random walk with gaps at the open and wicks; `jumps` multiplies every price from a bar on."""
    rng = np.random.default_rng(seed)
    factor = np.ones(length)
    for bar, jump in (jumps or {}).items():
        factor[bar:] *= jump
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, volatility, length))) * factor
    open_ = np.append(close[:1], close[:-1]) * np.exp(rng.normal(0.0, volatility / 4, length))
    high = np.maximum(open_, close) * (1.0 + rng.exponential(volatility / 4, length))
    low = np.minimum(open_, close) * (1.0 - rng.exponential(volatility / 4, length))
    # rounding is monotone, so low <= open, close <= high survives it
    return bars_from(close, open=open_, high=high, low=low)


def to_market(bars: Bars, instrument: Any = None) -> jt.Market:
    features, close, low, high, open_ = (bars[name] for name in ("features", "close", "low", "high", "open"))
    return jt.Market.from_arrays(features, close, low=low, high=high, open=open_, instrument=instrument)


def to_config(spec: dict[str, Any]) -> jt.EnvConfig:
    return jt.EnvConfig(**{**spec, "execution": jt.ExecutionTable(**spec["execution"])})


@partial(jax.jit, static_argnames="config")
def rollout(
    state: EnvState, actions: jax.Array, restart_bars: jax.Array, market: jt.Market, config: jt.EnvConfig
) -> tuple[EnvState, jax.Array, Outcome]:
    """States `[L + 1, N]` (before each step, and the one handed on), observations and outcomes `[L, N]`."""

    def body(state: EnvState, inputs: tuple[jax.Array, jax.Array]) -> tuple[EnvState, Any]:
        after, outcome = jt.env.step(state, *inputs, market, config)
        return after, (state, jt.env.observe(state, market, config), outcome)

    last, (states, observations, outcomes) = jax.lax.scan(body, state, (actions, restart_bars))
    states = jax.tree.map(lambda all_, end: jnp.concatenate([all_, end[None]]), states, last)
    return states, observations, outcomes


def play_all(
    market: jt.Market, config: jt.EnvConfig, starts: Any, actions: Any, restart_bars: Any
) -> tuple[EnvState, np.ndarray, Outcome]:
    """Forced actions `[L, N]` from fresh accounts; states `[L + 1, N]`, observations and outcomes `[L, N]`, in NumPy."""
    state = jt.env.reset(market, config, np.asarray(starts, np.int32))
    played = rollout(state, np.asarray(actions, np.int32), np.asarray(restart_bars, np.int32), market, config)
    return jax.tree.map(np.asarray, played)


def play(bars: Bars, spec: dict[str, Any], starts: Any, actions: Any) -> tuple[EnvState, Outcome]:
    """As `play_all` for one instrument; every episode restarts where its lane began."""
    restart_bars = np.broadcast_to(np.asarray(starts), np.shape(actions))
    states, _, outcomes = play_all(to_market(bars), to_config(spec), starts, actions, restart_bars)
    return states, outcomes
