"""Small random markets, and networks small enough to compile quickly."""

from __future__ import annotations

import numpy as np

import jaxrl_trade as jt

SMALL = {"actor_hidden": (8,), "critic_hidden": (8,), "curiosity_hidden": (4,)}


def random_market(n_bars: int = 120, n_features: int = 5, seed: int = 0, volatility: float = 0.02) -> jt.Market:
    """A random walk with lows, highs and opens of its own."""
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(volatility * rng.standard_normal(n_bars)))
    open = close * np.exp(0.3 * volatility * rng.standard_normal(n_bars))
    low = np.minimum(open, close) * np.exp(-0.3 * volatility * rng.random(n_bars))
    high = np.maximum(open, close) * np.exp(0.3 * volatility * rng.random(n_bars))
    return jt.Market.from_arrays(rng.standard_normal((n_bars, n_features)), close, low=low, high=high, open=open)
