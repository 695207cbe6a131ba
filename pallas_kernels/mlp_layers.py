"""One layer of a perceptron a launch, forward and backward: what differentiation needs, with everything around the product fused.

    forward    a' = leaky(a W + b)
    backward   dz = (dz' W^T) leaky'(a), and the sums of dz over each tile's rows
    weights    dW = a^T dz'

A program owns a tile of the result and walks the summed axis in steps that the compiler fetches ahead. For dW that axis
is the batch, cut so that every multiprocessor has work; the cuts' sums are added in order.
Operands are rounded to the arrays' dtype, sums are float32. Arrays have rows for whole tiles and padded widths
(`mlp_plan`), so that nothing needs a mask. A bias' gradient is the sum of the tiles' sums, in order.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.backend import dot, launch, load, store

Array = jax.Array

ROWS = 128  # a tile
_COLUMNS = 128  # a program, where the width is a multiple of it
_STEP_BYTES = 128  # of the summed axis at a time: 64 bfloat16 or 32 float32
_PROGRAMS = 264  # wanted for a weight gradient: two on each multiprocessor of an H200
_ONES = 16  # rows of the product that sums a tile's rows: the tensor cores' shortest side


def forward_layer(a: Array, w: Array, b: Array, *, slope: float, interpret: bool) -> Array:
    """Activated outputs `[rows, out]` in a's dtype of a `[rows, in]`, w `[in, out]`, b `[out]` float32."""
    columns = _piece(w.shape[1])
    kernel = functools.partial(_forward_kernel, slope=slope, columns=columns, step=_step(a, w.shape[0]))
    out = jax.ShapeDtypeStruct((a.shape[0], w.shape[1]), a.dtype)
    return cast(Array, _launch(kernel, out, a, w.shape[1] // columns, "mlp_layer", interpret)(a, w, b))


def backward_layer(dz: Array, w: Array, a: Array, *, slope: float, interpret: bool) -> tuple[Array, Array]:
    """The gradient `[rows, in]` before the activation that gave a `[rows, in]`, and its sums over the rows `[in]` float32.

    dz `[rows, out]`: the gradient before the activation of the layer with kernel w `[in, out]`.
    """
    columns, tiles = _piece(w.shape[0]), a.shape[0] // ROWS
    kernel = functools.partial(_backward_kernel, slope=slope, columns=columns, step=_step(a, w.shape[1]))
    outs = (
        jax.ShapeDtypeStruct(a.shape, a.dtype),
        jax.ShapeDtypeStruct(
            (tiles + _ONES - 1, w.shape[0]), jnp.float32
        ),  # a program addresses _ONES rows, stores one
    )
    out, sums = _launch(kernel, outs, a, w.shape[0] // columns, "mlp_layer_backward", interpret)(dz, w, a)
    return out, jnp.sum(sums[:tiles], axis=0)


def weight_gradient(a: Array, dz: Array, *, interpret: bool) -> Array:
    """a^T dz `[in, out]` float32 of a `[rows, in]` and dz `[rows, out]`."""
    rows, n_in, n_out = a.shape[0], a.shape[1], dz.shape[1]
    tiles = (n_in // _piece(n_in)) * (n_out // _piece(n_out))
    steps = rows // ROWS
    cuts = max(1, min(steps, _PROGRAMS // tiles))
    kernel = functools.partial(_weight_kernel, rounds=-(-steps // cuts), step=_step(a, ROWS))
    out = jax.ShapeDtypeStruct((cuts, n_in, n_out), jnp.float32)
    grid = (cuts * tiles,)
    run = launch(kernel, out, grid=grid, name="mlp_weight_gradient", warps=8, stages=3, interpret=interpret)
    return jnp.sum(cast(Array, run(a, dz)), axis=0)


def _piece(width: int) -> int:
    return next(size for size in (_COLUMNS, 64, width) if width % size == 0)


def _step(a: Array, summed: int) -> int:
    return min(_STEP_BYTES // a.dtype.itemsize, summed)


def _launch(
    kernel: Callable[..., None], outs: Any, a: Array, pieces: int, name: str, interpret: bool
) -> Callable[..., Any]:
    return launch(kernel, outs, grid=(a.shape[0] // ROWS * pieces,), name=name, warps=8, stages=3, interpret=interpret)


def _tile(width: int, columns: int) -> tuple[Array, Array, Array]:
    """Number of the program's row tile, its rows and its columns; programs of one row tile are neighbours."""
    program, pieces = pl.program_id(0), width // columns
    tile = program // pieces
    return tile, tile * ROWS + jnp.arange(ROWS), (program % pieces) * columns + jnp.arange(columns)


def _forward_kernel(a: Any, w: Any, b: Any, out: Any, *, slope: float, columns: int, step: int) -> None:
    _, row, column = _tile(w.shape[1], columns)

    def body(i: Array | int, z: Array) -> Array:
        k = i * step + jnp.arange(step)
        return z + dot(load(a.at[row[:, None], k[None, :]]), load(w.at[k[:, None], column[None, :]]))

    z = lax.fori_loop(0, w.shape[0] // step, body, jnp.broadcast_to(b[column][None, :], (ROWS, columns)))
    store(out.at[row[:, None], column[None, :]], jnp.maximum(z, slope * z))


def _backward_kernel(dz: Any, w: Any, a: Any, out: Any, sums: Any, *, slope: float, columns: int, step: int) -> None:
    tile, row, column = _tile(w.shape[0], columns)

    def body(i: Array | int, da: Array) -> Array:
        k = i * step + jnp.arange(step)
        return da + dot(load(dz.at[row[:, None], k[None, :]]), load(w.at[column[:, None], k[None, :]]), trans_b=True)

    da = lax.fori_loop(0, w.shape[1] // step, body, jnp.zeros((ROWS, columns), jnp.float32))
    at = (row[:, None], column[None, :])
    gradient = jnp.where(load(a.at[at]) > 0, da, slope * da).astype(out.dtype)
    store(out.at[at], gradient)
    total = dot(
        jnp.ones((_ONES, ROWS), gradient.dtype), gradient
    )  # every row is the sum; adding in registers is slower
    rows = tile + jnp.arange(_ONES)
    is_first = jnp.broadcast_to((jnp.arange(_ONES) == 0)[:, None], total.shape)
    store(sums.at[rows[:, None], column[None, :]], total, mask=is_first)


def _weight_kernel(a: Any, dz: Any, out: Any, *, rounds: int, step: int) -> None:
    n_rows, n_in, n_out = a.shape[0], a.shape[1], dz.shape[1]
    size_in, size_out = _piece(n_in), _piece(n_out)
    program, pieces_in, pieces_out = pl.program_id(0), n_in // size_in, n_out // size_out
    cut = program // (pieces_in * pieces_out)
    i = ((program // pieces_out) % pieces_in) * size_in + jnp.arange(size_in)
    o = (program % pieces_out) * size_out + jnp.arange(size_out)
    begin = cut * rounds * ROWS

    def body(r: Array | int, total: Array) -> Array:
        row = begin + r * step + jnp.arange(step)
        x = load(a.at[row[:, None], i[None, :]])
        return total + dot(x, load(dz.at[row[:, None], o[None, :]]), trans_a=True)

    stop = jnp.clip((n_rows - begin) // step, 0, rounds * ROWS // step)
    total = lax.fori_loop(0, stop, body, jnp.zeros((size_in, size_out), jnp.float32))
    store(out.at[cut, i[:, None], o[None, :]], total)
