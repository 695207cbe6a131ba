"""The clipped surrogate of a tile of logits inside a kernel: its gradient, and what is measured on the way.

The loss is a mean, so a row's gradient is known as soon as its probabilities are:

    d loss / d logits = (-s' (1[a] - p) + c p (ln p + H)) / B,   s' = r A where the ratio r still counts, else 0
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.backend import load
from pallas_kernels.numerics import PADDING
from pallas_kernels.policy_outcome import PolicyLoss

Array = jax.Array

SUMS = 5  # surrogate, entropy, KL, clipped, largest deviation


class Batch(NamedTuple):
    """What has no gradient: `[B]` each, and the scalars clip and entropy_coef."""

    actions: Any
    log_probs: Any
    advantages: Any
    scalars: Any


def load_rows(batch: Batch, row: Array, real: Array) -> Batch:
    """A tile's rows, and clip and entropy_coef as a pair. Early in a kernel, so that they arrive while others are computed."""
    actions, log_probs, advantages = (load(ref.at[row], real, 0) for ref in batch[:-1])
    return Batch(actions, log_probs, advantages, (batch.scalars[0], batch.scalars[1]))


def head(z: Array, rows: Batch, real: Array, n_actions: int, n_rows: int) -> tuple[Array, tuple[Array, ...]]:
    """Gradient `[R, columns]` at logits z `[R, columns]`, and the SUMS measures `[R]`; zero in rows that are not real.

    Columns from n_actions on do not exist; n_rows: B, of the mean.
    """
    column = jnp.arange(z.shape[1])
    exists = (column < n_actions)[None, :]
    clip, entropy_coef = rows.scalars
    z = jnp.where(exists, z, PADDING)
    z = z - jnp.max(z, axis=1)[:, None]
    e = jnp.where(exists, jnp.exp(z), 0.0)
    total = jnp.sum(e, axis=1)
    p, log_p = e / total[:, None], z - jnp.log(total)[:, None]
    taken = column[None, :] == rows.actions[:, None]
    log_ratio = jnp.sum(jnp.where(taken, log_p, 0.0), axis=1) - rows.log_probs
    ratio, advantage = jnp.exp(log_ratio), rows.advantages
    near = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    free, clipped = ratio * advantage, near * advantage
    entropy = -jnp.sum(p * jnp.where(exists, log_p, 0.0), axis=1)

    slope = jnp.where((near == ratio) | (free < clipped), free, 0.0)
    g = entropy_coef * p * (log_p + entropy[:, None]) - slope[:, None] * (jnp.where(taken, 1.0, 0.0) - p)
    deviation = jnp.abs(ratio - 1.0)
    measures = (
        jnp.minimum(free, clipped),
        entropy,
        ratio - 1.0 - log_ratio,
        jnp.where(deviation > clip, jnp.float32(1), jnp.float32(0)),  # 1.0 has 64 bits under jax_enable_x64
        deviation,
    )
    scale = jnp.where(real, 1.0 / n_rows, 0.0)[:, None]
    return g * scale, tuple(jnp.where(real, values, 0.0) for values in measures)


def outcome(sums: Array, n_rows: int, entropy_coef: Array) -> PolicyLoss:
    """The loss and its measures of B rows, from the sums `[SUMS, programs]`."""
    surrogate, entropy, kl, clipped = jnp.sum(sums[: SUMS - 1], axis=1) / n_rows
    return PolicyLoss(-surrogate - entropy_coef * entropy, entropy, kl, clipped, jnp.max(sums[SUMS - 1]))
