"""The diversity penalty: entropy of an episode's last W actions, against the largest it could be.

With counts c over the n <= W latest actions of the episode, H = -sum p ln p, p = c / n, and
penalty = H / ln(min(n, A)) - 1, in [-1, 0]; 0 when min(n, A) < 2.

The window of an episode is a ring `[N, W]`: the action of its step s stands at s mod W, so `step` says how much of it is filled.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import pallas_kernels as pk
from pallas_kernels.backend import Backend

Array = jax.Array

EMPTY = -1  # an entry of the window that no action has filled


def push(window: Array, action: Array, step: Array) -> Array:
    """The ring `[..., W]` with the action of step `step` `[...]` of the episode written in."""
    slot = jnp.arange(window.shape[-1]) == (step % window.shape[-1])[..., None]
    return jnp.where(slot, action[..., None], window)


def penalty(window: Array, n_steps: Array, n_actions: int, dtype: jnp.dtype) -> Array:
    """Penalty `[...]` of rings `[..., W]` that hold the latest min(n_steps, W) actions."""
    counts = (window[..., None] == jnp.arange(n_actions)).sum(-2)
    return _penalty(counts, jnp.minimum(n_steps, window.shape[-1]), dtype)


def penalties(
    actions: Array, steps: Array, window: Array, n_actions: int, dtype: jnp.dtype, backend: Backend = "auto"
) -> Array:
    """The penalty of every step of a collection, `[L, N]`, by running counts.

    Args:
      actions: `[L, N]` int32.
      steps: `[L, N]` int32, step of the episode before the action (0 starts an episode).
      window: `[N, W]` ring of each lane's episode before the collection.
      n_actions: A.
      dtype: of the result.
      backend: of the counts; see `pallas_kernels.windowed_entropy`.
    """
    size = window.shape[-1]
    slots = (steps[0] + jnp.arange(size)[:, None]) % size  # the ring, oldest action first
    history = jnp.concatenate([window[jnp.arange(len(window)), slots], actions])
    entropy = pk.windowed_entropy(history, steps, n_actions, backend, dtype)
    return _relative(entropy, jnp.minimum(steps + 1, size), n_actions)


def window_after(actions: Array, step: Array, window: Array) -> Array:
    """The rings `[N, W]` that a collection hands on.

    Args:
      actions: `[L, N]` of the collection.
      step: `[N]` int32, step of each lane's episode after the collection.
      window: `[N, W]` before the collection.
    """
    length, size = actions.shape[0], window.shape[-1]
    slot = jnp.arange(size)
    latest = step[:, None] - 1 - (step[:, None] - 1 - slot) % size  # the latest step written to each slot
    row = length - step[:, None] + latest
    collected = actions[jnp.clip(row, 0, length - 1), jnp.arange(len(step))[:, None]]
    return jnp.where(latest < 0, EMPTY, jnp.where(row >= 0, collected, window))


def _penalty(counts: Array, n: Array, dtype: jnp.dtype) -> Array:
    p = counts.astype(dtype) / jnp.maximum(n, 1)[..., None].astype(dtype)
    entropy = -jnp.sum(jnp.where(counts > 0, p * jnp.log(jnp.where(counts > 0, p, 1.0)), 0.0), axis=-1)
    return _relative(entropy, n, counts.shape[-1])


def _relative(entropy: Array, n: Array, n_actions: int) -> Array:
    """Entropy of n actions as a penalty: 0 for the largest possible, -1 for none."""
    most = jnp.minimum(n, n_actions)
    is_defined = most >= 2
    largest = jnp.log(jnp.where(is_defined, most, 2).astype(entropy.dtype))
    return jnp.where(is_defined, jnp.clip(entropy / largest - 1.0, -1.0, 0.0), 0.0)
