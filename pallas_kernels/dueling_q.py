"""Q-values of dueling heads, and their decomposed backward pass for any gradient of Q.

    Q = H U^T + c  (+ h_v w_v where the heads have two hidden arrays), U the centred rows of weights.prepare
    grad_h_a = G U,   S = [G, sum_a G]^T H_a,   grad_w_a, grad_b from S by weights.finish;   G = grad_Q `[B, A]`

Block p owns the tiles of `Tiles.rows` samples p, p + G, ... of the batch and holds U whole. Forward: one product a
tile, transposed (`[AP, rows]`, so that the weights are the left operand), Q stored masked. Backward: two products a
tile; S and the bias sums stay in registers until the block's last tile, then `finish` adds the blocks in order.
Products are float32 from bfloat16 terms (numerics.py).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import reference
from pallas_kernels.backend import Backend, first_order_only, launch, load, resolve, reverse_mode_only, store
from pallas_kernels.heads import Array, DuelingGradients, Heads, as_heads, check_hidden, check_shape, obstacle
from pallas_kernels.numerics import bf16_terms, dot_f32, padded
from pallas_kernels.weights import Job, Partials, Prepared, finish, prepare


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
    """How the batch is cut: samples a tile, most blocks (they walk the tiles), warps a block."""

    rows: int = 32
    blocks: int = 264
    warps: int = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Static sizes of a launch: B, H, A, samples a tile, number of blocks."""

    batch: int
    hidden: int
    actions: int
    rows: int
    blocks: int

    @property
    def rounds(self) -> int:
        """Tiles a block walks, at most."""
        return pl.cdiv(pl.cdiv(self.batch, self.rows), self.blocks)


def choose_tiles(hidden: int) -> Tiles:
    """Fewer samples where the rows are wider than the 128 units the register budget was made for."""
    return Tiles(rows=16 if hidden > 128 else 32)


class Inputs(NamedTuple):
    """Refs of both kernels; v and w_v are None where one hidden array feeds both heads, grad_q in the forward pass."""

    head: Prepared
    w_v: Any
    v: Any
    a: Any
    grad_q: Any


class Gradients(NamedTuple):
    """Outputs of the backward kernel: gradients of the hidden rows (v None as in Inputs) and the blocks' sums."""

    v: Any
    a: Any
    partials: Partials


def _tile(sizes: Sizes, i: Array | int) -> tuple[Array, Array]:
    row = (pl.program_id(0) + i * sizes.blocks) * sizes.rows + jnp.arange(sizes.rows)
    return row, row < sizes.batch


def _forward_kernel(ins: Inputs, q_out: Any, *, sizes: Sizes) -> None:
    unit, action = jnp.arange(padded(sizes.hidden)), jnp.arange(padded(sizes.actions))
    real_unit, real_action = unit < sizes.hidden, action < sizes.actions
    rows_u, bias = [ref[...] for ref in ins.head.rows], ins.head.bias[...]
    w_v: Any = None if ins.v is None else load(ins.w_v.at[unit], mask=real_unit, other=0.0)[None, :]

    def tile(i: Array | int, carry: int) -> int:
        row, real = _tile(sizes, i)

        def matrix(ref: Any) -> Array:
            area = real[:, None] & real_unit[None, :]
            return load(ref.at[row[:, None], unit[None, :]], mask=area, other=0.0).astype(jnp.float32)

        q = dot_f32(rows_u, bf16_terms(matrix(ins.a)), trans_b=True) + bias[:, None]
        if ins.v is not None:
            q = q + jnp.sum(matrix(ins.v) * w_v, axis=1)[None, :]
        store(q_out.at[row[None, :], action[:, None]], q, mask=real_action[:, None] & real[None, :])
        return carry

    tile(0, 0) if sizes.rounds == 1 else lax.fori_loop(0, sizes.rounds, tile, 0)


