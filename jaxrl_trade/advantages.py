"""Generalised advantage estimation. Knows nothing of markets or networks: rewards and values in, advantages out."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

import pallas_kernels as pk
from pallas_kernels.backend import Backend

Array = jax.Array
Scalar = float | jax.Array


def gae(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    gamma: Scalar,
    lam: Scalar,
    backend: Backend = "auto",
) -> tuple[Array, Array]:
    """Advantages and value targets of L steps of N episodes (Schulman et al. 2016, arXiv:1506.02438, section 3).

        delta_t = r_t + gamma (1 - terminated_t) V(next_obs_t) - V(obs_t)
        A_t     = delta_t + gamma lam (1 - (terminated | truncated)_t) A_{t+1},   A_L = 0

    Args:
      rewards: `[L, N]` reward of the step from bar t to t+1; 1000 is one unit of log return.
      values, next_values: `[L, N]` V(obs_t); V(next_obs_t) before any reset, ignored (even NaN) where terminated.
      terminated, truncated: `[L, N]` bool; both stop the sum, `terminated` also drops the bootstrap and wins a tie.
      gamma, lam: in [0, 1], per bar; traced, so a sweep does not recompile.
      backend: of the sum along time; see `pallas_kernels.discounted_sums`.

    Returns:
      advantages, returns: `[L, N]`, in reward units; returns = advantages + values.
    """
    rewards, values, next_values = jnp.asarray(rewards), jnp.asarray(values), jnp.asarray(next_values)
    terminated, truncated = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
    chex.assert_rank(rewards, 2)
    chex.assert_equal_shape([rewards, values, next_values, terminated, truncated])
    bootstrap = jnp.where(terminated, 0.0, next_values)  # not a product: 0 * NaN is NaN
    delta = rewards + gamma * bootstrap - values
    decay = jnp.where(terminated | truncated, 0.0, gamma * lam).astype(delta.dtype)

    advantages = pk.discounted_sums(delta, decay, backend)
    return advantages, advantages + values
