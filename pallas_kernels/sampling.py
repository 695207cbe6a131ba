"""Sampling an action by the inverse of the cumulative distribution: one uniform number per step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array


def sample(logits: Array, uniform: Array) -> Array:
    """Action `[N]` int32 = number of entries of c with c <= u x c_last, c the cumulative sum of exp(logit - max); at most A - 1.

    Args:
      logits: `[N, A]`.
      uniform: `[N]` in [0, 1).
    """
    cumulative = jnp.cumsum(jnp.exp(logits - logits.max(-1, keepdims=True)), axis=-1)
    below = cumulative <= (uniform * cumulative[..., -1])[..., None]
    return jnp.minimum(below.sum(-1), logits.shape[-1] - 1).astype(jnp.int32)


def forced(logits: Array, action: Array) -> Array:
    """The given action `[N]`, clipped into the A actions of `logits [N, A]`."""
    return jnp.clip(action, 0, logits.shape[-1] - 1)


def log_prob(logits: Array, action: Array) -> Array:
    """The log-softmax `[...]` of logits `[..., A]` at action `[...]`."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]