def _backward_kernel(ins: Inputs, outs: Gradients, *, sizes: Sizes) -> None:
    unit, action = jnp.arange(padded(sizes.hidden)), jnp.arange(padded(sizes.actions))
    row_of_s = jnp.arange(padded(sizes.actions + 1))  # actions, then one row for their sum
    real_unit = unit < sizes.hidden
    rows_u = [ref[...] for ref in ins.head.rows]
    w_v: Any = None if ins.v is None else load(ins.w_v.at[unit], mask=real_unit, other=0.0)[None, :]

    def tile(i: Array | int, sums: Partials) -> Partials:
        row, real = _tile(sizes, i)
        area = real[:, None] & real_unit[None, :]

        def matrix(ref: Any) -> Array:
            return load(ref.at[row[:, None], unit[None, :]], mask=area, other=0.0).astype(jnp.float32)

        def grad_q(column: Array) -> Array:
            at = ins.grad_q.at[row[:, None], column[None, :]]
            return load(at, mask=real[:, None] & (column < sizes.actions)[None, :], other=0.0).astype(jnp.float32)

        def keep(ref: Any, value: Array) -> None:
            store(ref.at[row[:, None], unit[None, :]], value, mask=area)

        keep(outs.a, dot_f32(bf16_terms(grad_q(action)), rows_u))
        per_row = grad_q(row_of_s)
        grad_v = jnp.sum(per_row, axis=1)
        per_row = jnp.where((row_of_s == sizes.actions)[None, :], grad_v[:, None], per_row)
        v = None
        if ins.v is not None:
            keep(outs.v, grad_v[:, None] * w_v)
            v = sums.v + jnp.sum(grad_v[:, None] * matrix(ins.v), axis=0)
        product = dot_f32([term.T for term in bf16_terms(per_row)], bf16_terms(matrix(ins.a)))
        return Partials(s=sums.s + product, v=v, q=sums.q + jnp.sum(per_row, axis=0), loss=None)

    sums = Partials(
        s=jnp.zeros((row_of_s.size, unit.size), jnp.float32),
        v=None if ins.v is None else jnp.zeros(unit.shape, jnp.float32),
        q=jnp.zeros(row_of_s.shape, jnp.float32),
        loss=None,
    )
    sums = tile(0, sums) if sizes.rounds == 1 else lax.fori_loop(0, sizes.rounds, tile, sums)
    block, real_row = pl.program_id(0), row_of_s <= sizes.actions
    area = real_row[:, None] & real_unit[None, :]
    store(outs.partials.s.at[block, row_of_s[:, None], unit[None, :]], sums.s, mask=area)
    store(outs.partials.q.at[block, row_of_s], sums.q, mask=real_row)
    if ins.v is not None:
        store(outs.partials.v.at[block, unit], sums.v, mask=real_unit)


def _prepare_inputs(heads: Heads, hidden: tuple[Array, ...], grad_q: Array | None, interpret: bool) -> Inputs:
    two = len(hidden) == 2
    (head,) = prepare([heads], [Job(add_value=not two, terms=True)], interpret=interpret)
    w_v = heads.w_v.astype(jnp.float32) if two else None
    return Inputs(head=head, w_v=w_v, v=hidden[0] if two else None, a=hidden[-1], grad_q=grad_q)


def _sizes(hidden: Array, actions: int) -> tuple[Sizes, Tiles]:
    batch, width = hidden.shape
    tiles = choose_tiles(width)
    blocks = min(tiles.blocks, pl.cdiv(batch, tiles.rows))
    return Sizes(batch=batch, hidden=width, actions=actions, rows=tiles.rows, blocks=blocks), tiles


def _launch_forward(interpret: bool, heads: Heads, hidden: tuple[Array, ...]) -> Array:
    sizes, tiles = _sizes(hidden[-1], heads.w_a.shape[1])
    outs = (jax.ShapeDtypeStruct((sizes.batch, sizes.actions), jnp.float32),)
    kernel = functools.partial(_forward_kernel, sizes=sizes)
    run = launch(kernel, outs, grid=(sizes.blocks,), name="dueling_q", warps=tiles.warps, interpret=interpret)
    return run(_prepare_inputs(heads, hidden, None, interpret))[0]


