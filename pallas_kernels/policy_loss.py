"""PPO's clipped surrogate with an entropy bonus, value and gradient at the logits in one pass over the batch.

A program owns _ROWS rows and stores their gradient (`policy_head`) and one row of sums, which are added in order. The
contract is `reference.clipped_policy_loss`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import reference
from pallas_kernels.backend import Backend, first_order_only, launch, load, resolve, reverse_mode_only, store
from pallas_kernels.heads import check_actions, check_shape
from pallas_kernels.numerics import PADDING, padded
from pallas_kernels.policy_head import SUMS, Batch, head, load_rows, outcome
from pallas_kernels.policy_outcome import PolicyLoss

Array = jax.Array

_ROWS = 16  # a program: with more, the sums along a row spill
_MAX_ACTIONS = 128


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
      ValueError: shapes or actions that do not fit; a jvp or second derivative of the kernel.
    """
    if logits.ndim != 2 or not logits.size:
        raise ValueError(f"logits has shape {logits.shape}; wanted [B, A] with B and A at least 1")
    n_rows, n_actions = logits.shape
    check_rows(actions, log_probs, advantages, n_rows, n_actions, "[B] with B of the logits")
    obstacle = None if logits.dtype == jnp.float32 else f"the logits are {logits.dtype}, not float32"
    if logits.shape[1] > _MAX_ACTIONS:
        obstacle = f"{logits.shape[1]} actions are more than {_MAX_ACTIONS}"
    mode = resolve(backend, faster=True, obstacle=obstacle)
    if mode == "xla":
        return reference.clipped_policy_loss(logits, actions, log_probs, advantages, clip, entropy_coef)
    batch = make_batch(actions, log_probs, advantages, clip, entropy_coef)
    found = _loss(mode == "interpret", reverse_mode_only(logits), batch)
    return PolicyLoss(found.loss, *lax.stop_gradient(found[1:]))


def check_rows(actions: Array, log_probs: Array, advantages: Array, n_rows: int, n_actions: int, wanted: str) -> None:
    """Raises a ValueError that names the array that is not one number a row, or whose actions are none."""
    for name, values in (("actions", actions), ("log_probs", log_probs), ("advantages", advantages)):
        check_shape(name, values, (n_rows,), wanted)
    check_actions(actions, n_rows, n_actions)


def make_batch(
    actions: Array, log_probs: Array, advantages: Array, clip: Array | float, entropy_coef: Array | float
) -> Batch:
    """What the kernels read besides logits; none of it carries a gradient."""
    scalars = jnp.stack([jnp.asarray(clip, jnp.float32), jnp.asarray(entropy_coef, jnp.float32)])
    return lax.stop_gradient(Batch(actions, log_probs, advantages, scalars))


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
        jax.ShapeDtypeStruct((SUMS, programs), jnp.float32),
    )
    run = launch(_kernel, outs, grid=(programs,), name="clipped_policy_loss", warps=4, interpret=interpret)
    gradient, sums = run(logits, batch)
    return outcome(sums, n_rows, batch.scalars[1]), gradient


def _kernel(logits: Any, batch: Batch, gradient: Any, sums: Any) -> None:
    n_rows, n_actions = logits.shape
    program = pl.program_id(0)
    row, column = program * _ROWS + jnp.arange(_ROWS), jnp.arange(padded(n_actions))
    real = row < n_rows
    at, inside = (row[:, None], column[None, :]), real[:, None] & (column < n_actions)[None, :]
    rows = load_rows(batch, row, real)
    g, measures = head(load(logits.at[at], inside, PADDING), rows, real, n_actions, n_rows)
    store(gradient.at[at], g, inside)
    for i, values in enumerate(measures[:-1]):
        sums[i, program] = jnp.sum(values)
    sums[SUMS - 1, program] = jnp.max(measures[-1])
