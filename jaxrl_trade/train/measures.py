"""Scalars that every agent reports of an update, and what a NaN is traced to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_trade.rollout.experience import Collection

Array = jax.Array


def account(collection: Collection) -> dict[str, Array]:
    """How the account fared: episode_return, episodes, reward, equity, cost, exposure; see `PPOMetrics` for their units."""
    t, capital = collection.transitions, collection.env.initial_capital
    done = t.terminated | t.truncated
    episodes = done.sum()
    gain = jnp.sum(jnp.where(done, t.equity_after / capital - 1.0, 0.0))
    return {
        "episode_return": gain / jnp.maximum(episodes, 1),
        "episodes": episodes,
        "reward": collection.rewards.mean(),
        "equity": t.equity_after.mean() / capital,
        "cost": (t.cost + t.slippage).mean() / capital,
        "exposure": (jnp.abs(t.position) / t.max_position).mean(),
    }


def explained_variance(predictions: Array, outcomes: Array) -> Array:
    """1 - var(outcome - prediction) / var(outcome)."""
    return 1.0 - jnp.var(outcomes - predictions) / jnp.maximum(jnp.var(outcomes), 1e-12)


def first_nonfinite(terms: Sequence[Any]) -> Array:
    """Index of the first of these pytrees that holds a NaN or an infinity, or -1; int32."""
    is_bad = jnp.stack([jnp.logical_not(_all_finite(term)) for term in terms])
    return jnp.where(is_bad.any(), jnp.argmax(is_bad), -1)


def _all_finite(tree: Any) -> Array:
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]).all()
