"""n-step bundles: several rewards in one target. Knows nothing of markets or networks, as `advantages`."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

Array = jax.Array
Scalar = float | jax.Array


class Bundles(NamedTuple):
    """The bundle that begins at each step, every leaf `[L, N]`."""

    rewards: Array  # sum of gamma^k r_{t+k} over the m steps bundled, reward units
    discounts: Array  # gamma^m, 0 where the last of them terminated
    last: Array  # int32, row of the last step bundled: t + m - 1


def bundle(rewards: Array, terminated: Array, truncated: Array, gamma: Scalar, n: int) -> Bundles:
    """Bundles of up to n steps, shorter at an episode's end and at the end of the collection.

        R_t = sum_{k<m} gamma^k r_{t+k},   target_t = R_t + gamma^m (1 - terminated_{t+m-1}) max_a Q(next_obs_{t+m-1}, a)

    (Sutton and Barto 2018, chapter 7; a truncated episode still bootstraps, from the observation before the reset.)

    Args:
      rewards: `[L, N]` reward of the step from bar t to t+1; 1000 is one unit of log return.
      terminated, truncated: `[L, N]` bool; both end a bundle, `terminated` also drops the bootstrap and wins a tie.
      gamma: in [0, 1], per bar; traced, so a sweep does not recompile.
      n: steps in a full bundle, at least 1.
    """
    rewards = jnp.asarray(rewards)
    terminated, truncated = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
    chex.assert_rank(rewards, 2)
    chex.assert_equal_shape([rewards, terminated, truncated])
    row = jnp.arange(len(rewards), dtype=jnp.int32)[:, None]
    goes_on = jnp.logical_not(terminated | truncated) & (row < len(rewards) - 1)
    gamma = jnp.asarray(gamma, rewards.dtype)
    one = Bundles(
        rewards=rewards,
        discounts=jnp.where(terminated, 0.0, gamma),
        last=jnp.broadcast_to(row, rewards.shape),
    )

    def lengthen(_: int, shorter: Bundles) -> Bundles:
        """From bundles of up to k steps to bundles of up to k + 1: this step, then the next one's bundle."""
        following = jax.tree.map(lambda x: jnp.roll(x, -1, axis=0), shorter)
        return Bundles(
            rewards=jnp.where(goes_on, rewards + gamma * following.rewards, rewards),
            discounts=jnp.where(goes_on, gamma * following.discounts, one.discounts),
            last=jnp.where(goes_on, following.last, one.last),
        )

    return jax.lax.fori_loop(0, n - 1, lengthen, one)
