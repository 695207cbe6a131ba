"""Bellman targets and the per-sample Huber loss on Q-values `[B, A]`; elementwise but for a maximum along the actions.

One program owns `_ROWS` samples with all their actions, padded to a power of two; no sums cross programs. XLA fuses
both with what surrounds them, so `backend="auto"` takes XLA; the fused path for training is dueling_td.py.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import reference
from pallas_kernels.backend import Backend, first_order_only, launch, load, resolve, reverse_mode_only, store
from pallas_kernels.heads import Array, check_actions, check_delta, check_shape
from pallas_kernels.numerics import PADDING, padded

_ROWS = 32


def _rows(batch: int) -> tuple[Array, Array]:
    row = pl.program_id(0) * _ROWS + jnp.arange(_ROWS)
    return row, row < batch


def _table(ref: Any, row: Array, real: Array, other: float) -> tuple[Array, Array]:
    """The program's rows of a `[B, A]` ref, padded with `other`, and their column numbers."""
    actions = ref.shape[1]
    column = jnp.arange(padded(actions))
    mask = real[:, None] & (column < actions)[None, :]
    table = load(ref.at[row[:, None], column[None, :]], mask=mask, other=other).astype(jnp.float32)
    return table, lax.broadcasted_iota(jnp.int32, table.shape, 1)


def _pick(table: Array, column: Array, action: Array) -> Array:
    return jnp.sum(jnp.where(column == action[:, None], table, 0.0), axis=1)


def _target_kernel(target_q: Any, rewards: Any, discounts: Any, online_q: Any, out: Any) -> None:
    row, real = _rows(out.shape[0])
    reward, discount = (load(ref.at[row], mask=real, other=0.0).astype(jnp.float32) for ref in (rewards, discounts))
    table, column = _table(target_q, row, real, PADDING)
    if online_q is None:
        best = jnp.max(table, axis=1)
    else:
        online, _ = _table(online_q, row, real, PADDING)
        best = _pick(table, column, lax.argmax(online, 1, jnp.int32))
    store(out.at[row], reward + discount * best, mask=real)


def _huber_kernel(
    q: Any, actions: Any, targets: Any, weights: Any, loss: Any, td_error: Any, slope: Any, *, delta: float
) -> None:
    row, real = _rows(actions.shape[0])
    action = jnp.clip(load(actions.at[row], mask=real, other=0), 0, q.shape[1] - 1)
    error = _pick(*_table(q, row, real, 0.0), action) - load(targets.at[row], mask=real, other=0.0).astype(jnp.float32)
    weight = 1.0 if weights is None else load(weights.at[row], mask=real, other=0.0).astype(jnp.float32)
    size = jnp.abs(error)
    quadratic = jnp.minimum(size, delta)
    store(loss.at[row], weight * (0.5 * quadratic * quadratic + delta * (size - quadratic)), mask=real)
    store(td_error.at[row], error, mask=real)
    store(slope.at[row], weight * jnp.clip(error, -delta, delta), mask=real)


def _launch(kernel: Any, outputs: int, batch: int, *, name: str, interpret: bool) -> Any:
    outs = (jax.ShapeDtypeStruct((batch,), jnp.float32),) * outputs
    return launch(kernel, outs, grid=(pl.cdiv(batch, _ROWS),), name=name, warps=4, interpret=interpret)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Static:
    """What is compiled in: Huber's delta, the number of actions, where it runs."""

    delta: float
    count: int
    interpret: bool


def _huber_with_slope(
    static: Static, q: Array, actions: Array, targets: Array, weights: Array | None
) -> tuple[Array, Array, Array]:
    kernel = functools.partial(_huber_kernel, delta=static.delta)
    run = _launch(kernel, 3, q.shape[0], name="huber_td_loss", interpret=static.interpret)
    return run(q, actions, targets, weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _huber(static: Static, q: Array, actions: Array, targets: Array, weights: Array | None) -> tuple[Array, Array]:
    return _huber_with_slope(static, q, actions, targets, weights)[:2]


def _huber_fwd(static: Static, q: Array, actions: Array, targets: Array, weights: Array | None) -> Any:
    run = first_order_only(functools.partial(_huber_with_slope, static))
    loss, td_error, slope = run(q, actions, targets, weights)
    return (loss, td_error), (slope, actions, jnp.zeros((), q.dtype))


def _huber_bwd(static: Static, residuals: tuple[Array, Array, Array], cotangents: tuple[Array, Array]) -> Any:
    slope, actions, like_q = residuals
    taken = jnp.clip(actions, 0, static.count - 1)[:, None] == jnp.arange(static.count)
    grad = jnp.where(taken, (cotangents[0] * slope)[:, None], 0.0)  # td_error carries no gradient
    return grad.astype(like_q.dtype), None, None, None


_huber.defvjp(_huber_fwd, _huber_bwd)


def bellman_target(
    target_q: Array, rewards: Array, discounts: Array, online_q: Array | None = None, backend: Backend = "auto"
) -> Array:
    """Bellman targets `[B]` without a gradient: r + discount max_a target_q, or double Q where online_q is given.

    Contract and arguments: `reference.bellman_target`.

    Raises:
      ValueError: a shape or a backend that does not fit.
    """
    batch, _ = _check_table("target_q", target_q)
    for name, values in (("rewards", rewards), ("discounts", discounts)):
        check_shape(name, values, (batch,), "[B]")
    if online_q is not None:
        check_shape("online_q", online_q, jnp.shape(target_q), "target_q's shape")
    mode = resolve(backend, faster=False, obstacle=_obstacle(target_q))
    if mode == "xla":
        return reference.bellman_target(target_q, rewards, discounts, online_q)
    run = _launch(_target_kernel, 1, batch, name="bellman_target", interpret=mode == "interpret")
    return run(*lax.stop_gradient((target_q, rewards, discounts, online_q)))[0]


def huber_td_loss(
    q: Array,
    actions: Array,
    targets: Array,
    delta: float = 1.0,
    weights: Array | None = None,
    backend: Backend = "auto",
) -> tuple[Array, Array]:
    """Weighted Huber loss `[B]` of the TD error and the error `[B]`; differentiable in q at the taken action.

    Contract and arguments: `reference.huber_td_loss`.

    Raises:
      ValueError: a shape, an action or a backend that does not fit; a jvp or second derivative of a kernel.
    """
    batch, count = _check_table("q", q)
    actions = jnp.asarray(actions)
    check_actions(actions, batch, count)
    check_shape("targets", targets, (batch,), "[B]")
    if weights is not None:
        check_shape("weights", weights, (batch,), "[B]")
    check_delta(delta)
    mode = resolve(backend, faster=False, obstacle=_obstacle(q))
    if mode == "xla":
        return reference.huber_td_loss(q, actions, targets, delta, weights)
    static = Static(delta=float(delta), count=count, interpret=mode == "interpret")
    rest = lax.stop_gradient((actions, targets, weights))
    loss, td_error = _huber(static, reverse_mode_only(q), *rest)
    return loss, lax.stop_gradient(td_error)


def _check_table(name: str, q: Array) -> tuple[int, int]:
    shape = jnp.shape(q)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{name} has shape {shape}; wanted [B, A] with B and A at least 1")
    return shape


def _obstacle(q: Array) -> str | None:
    if q.dtype not in (jnp.float32, jnp.bfloat16):
        return f"an array has dtype {q.dtype}, not float32 or bfloat16"
    return f"A = {q.shape[1]} is more than 64" if q.shape[1] > 64 else None
