"""What the training tests share: a market and a config so small that they share one quick compilation.

The market is one bar longer than an episode, so every episode starts on bar 0 and update u visits the bars 16 (u - 1) to 16 u.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxrl_trade as jt

EPISODE, LENGTH, EPISODES, FEATURES = 64, 16, 4, 5
NAMES = ("one", "two", "three", "four", "five")
NETWORKS = {"actor_hidden": (8,), "critic_hidden": (8,), "curiosity_hidden": (8,)}


def market(bars: int = EPISODE + 1, seed: int = 0) -> jt.Market:
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.003, bars)))
    return jt.Market.from_arrays(rng.normal(size=(bars, FEATURES)), close, feature_names=NAMES)


def config(**changes: Any) -> jt.PPOConfig:
    rules = jt.EnvConfig.net(episode_length=EPISODE)
    sizes = {"n_episodes": EPISODES, "timesteps_per_episode": LENGTH, "updates": 4, "epochs": 2, "minibatches": 2}
    return jt.PPOConfig.net(**{"env": rules, **sizes, **NETWORKS, **changes})


def broken_from(bar: int, whole: jt.Market) -> jt.Market:
    """The market with features from a bar on that are finite, but too large for float32 sums."""
    broken = whole.features.at[bar:].set(jnp.finfo(jnp.float32).max)
    return dataclasses.replace(whole, features=broken)
