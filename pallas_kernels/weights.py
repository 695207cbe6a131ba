"""The two small launches around a pass over the batch: weights prepared once before it, partial sums added after it.

`prepare` centres a head, U[a, :] = w_a[:, a] - mean_a w_a (+ w_v where one hidden array feeds both heads), so that
Q[b, a] = h[b] . U[a] + c[a], and stores it by rows: for gathering, or as bfloat16 terms for a product.
`finish` adds the blocks' partial sums in a fixed order (bitwise the same on every run, no atomics) and applies the
mean's Jacobian: grad_w_a[k, a] = S[a, k] - T[k] / A with T the sum of S over a.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.backend import launch, load, store
from pallas_kernels.heads import Array, Heads
from pallas_kernels.numerics import PADDING, bf16_terms, padded

_PREPARE_UNITS = 8  # hidden units a program centres: 32 programs at H = 128
_FINISH_UNITS = 16  # hidden units a program adds: two sectors of each partial row
_FINISH_BLOCKS = 512  # partial rows loaded at once


class Job(NamedTuple):
    """What `prepare` makes of one head: add_value adds w_v to every row; terms stores bfloat16 terms, else float32."""

    add_value: bool
    terms: bool


class Prepared(NamedTuple):
    """A centred head: bias c `[AP]`, PADDING beyond A; rows U `[AP, HP]`, zero beyond A and H: one array or its terms."""

    bias: Any
    rows: tuple[Any, ...]


class Partials(NamedTuple):
    """One row per block of a pass over the batch, to be added by `finish`.

    s `[G, A + 1, H]`: sum over the block's samples of grad_Q[b, a] h_a[b]; row A is the sum over a.
    v `[G, H]`: the same of grad_V h_v, or None where h_v is h_a (it is row A of s).
    q `[G, A + 1]`: sum of grad_Q[b, a]; entry A is the sum over a.
    loss `[G]`: sum of the samples' losses, or None.
    """

    s: Any
    v: Any
    q: Any
    loss: Any


def prepare(heads: Sequence[Heads], jobs: Sequence[Job], *, interpret: bool) -> tuple[Prepared, ...]:
    """Each head centred as its job says; AP and HP are A and H padded to powers of two."""
    hidden, actions = heads[0].w_a.shape
    ap, hp = padded(actions), padded(hidden)
    out_shapes = tuple(
        Prepared(
            jax.ShapeDtypeStruct((ap,), jnp.float32),
            tuple(
                [jax.ShapeDtypeStruct((ap, hp), jnp.bfloat16 if job.terms else jnp.float32)] * (3 if job.terms else 1)
            ),
        )
        for job in jobs
    )
    kernel = functools.partial(_prepare_kernel, jobs=tuple(jobs), actions=actions, hidden=hidden)
    grid = (hp // _PREPARE_UNITS, len(jobs))
    run = launch(kernel, (out_shapes,), grid=grid, name="dueling_prepare", warps=4, interpret=interpret)
    return run(tuple(head._replace(b_v=head.b_v.reshape(1)) for head in heads))[0]


def _prepare_kernel(
    heads: tuple[Heads, ...], outs: tuple[Prepared, ...], *, jobs: tuple[Job, ...], actions: int, hidden: int
) -> None:
    part, which = pl.program_id(0), pl.program_id(1)
    for index, (head, job, out) in enumerate(zip(heads, jobs, outs, strict=True)):
        pl.when(which == index)(functools.partial(_prepare_head, head, job, out, part, actions, hidden))


def _prepare_head(head: Heads, job: Job, out: Prepared, part: Array, actions: int, hidden: int) -> None:
    column = jnp.arange(padded(actions))
    unit = part * _PREPARE_UNITS + jnp.arange(_PREPARE_UNITS)
    real = (unit < hidden)[:, None] & (column < actions)[None, :]
    rows = load(head.w_a.at[unit[:, None], column[None, :]], mask=real, other=0.0).astype(jnp.float32)
    offset = -jnp.sum(rows, axis=1) * (1.0 / actions)
    if job.add_value:
        offset = offset + load(head.w_v.at[unit], mask=unit < hidden, other=0.0).astype(jnp.float32)
    rows = jnp.where(real, rows + offset[:, None], 0.0)
    for ref, value in zip(out.rows, bf16_terms(rows) if job.terms else (rows,), strict=True):
        store(ref.at[column[None, :], unit[:, None]], value)

    @pl.when(part == 0)
    def _() -> None:
        bias = load(head.b_a.at[column], mask=column < actions, other=0.0).astype(jnp.float32)
        shift = head.b_v[0].astype(jnp.float32) - jnp.sum(bias) * (1.0 / actions)
        out.bias[...] = jnp.where(column < actions, bias + shift, PADDING)


def finish(partials: Partials, batch: int, like: Heads, *, interpret: bool) -> tuple[Array | None, Heads]:
    """Mean loss `[]` (None without partial losses) and the heads' gradients, in the dtypes of `like`."""
    blocks, rows, hidden = partials.s.shape
    actions = rows - 1
    grads: Heads = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape or (1,), array.dtype), like)
    loss = None if partials.loss is None else jax.ShapeDtypeStruct((1,), jnp.float32)
    kernel = functools.partial(_finish_kernel, blocks=blocks, actions=actions, batch=batch)
    grid = (actions, hidden // _FINISH_UNITS)
    run = launch(kernel, (grads, loss), grid=grid, name="dueling_finish", warps=8, interpret=interpret)
    grads, loss = run(partials)
    return (None if loss is None else loss.reshape(())), grads._replace(b_v=grads.b_v.reshape(()))


def _finish_kernel(partials: Partials, grads: Heads, loss: Any, *, blocks: int, actions: int, batch: int) -> None:
    action, part = pl.program_id(0), pl.program_id(1)
    unit = part * _FINISH_UNITS + jnp.arange(_FINISH_UNITS)
    add = functools.partial(_sum_blocks, blocks=blocks)
    all_actions = add(lambda block: partials.s.at[block[:, None], actions, unit[None, :]], unit.shape)
    one_action = add(lambda block: partials.s.at[block[:, None], action, unit[None, :]], unit.shape)
    store(grads.w_a.at[unit, action], one_action - all_actions * (1.0 / actions))

    @pl.when(action == 0)
    def _() -> None:
        if partials.v is None:
            store(grads.w_v.at[unit], all_actions)
        else:
            store(grads.w_v.at[unit], add(lambda block: partials.v.at[block[:, None], unit[None, :]], unit.shape))

    @pl.when(part == 0)
    def _() -> None:
        all_q = add(lambda block: partials.q.at[block, actions])
        one_q = add(lambda block: partials.q.at[block, action])
        grads.b_a[action] = (one_q - all_q * (1.0 / actions)).astype(grads.b_a.dtype)

        @pl.when(action == 0)
        def _() -> None:
            grads.b_v[0] = all_q.astype(grads.b_v.dtype)
            if loss is not None:
                loss[0] = add(lambda block: partials.loss.at[block]) * (1.0 / batch)


def _sum_blocks(select: Callable[[Array], Any], shape: tuple[int, ...] = (), *, blocks: int) -> Array:
    """Sum over the blocks in a fixed order; select gives the ref's slice at an array of block numbers."""
    chunk = min(_FINISH_BLOCKS, padded(blocks))

    def body(i: Array | int, running: Array) -> Array:
        block = i * chunk + jnp.arange(chunk)
        real = (block < blocks).reshape(chunk, *[1] * len(shape))
        return running + jnp.sum(load(select(block), mask=real, other=0.0), axis=0)

    zero = jnp.zeros(shape, jnp.float32)
    return body(0, zero) if blocks <= chunk else lax.fori_loop(0, pl.cdiv(blocks, chunk), body, zero)
