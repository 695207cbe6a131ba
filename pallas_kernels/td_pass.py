"""TD loss of dueling heads with all its gradients, in one pass over the batch.

    e_b = Q(h_b)[a_b] - y_b,   y_b = r_b + discount_b max_a Q'(h'_b)[a],   loss = mean_b w_b Huber_delta(e_b)
    g_b = w_b clip(e_b, -delta, delta) / B  is the gradient at Q[b, a_b], and zero at every other action

With centred rows U[a] (weights.prepare) the taken action's Q is one dot product, h_b . U[a_b], and its gradient is
g_b U[a_b]: the online half gathers a row and multiplies no matrix. The target half is one product and a maximum;
the weights' gradient S[a] = sum of g_b h_b over the samples that took a is one product with a zero-or-one matrix.

Three launches: `prepare` (centre both heads), the pass, `finish` (add the blocks' sums). In the pass block p owns the
tiles of `Tiles.rows` samples p, p + G, p + 2G, ...: it stores td_error and the hidden gradients, and keeps S, the
bias sums and the loss in registers until its last tile. Sums run over a block's tiles in order, then over blocks in
order: no atomics. Products are float32 from bfloat16 terms (numerics.py). Rows beyond B are masked.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.backend import launch, load, store
from pallas_kernels.heads import Array
from pallas_kernels.numerics import bf16_terms, dot_exact, dot_f32, padded
from pallas_kernels.weights import Partials, Prepared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
    """How the pass is cut: samples a tile, most blocks (they walk the tiles), warps a block."""

    rows: int
    blocks: int
    warps: int


def choose_tiles(batch: int, hidden: int, actions: int, arrays: int) -> Tiles:
    """Among the fastest measured on an H200 (scripts/benchmark_dueling.py --tiles); every choice gives a right answer.

    arrays: of hidden rows, 1 or 2. Beside two and the sums of many actions, 32 samples are 8 % faster than 16, but spill.
    """
    is_full = arrays == 2 and padded(actions + 1) > 32
    rows = 16 if batch <= 256 or hidden > 128 or is_full else 32
    return Tiles(rows=rows, blocks=264, warps=4)


def is_faster(hidden: int, actions: int) -> bool:
    """Where the three launches were measured faster than XLA's plain formula (H200, docs/kernels.md), at every B tried.

    1.5 to 4.6 times at A = 11 and 45, B = 256, 4,096 and 65,536, one hidden array and two (benchmark_dueling.py); other
    widths were not timed.
    """
    return hidden == 128 and actions <= 64


class Target(NamedTuple):
    """What the target half reads. v and w_v are None where one array feeds both heads: U holds w_v then."""

    head: Prepared
    w_v: Any
    v: Any
    a: Any
    rewards: Any
    discounts: Any


class Inputs(NamedTuple):
    """What the pass reads. v and w_v as in Target; one of target and targets is None; weights None means ones."""

    head: Prepared
    w_v: Any
    v: Any
    a: Any
    actions: Any
    weights: Any
    target: Any
    targets: Any


class Outputs(NamedTuple):
    """td_error `[B]`; gradients of the hidden rows (v None where h_v is h_a); the blocks' sums."""

    td_error: Any
    v: Any
    a: Any
    partials: Partials


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Static sizes of the pass: B, H, A and the number of blocks."""

    batch: int
    hidden: int
    actions: int
    blocks: int


def _pass_kernel(ins: Inputs, outs: Outputs, *, sizes: Sizes, tiles: Tiles, delta: float) -> None:
    block = pl.program_id(0)
    unit = jnp.arange(padded(sizes.hidden))
    row_of_s = jnp.arange(padded(sizes.actions + 1))  # actions, then one row for their sum
    real_unit = (unit < sizes.hidden)[None, :]
    w_v: Any = None if ins.v is None else load(ins.w_v.at[unit], mask=unit < sizes.hidden, other=0.0)[None, :]
    bellman = None if ins.target is None else _target_half(ins.target, unit, unit < sizes.hidden)

    def tile(i: Array | int, sums: Partials) -> Partials:
        row = (block + i * sizes.blocks) * tiles.rows + jnp.arange(tiles.rows)
        real = row < sizes.batch
        area = real[:, None] & real_unit

        def vector(ref: Any) -> Array:
            return load(ref.at[row], mask=real, other=0).astype(jnp.float32)

        def matrix(ref: Any) -> Array:
            at = ref.at[row[:, None], unit[None, :]]
            return load(at, mask=area, other=0.0).astype(jnp.float32)

        def keep(ref: Any, value: Array) -> None:
            store(ref.at[row[:, None], unit[None, :]], value, mask=area)

        action = jnp.clip(load(ins.actions.at[row], mask=real, other=0), 0, sizes.actions - 1)
        weight = jnp.where(real, 1.0, 0.0) if ins.weights is None else vector(ins.weights)
        y, y_products = (vector(ins.targets), None) if bellman is None else bellman(vector, matrix)

        h_a = matrix(ins.a)
        u = ins.head.rows[0][action[:, None], unit[None, :]]
        products = h_a * u
        if ins.v is not None:
            h_v = matrix(ins.v)
            products = products + h_v * w_v
        if y_products is not None:
            products = products - y_products
        error = jnp.sum(products, axis=1) + ins.head.bias[action] - y
        size = jnp.abs(error)
        quadratic = jnp.minimum(size, delta)
        loss = weight * (0.5 * quadratic * quadratic + delta * (size - quadratic))
        g = weight * jnp.clip(error, -delta, delta) * (1.0 / sizes.batch)

        store(outs.td_error.at[row], error, mask=real)
        keep(outs.a, g[:, None] * u)
        v = None
        if ins.v is not None:
            keep(outs.v, g[:, None] * w_v)
            by_warp = (g[:, None] * h_v).reshape(-1, tiles.warps, unit.size)  # row r is in warp r % warps
            v = sums.v + jnp.sum(by_warp, axis=0)  # so this sum stays in registers
        taken = (row_of_s[:, None] == action[None, :]) | (row_of_s == sizes.actions)[:, None]
        return Partials(
            s=sums.s + dot_exact(taken.astype(jnp.bfloat16), bf16_terms(h_a * g[:, None])),
            v=v,
            q=sums.q + jnp.where(taken, g[None, :], 0.0),
            loss=sums.loss + loss,
        )

    sums = Partials(
        s=jnp.zeros((row_of_s.size, unit.size), jnp.float32),
        v=None if ins.v is None else jnp.zeros((tiles.warps, unit.size), jnp.float32),
        q=jnp.zeros((row_of_s.size, tiles.rows), jnp.float32),
        loss=jnp.zeros((tiles.rows,), jnp.float32),
    )
    rounds = pl.cdiv(pl.cdiv(sizes.batch, tiles.rows), sizes.blocks)
    sums = tile(0, sums) if rounds == 1 else lax.fori_loop(0, rounds, tile, sums)

    real_row = row_of_s <= sizes.actions
    at = outs.partials.s.at[block, row_of_s[:, None], unit[None, :]]
    store(at, sums.s, mask=real_row[:, None] & real_unit)
    if ins.v is not None:
        store(outs.partials.v.at[block, unit], jnp.sum(sums.v, axis=0), mask=unit < sizes.hidden)
    store(outs.partials.q.at[block, row_of_s], jnp.sum(sums.q, axis=1), mask=real_row)
    outs.partials.loss[block] = jnp.sum(sums.loss)


def _target_half(target: Target, unit: Array, real_unit: Array) -> Callable[..., tuple[Array, Array | None]]:
    """Load the target head once; the result gives a tile's Bellman targets, given the tile's loaders.

    They come in two parts, `[rows]` and (two hidden arrays only) `[rows, HP]` products still to be summed along H: the
    online half has such products too, and one sum over both is cheaper.
    """
    rows = [ref[...] for ref in target.head.rows]
    bias = target.head.bias[...]
    w_v: Any = None if target.v is None else load(target.w_v.at[unit], mask=real_unit, other=0.0)[None, :]

    def bellman(vector: Callable[[Any], Array], matrix: Callable[[Any], Array]) -> tuple[Array, Array | None]:
        reward, discount = vector(target.rewards), vector(target.discounts)  # in flight during the product
        q = dot_f32(rows, bf16_terms(matrix(target.a)), trans_b=True) + bias[:, None]  # [AP, rows]
        y = reward + discount * jnp.max(q, axis=0)
        return y, None if target.v is None else matrix(target.v) * (discount[:, None] * w_v)

    return bellman


def run_pass(ins: Inputs, *, sizes: Sizes, tiles: Tiles, delta: float, interpret: bool) -> Outputs:
    """One launch over the batch, `sizes.blocks` blocks."""

    def array(*shape: int, like: Array | None = None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32 if like is None else like.dtype)

    blocks, rows = sizes.blocks, sizes.actions + 1
    two = ins.v is not None
    outs = Outputs(
        td_error=array(sizes.batch),
        v=array(sizes.batch, sizes.hidden, like=ins.v) if two else None,
        a=array(sizes.batch, sizes.hidden, like=ins.a),
        partials=Partials(
            s=array(blocks, rows, sizes.hidden),
            v=array(blocks, sizes.hidden) if two else None,
            q=array(blocks, rows),
            loss=array(blocks),
        ),
    )
    kernel = functools.partial(_pass_kernel, sizes=sizes, tiles=tiles, delta=delta)
    run = launch(kernel, (outs,), grid=(blocks,), name="dueling_td_loss", warps=tiles.warps, interpret=interpret)
    return run(ins)[0]
