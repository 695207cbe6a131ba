"""PPO's clipped surrogate with an entropy bonus, value and gradient at the logits in one pass over the batch.

The loss is a mean, so a row's gradient is known as soon as its probabilities are:

    d loss / d logits = (-s' (1[a] - p) + c p (ln p + H)) / B,   s' = r A where the ratio r still counts, else 0

A program owns _ROWS rows and stores their gradient and one row of sums, which are added in order. The contract is
`reference.clipped_policy_loss`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import reference
from pallas_kernels.backend import Backend, first_order_only, launch, load, resolve, reverse_mode_only, store
from pallas_kernels.heads import check_shape
from pallas_kernels.numerics import PADDING, padded
from pallas_kernels.policy_outcome import PolicyLoss

Array = jax.Array

_ROWS = 16  # a program: with more, the sums along a row spill
_MAX_ACTIONS = 128
_SUMS = 5  # surrogate, entropy, KL, clipped, largest deviation


class Batch(NamedTuple):
    """What has no gradient: `[B]` each, and the scalars clip and entropy_coef as `[2]`."""

    actions: Any
    log_probs: Any
    advantages: Any
    scalars: Any


def clipped_policy_loss(
    logits: Array,
    actions: Array,
    log_probs: Array,
    advantages: Array,
    clip: Array | float,
    entropy_coef: Array | float,
    backend: Backend = "auto",
) -> PolicyLoss:
    """The loss of `reference.clipped_policy_loss` and what it measures on the way; only the loss carries a gradient, to the logits.

    Args:
      logits: `[B, A]` float32, of the policy that learns.
      actions: `[B]` integers in [0, A).
      log_probs: `[B]`, of the actions under the policy that took them.
      advantages: `[B]`.
      clip: of the ratio, may be traced; entropy_coef: of the bonus, may be traced.
      backend: `"auto"` | `"pallas"` | `"interpret"` | `"xla"`; see `backend.resolve`.

    Raises:
      ValueError: shapes that do not fit; a jvp or second derivative of the kernel.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits has shape {logits.shape}; wanted [B, A]")
    for name, values in (("actions", actions), ("log_probs", log_probs), ("advantages", advantages)):
        check_shape(name, values, logits.shape[:1], "[B] with B of the logits")
    obstacle = None if logits.dtype == jnp.float32 else f"the logits are {logits.dtype}, not float32"
    if logits.shape[1] > _MAX_ACTIONS:
        obstacle = f"{logits.shape[1]} actions are more than {_MAX_ACTIONS}"
    mode = resolve(backend, faster=True, obstacle=obstacle)
    if mode == "xla":
        return reference.clipped_policy_loss(logits, actions, log_probs, advantages, clip, entropy_coef)
    scalars = jnp.stack([jnp.asarray(clip, jnp.float32), jnp.asarray(entropy_coef, jnp.float32)])
    batch = lax.stop_gradient(Batch(actions, log_probs, advantages, scalars))
    outcome = _loss(mode == "interpret", reverse_mode_only(logits), batch)
    return PolicyLoss(outcome.loss, *lax.stop_gradient(outcome[1:]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss(interpret: bool, logits: Array, batch: Batch) -> PolicyLoss:
    return _loss_and_gradient(interpret, logits, batch)[0]


def _fwd(interpret: bool, logits: Array, batch: Batch) -> Any:
    return first_order_only(functools.partial(_loss_and_gradient, interpret))(logits, batch)


def _bwd(interpret: bool, gradient: Array, cotangents: PolicyLoss) -> Any:
    del interpret
    return cotangents.loss * gradient, None


_loss.defvjp(_fwd, _bwd)


def _loss_and_gradient(interpret: bool, logits: Array, batch: Batch) -> tuple[PolicyLoss, Array]:
    n_rows = logits.shape[0]
    programs = pl.cdiv(n_rows, _ROWS)
    outs = (
        jax.ShapeDtypeStruct(logits.shape, jnp.float32),
        jax.ShapeDtypeStruct((_SUMS, programs), jnp.float32),
    )
    run = launch(_kernel, outs, grid=(programs,), name="clipped_policy_loss", warps=4, interpret=interpret)
    gradient, sums = run(logits, batch)
    surrogate, entropy, kl, clipped = jnp.sum(sums[:4], axis=1) / n_rows
    loss = -surrogate - batch.scalars[1] * entropy
    return PolicyLoss(loss, entropy, kl, clipped, jnp.max(sums[4])), gradient


def _kernel(logits: Any, batch: Batch, gradient: Any, sums: Any) -> None:
    n_rows, n_actions = logits.shape
    program = pl.program_id(0)
    row, column = program * _ROWS + jnp.arange(_ROWS), jnp.arange(padded(n_actions))
    real, exists = row < n_rows, (column < n_actions)[None, :]
    at, inside = (row[:, None], column[None, :]), real[:, None] & exists

    def vector(ref: Any) -> Array:
        return load(ref.at[row], real, 0)

    clip, entropy_coef = batch.scalars[0], batch.scalars[1]
    z = load(logits.at[at], inside, PADDING)
    z = z - jnp.max(z, axis=1)[:, None]
    e = jnp.where(exists, jnp.exp(z), 0.0)
    total = jnp.sum(e, axis=1)
    p, log_p = e / total[:, None], z - jnp.log(total)[:, None]
    taken = column[None, :] == vector(batch.actions)[:, None]
    log_ratio = jnp.sum(jnp.where(taken, log_p, 0.0), axis=1) - vector(batch.log_probs)
    ratio, advantage = jnp.exp(log_ratio), vector(batch.advantages)
    near = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    free, clipped = ratio * advantage, near * advantage
    entropy = -jnp.sum(p * jnp.where(exists, log_p, 0.0), axis=1)

    slope = jnp.where((near == ratio) | (free < clipped), free, 0.0)
    g = entropy_coef * p * (log_p + entropy[:, None]) - slope[:, None] * (jnp.where(taken, 1.0, 0.0) - p)
    store(gradient.at[at], g * (1.0 / n_rows), inside)
    deviation = jnp.abs(ratio - 1.0)
    kl, is_clipped = ratio - 1.0 - log_ratio, jnp.where(deviation > clip, 1.0, 0.0)
    for i, values in enumerate((jnp.minimum(free, clipped), entropy, kl, is_clipped)):
        sums[i, program] = jnp.sum(jnp.where(real, values, 0.0))
    sums[4, program] = jnp.max(jnp.where(real, deviation, 0.0))
