"""Small tracks, bars and execution tables whose outcome can be worked out by hand."""

import itertools

import numpy as np
import pandas as pd

from jaxrl_trade.backtesting import Track
from jaxrl_trade.bars import Bars
from jaxrl_trade.config import EnvConfig, ExecutionTable

HOUR = 60  # minutes


def track_of(close, open=None, high=None, low=None, features=None, step=HOUR, first_minute=0):
    """Bars of `close`, `step` minutes apart; where nothing else is given a bar opens at the close before it."""
    close = np.asarray(close, np.float64)
    open = np.append(close[:1], close[:-1]) if open is None else np.asarray(open, np.float64)
    high = np.maximum(open, close) if high is None else np.asarray(high, np.float64)
    low = np.minimum(open, close) if low is None else np.asarray(low, np.float64)
    features = np.zeros((len(close), 1), np.float32) if features is None else np.asarray(features, np.float32)
    minutes = first_minute + step * np.arange(len(close), dtype=np.int64)
    return Track(features=features, open=open, high=high, low=low, close=close, minutes=minutes)


def random_track(seed, n, n_features=4, volatility=0.01, step=HOUR):
    """A random walk with gaps between close and open, and features that say nothing."""
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, volatility, n)))
    open = np.append(close[0], close[:-1]) * np.exp(rng.normal(0, volatility / 5, n))
    high, low = np.maximum(open, close) * 1.002, np.minimum(open, close) * 0.998
    return track_of(close, open, high, low, rng.normal(size=(n, n_features)), step)


def bars_of(close, freq="h", start="2024-01-01", symbol="TEST"):
    """`Bars` of a series of closes; enough of them for features are the caller's business."""
    track = track_of(close)
    columns = {name: getattr(track, name) for name in ("open", "high", "low", "close")}
    index = pd.date_range(start, periods=len(track.close), freq=freq, tz="UTC", name="time")
    return Bars.from_frame(pd.DataFrame({**columns, "volume": 1.0}, index=index), symbol=symbol)


def random_walk(seed, n, volatility=0.003):
    return 100 * np.exp(np.cumsum(np.random.default_rng(seed).normal(0, volatility, n)))


def table_of(exposure, fee_rate=0.0, fill_ratio=1.0, price_offset=0.0):
    """Taker actions of these exposures; the other columns are one number for all, or a list."""
    n = len(exposure)
    columns = [x if isinstance(x, list) else [x] * n for x in (fee_rate, fill_ratio, price_offset)]
    return ExecutionTable(
        exposure=exposure, fee_rate=columns[0], fill_ratio=columns[1], price_offset=columns[2], is_maker=[False] * n
    )


def simple_rules(**changes):
    """Short, flat or long by market orders at the close, at 1 % a trade; 1,000 of capital, leverage 1, no reserve."""
    rules = {
        "execution": table_of([-1.0, 0.0, 1.0], fee_rate=0.01),
        "sizing": "leverage",
        "initial_capital": 1000.0,
        "reserve_fraction": None,
        "spread": 0.0,
    }
    return EnvConfig(**(rules | changes))


def scripted(actions, n_actions):
    """A NumPy policy that takes these actions in turn, whatever it sees, and then begins again, for a track walked twice."""
    turns = itertools.cycle(actions)

    def policy(obs):
        return np.eye(n_actions)[[next(turns)] * len(obs)]

    return policy


def linear(weights):
    """A policy that scores the actions linearly in the observation; `weights [F + 3, A]`."""
    import jax.numpy as jnp

    weights = jnp.asarray(weights, jnp.float32)
    return lambda obs: obs @ weights
