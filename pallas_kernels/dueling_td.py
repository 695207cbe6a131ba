"""The fused TD loss of a dueling network's last layers: value, TD errors and gradients. The kernel is td_pass.py's."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import reference
from pallas_kernels.backend import Backend, first_order_only, resolve, reverse_mode_only
from pallas_kernels.heads import (
    Array,
    Heads,
    as_heads,
    check_actions,
    check_delta,
    check_hidden,
    check_shape,
    obstacle,
)
from pallas_kernels.td_pass import Inputs, Sizes, Target, choose_tiles, is_faster, run_pass
from pallas_kernels.weights import Job, finish, prepare


class Sample(NamedTuple):
    """The batch without a gradient: actions `[B]`, weights `[B]` or None, and either the target half or targets `[B]`."""

    actions: Array
    weights: Array | None
    target_heads: Heads | None
    target_hidden: tuple[Array, ...]
    rewards: Array | None
    discounts: Array | None
    targets: Array | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Static:
    """What is compiled in."""

    delta: float
    interpret: bool


def _loss_and_gradients(
    static: Static, heads: Heads, hidden: tuple[Array, ...], sample: Sample
) -> tuple[Any, Array, Heads, tuple[Array, ...]]:
    """Mean loss, td_error, and the loss' gradients at the heads and at the hidden rows (one array or two)."""
    batch, width = hidden[-1].shape
    count = heads.w_a.shape[1]
    tiles = choose_tiles(batch, width, count, len(hidden))
    sizes = Sizes(batch=batch, hidden=width, actions=count, blocks=min(tiles.blocks, pl.cdiv(batch, tiles.rows)))
    every_head, jobs = [heads], [Job(add_value=len(hidden) == 1, terms=False)]
    if sample.target_heads is not None:
        every_head.append(sample.target_heads)
        jobs.append(Job(add_value=len(sample.target_hidden) == 1, terms=True))
    online, *target = prepare(every_head, jobs, interpret=static.interpret)

    def streams(head: Heads, rows: tuple[Array, ...]) -> dict[str, Array | None]:
        two = len(rows) == 2
        return {"w_v": head.w_v.astype(jnp.float32) if two else None, "v": rows[0] if two else None, "a": rows[-1]}

    ins = Inputs(
        head=online,
        **streams(heads, hidden),
        actions=sample.actions,
        weights=sample.weights,
        target=Target(
            head=target[0],
            **streams(sample.target_heads, sample.target_hidden),
            rewards=sample.rewards,
            discounts=sample.discounts,
        )
        if sample.target_heads is not None
        else None,
        targets=sample.targets,
    )
    outs = run_pass(ins, sizes=sizes, tiles=tiles, delta=static.delta, interpret=static.interpret)
    loss, heads_grad = finish(outs.partials, batch, heads, interpret=static.interpret)
    return loss, outs.td_error, heads_grad, (outs.a,) if outs.v is None else (outs.v, outs.a)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss(static: Static, heads: Heads, hidden: tuple[Array, ...], sample: Sample) -> tuple[Array, Array]:
    return _loss_and_gradients(static, heads, hidden, sample)[:2]


def _loss_fwd(static: Static, heads: Heads, hidden: tuple[Array, ...], sample: Sample) -> Any:
    launch = first_order_only(functools.partial(_loss_and_gradients, static))
    loss, td_error, heads_grad, hidden_grad = launch(heads, hidden, sample)
    return (loss, td_error), (heads_grad, hidden_grad)


def _loss_bwd(static: Static, gradients: tuple[Heads, tuple[Array, ...]], cotangents: tuple[Array, Array]) -> Any:
    del static
    scale, _ = cotangents  # td_error carries no gradient
    heads_grad, hidden_grad = jax.tree.map(lambda x: (scale * x).astype(x.dtype), gradients)
    return heads_grad, hidden_grad, None


_loss.defvjp(_loss_fwd, _loss_bwd)


def dueling_q_td_loss(
    params: Any,
    target_params: Any,
    h_v: Array,
    h_a: Array,
    th_v: Array | None,
    th_a: Array | None,
    actions: Array,
    rewards: Array | None,
    discounts: Array | None,
    weights: Array | None = None,
    delta: float = 1.0,
    targets: Array | None = None,
    backend: Backend = "auto",
) -> tuple[Array, Array]:
    """Mean weighted Huber TD loss of a dueling network's last layers, and the TD errors.

    Contract: `reference.dueling_q_td_loss`. Under differentiation the forward pass already forms every gradient, and
    the backward pass only scales them. Passing the very same array as h_v and h_a (or th_v and th_a) reads it once.

    Args:
      params, target_params: mapping or object with w_v `[H]`, b_v `[]`, w_a `[H, A]`, b_a `[A]`.
      h_v, h_a: `[B, H]` hidden rows at the observation; th_v, th_a: the target network's at the next observation.
      actions: `[B]` integers in [0, A).
      rewards, discounts: `[B]`; discount gamma^m of m bundled steps, 0 where the episode terminated.
      weights: `[B]` importance weights; None means ones.
      delta: half-width of the Huber loss' quadratic part, a Python number.
      targets: `[B]` given targets (double Q-learning); then the target half is skipped, and target_params, th_v,
        th_a, rewards and discounts may be None.
      backend: `"auto"` | `"pallas"` | `"interpret"` | `"xla"`; see `backend.resolve`.

    Returns:
      loss `[]`, float32, differentiable in params, h_v and h_a; td_error `[B]`, without a gradient.

    Raises:
      ValueError: a shape, an action or a backend that does not fit; a jvp or second derivative of a kernel.
    """
    heads = as_heads(params, "params")
    width, count = heads.w_a.shape
    actions = jnp.asarray(actions)
    check_hidden("h_a", h_a, width)
    batch = h_a.shape[0]
    check_shape("h_v", h_v, (batch, width), "h_a's shape")
    check_actions(actions, batch, count)
    check_delta(delta)
    if weights is not None:
        check_shape("weights", weights, (batch,), "[B]")
    if targets is not None:
        check_shape("targets", targets, (batch,), "[B]")
        target_heads = None
    else:
        target_heads = as_heads(target_params, "target_params")
        check_shape("target_params.w_a", target_heads.w_a, (width, count), "the shape of params.w_a")
        for name, rows in (("th_v", th_v), ("th_a", th_a)):
            check_shape(name, rows, (batch, width), "h_a's shape, since targets is None")
        for name, values in (("rewards", rewards), ("discounts", discounts)):
            check_shape(name, values, (batch,), "[B], since targets is None")

    mode = resolve(backend, faster=is_faster(width, count), obstacle=obstacle(heads, [h_v, h_a, th_v, th_a]))
    if mode == "xla":
        return reference.dueling_q_td_loss(
            params, target_params, h_v, h_a, th_v, th_a, actions, rewards, discounts, weights, delta, targets
        )
    sample = Sample(
        actions=actions,
        weights=weights,
        target_heads=target_heads,
        target_hidden=() if th_v is None or th_a is None or target_heads is None else _streams(th_v, th_a),
        rewards=None if target_heads is None else rewards,
        discounts=None if target_heads is None else discounts,
        targets=targets,
    )
    static = Static(delta=float(delta), interpret=mode == "interpret")
    heads, hidden = reverse_mode_only((heads, _streams(h_v, h_a)))
    loss, td_error = _loss(static, heads, hidden, lax.stop_gradient(sample))
    return loss, lax.stop_gradient(td_error)


def _streams(v: Array, a: Array) -> tuple[Array, ...]:
    """One array where both heads read the same one, which the kernel then reads once."""
    return (a,) if v is a else (v, a)
