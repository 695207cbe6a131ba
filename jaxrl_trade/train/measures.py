"""Scalars that every agent reports of an update, and what a NaN is traced to.

Each is of all programs along `axis` together; see `collectives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_trade import collectives
from jaxrl_trade.rollout.experience import Collection

Array = jax.Array


def account(collection: Collection, axis: str | None) -> dict[str, Array]:
    """How the account fared: episode_return, episodes, reward, equity, cost, exposure; see `PPOMetrics` for their units."""
    t, capital = collection.transitions, collection.env.initial_capital
    done = t.terminated | t.truncated
    gain = jnp.sum(jnp.where(done, t.equity_after / capital - 1.0, 0.0))
    gain, episodes = collectives.total((gain, done.sum()), axis)
    means = {
        "reward": collection.rewards.mean(),
        "equity": t.equity_after.mean() / capital,
        "cost": (t.cost + t.slippage).mean() / capital,
        "exposure": (jnp.abs(t.position) / t.max_position).mean(),
    }
    ended = {"episode_return": gain / jnp.maximum(episodes, 1), "episodes": episodes}
    return ended | collectives.mean(means, axis)


def explained_variance(predictions: Array, outcomes: Array, axis: str | None) -> Array:
    """1 - var(outcome - prediction) / var(outcome)."""
    unexplained, variance = (collectives.variance(x, axis) for x in (outcomes - predictions, outcomes))
    return 1.0 - unexplained / jnp.maximum(variance, 1e-12)


def first_nonfinite(terms: Sequence[Any], axis: str | None) -> Array:
    """Index of the first of these pytrees that holds a NaN or an infinity, or -1; int32."""
    is_bad = jnp.stack([jnp.logical_not(_all_finite(term)) for term in terms])
    is_bad = collectives.largest(is_bad.astype(jnp.int32), axis)
    return jnp.where(is_bad.any(), jnp.argmax(is_bad), -1)


def _all_finite(tree: Any) -> Array:
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]).all()