def _launch_backward(
    interpret: bool, heads: Heads, hidden: tuple[Array, ...], grad_q: Array
) -> tuple[Heads, tuple[Array, ...]]:
    sizes, tiles = _sizes(hidden[-1], heads.w_a.shape[1])
    ins = _prepare_inputs(heads, hidden, grad_q, interpret)

    def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    outs = Gradients(
        v=None if ins.v is None else array(*ins.v.shape, dtype=ins.v.dtype),
        a=array(*ins.a.shape, dtype=ins.a.dtype),
        partials=Partials(
            s=array(sizes.blocks, sizes.actions + 1, sizes.hidden),
            v=None if ins.v is None else array(sizes.blocks, sizes.hidden),
            q=array(sizes.blocks, sizes.actions + 1),
            loss=None,
        ),
    )
    kernel = functools.partial(_backward_kernel, sizes=sizes)
    grid = (sizes.blocks,)
    run = launch(kernel, (outs,), grid=grid, name="dueling_q_backward", warps=tiles.warps, interpret=interpret)
    (outs,) = run(ins)
    _, heads_grad = finish(outs.partials, sizes.batch, heads, interpret=interpret)
    return heads_grad, (outs.a,) if outs.v is None else (outs.v, outs.a)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _q(interpret: bool, heads: Heads, hidden: tuple[Array, ...]) -> Array:
    return _launch_forward(interpret, heads, hidden)


def _q_fwd(interpret: bool, heads: Heads, hidden: tuple[Array, ...]) -> Any:
    run = first_order_only(functools.partial(_launch_forward, interpret))
    return run(heads, hidden), (heads, hidden)


def _q_bwd(interpret: bool, residuals: tuple[Heads, tuple[Array, ...]], grad_q: Array) -> Any:
    heads, hidden = residuals
    return first_order_only(functools.partial(_launch_backward, interpret))(heads, hidden, grad_q)


_q.defvjp(_q_fwd, _q_bwd)


def dueling_q(
    h_v: Array, h_a: Array, w_v: Array, b_v: Array, w_a: Array, b_a: Array, backend: Backend = "auto"
) -> Array:
    """Q-values `[B, A]`, float32; differentiable in every argument. Contract: `reference.dueling_q`.

    Args:
      h_v, h_a: `[B, H]` hidden rows; passing the very same array as both reads it once.
      w_v, b_v, w_a, b_a: `[H]`, `[]` or `[1]`, `[H, A]`, `[A]`.
      backend: `"auto"` | `"pallas"` | `"interpret"` | `"xla"`; see `backend.resolve`.

    Raises:
      ValueError: a shape or a backend that does not fit; a jvp or second derivative of a kernel.
    """
    heads = as_heads({"w_v": w_v, "b_v": b_v, "w_a": w_a, "b_a": b_a}, "heads")
    _check(h_v, h_a, heads)
    mode = resolve(backend, faster=False, obstacle=obstacle(heads, [h_v, h_a]))
    if mode == "xla":
        return reference.dueling_q(h_v, h_a, *heads)
    heads, hidden = reverse_mode_only((heads, (h_a,) if h_v is h_a else (h_v, h_a)))
    return _q(mode == "interpret", heads, hidden)


def dueling_q_backward(
    h_v: Array, h_a: Array, w_v: Array, w_a: Array, grad_q: Array, backend: Backend = "auto"
) -> DuelingGradients:
    """Gradients of sum(grad_q * Q) for any grad_q `[B, A]`: the vjp of `dueling_q`, not differentiable itself.

    Contract: `reference.dueling_q_backward`; h_v and h_a get a gradient each, also where they are one array.

    Raises:
      ValueError: a shape or a backend that does not fit; a derivative of a kernel.
    """
    actions = w_a.shape[-1]
    zeros = {"b_v": jnp.zeros((), w_v.dtype), "b_a": jnp.zeros((actions,), w_a.dtype)}
    heads = as_heads({"w_v": w_v, "w_a": w_a, **zeros}, "heads")
    _check(h_v, h_a, heads)
    check_shape("grad_q", grad_q, (h_a.shape[0], actions), "[B, A]")
    mode = resolve(backend, faster=False, obstacle=obstacle(heads, [h_v, h_a]))
    if mode == "xla":
        return reference.dueling_q_backward(h_v, h_a, w_v, w_a, grad_q)
    run = first_order_only(functools.partial(_launch_backward, mode == "interpret"))
    heads_grad, hidden_grad = run(heads, (h_v, h_a), grad_q)
    return DuelingGradients(*heads_grad, *hidden_grad)


def _check(h_v: Array, h_a: Array, heads: Heads) -> None:
    check_hidden("h_a", h_a, heads.w_v.shape[0])
    check_shape("h_v", h_v, h_a.shape, "h_a's shape")
