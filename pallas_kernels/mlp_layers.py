"""One layer of a perceptron a launch, forward and backward: what differentiation needs, with everything around the product fused.

    forward    a' = leaky(a W + b)
    backward   dz = (dz' W^T) leaky'(a)
    weights    dW = a^T dz',  db = 1^T dz'

A program owns a tile of the result and walks the summed axis in steps that the compiler fetches ahead. For dW that axis
is the batch, cut so that every multiprocessor has work; the cuts' sums are added in order. db are more rows of dW, those
of an input that is always one.
Operands are rounded to the arrays' dtype, sums are float32. Arrays have rows for whole tiles and padded widths
(`mlp_plan`), so that nothing needs a mask. On Hopper, bfloat16 goes to `mlp_walk` and `mlp_sums` where they fit.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import hopper, mlp_sums, mlp_walk
from pallas_kernels.backend import dot, launch, load, store, with_copies

Array = jax.Array

ROWS = 128  # a tile
_COLUMNS = 128  # a program, where the width is a multiple of it
_STEP_BYTES = 128  # of the summed axis at a time: 64 bfloat16 or 32 float32
_PROGRAMS = 264  # wanted for a weight gradient: two on each multiprocessor of an H200
_ONES = 16  # inputs that are always one: the tensor cores' shortest side
_HOPPERS_ROWS = 1 << 16


def forward_layer(a: Array, w: Array, b: Array, *, slope: float, interpret: bool) -> Array:
    """Activated outputs `[rows, out]` in a's dtype of a `[rows, in]`, w `[in, out]`, b `[out]` float32."""

    def run(copies: int, a: Array, w: Array, b: Array) -> Array:
        if _is_hoppers(a, copies, interpret) and mlp_walk.fits(*w.shape):
            return mlp_walk.forward_layer(a, w, b, slope=slope, copies=copies)
        columns = _piece(w.shape[1])
        kernel = functools.partial(_forward_kernel, slope=slope, columns=columns, step=_step(a, w.shape[0]))
        out = jax.ShapeDtypeStruct((a.shape[0], w.shape[1]), a.dtype)
        return cast(Array, _launch(kernel, out, a, w.shape[1] // columns, "mlp_layer", interpret)(a, w, b))

    return cast(Array, with_copies(run)(a, w, b))


def backward_layer(dz: Array, w: Array, a: Array, *, slope: float, interpret: bool) -> Array:
    """The gradient `[rows, in]` before the activation that gave a `[rows, in]`.

    dz `[rows, out]`: the gradient before the activation of the layer with kernel w `[in, out]`.
    """

    def run(copies: int, dz: Array, w: Array, a: Array) -> Array:
        if _is_hoppers(a, copies, interpret) and mlp_walk.fits(*w.shape[::-1]):
            return mlp_walk.backward_layer(dz, w, a, slope=slope, copies=copies)
        columns = _piece(w.shape[0])
        kernel = functools.partial(_backward_kernel, slope=slope, columns=columns, step=_step(a, w.shape[1]))
        out = jax.ShapeDtypeStruct(a.shape, a.dtype)
        return cast(Array, _launch(kernel, out, a, w.shape[0] // columns, "mlp_layer_backward", interpret)(dz, w, a))

    return cast(Array, with_copies(run)(dz, w, a))


def weight_gradient(a: Array, dz: Array, *, interpret: bool) -> tuple[Array, Array]:
    """a^T dz `[in, out]` and the sums of dz over the rows `[out]`, float32, of a `[rows, in]` and dz `[rows, out]`."""

    def run(copies: int, a: Array, dz: Array) -> tuple[Array, Array]:
        if _is_hoppers(a, copies, interpret) and mlp_sums.fits(a.shape[1], dz.shape[1]):
            return mlp_sums.weight_gradient(a, dz, copies=copies)
        total = _weight_gradient(interpret, copies, a, dz)
        return total[: a.shape[1]], total[a.shape[1]]

    return cast(tuple[Array, Array], with_copies(run)(a, dz))


def first_layer_gradient(
    x: Array, n_inputs: int, dz0: Array, dz: Array, w: Array, a: Array, *, slope: float, interpret: bool
) -> tuple[Array, Array]:
    """`weight_gradient` of x and dz0 = `backward_layer(dz, w, a)`, which on Hopper is not read but stays on chip.

    x: n_inputs columns and, where there are more, a last one of ones, as `mlp_plan.pad_rows` makes it.
    """

    def run(copies: int, x: Array, dz0: Array, dz: Array, w: Array, a: Array) -> tuple[Array, Array]:
        has_ones = n_inputs < x.shape[1] == hopper.STEP
        if _is_hoppers(a, copies, interpret) and mlp_walk.fits(*w.shape[::-1]) and has_ones:
            dw = mlp_walk.first_layer_gradient(dz, w, a, x, slope=slope, copies=copies)
            return dw, dw[-1]
        return weight_gradient(x, dz0, interpret=interpret)

    return cast(tuple[Array, Array], with_copies(run)(x, dz0, dz, w, a))


def _is_hoppers(a: Array, copies: int, interpret: bool) -> bool:
    """Whether the kernels for Hopper's warpgroups are faster: with fewer rows, the host does not keep up with launching them."""
    return not interpret and a.dtype == jnp.bfloat16 and len(a) * copies >= _HOPPERS_ROWS and hopper.is_here()


def _weight_gradient(interpret: bool, copies: int, a: Array, dz: Array) -> Array:
    n_in, n_out = a.shape[1], dz.shape[1]
    tiles = (n_in // _piece(n_in) + 1) * (n_out // _piece(n_out))
    steps = a.shape[0] // ROWS
    cuts = max(1, min(steps, _PROGRAMS // (tiles * copies)))
    kernel = functools.partial(_weight_kernel, rounds=-(-steps // cuts), step=_step(a, ROWS))
    out = jax.ShapeDtypeStruct((cuts, n_in + _ONES, n_out), jnp.float32)
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
    return launch(kernel, outs, grid=(a.shape[0] // ROWS * pieces,), name=name, warps=4, stages=3, interpret=interpret)


def _tile(width: int, columns: int) -> tuple[Array, Array]:
    """The program's rows and columns; programs of one row tile are neighbours."""
    program, pieces = pl.program_id(0), width // columns
    return (program // pieces) * ROWS + jnp.arange(ROWS), (program % pieces) * columns + jnp.arange(columns)


def _forward_kernel(a: Any, w: Any, b: Any, out: Any, *, slope: float, columns: int, step: int) -> None:
    row, column = _tile(w.shape[1], columns)

    def body(i: Array | int, z: Array) -> Array:
        k = i * step + jnp.arange(step)
        return z + dot(load(a.at[row[:, None], k[None, :]]), load(w.at[k[:, None], column[None, :]]))

    z = lax.fori_loop(0, w.shape[0] // step, body, jnp.broadcast_to(b[column][None, :], (ROWS, columns)))
    store(out.at[row[:, None], column[None, :]], jnp.maximum(z, slope * z))


def _backward_kernel(dz: Any, w: Any, a: Any, out: Any, *, slope: float, columns: int, step: int) -> None:
    row, column = _tile(w.shape[0], columns)

    def body(i: Array | int, da: Array) -> Array:
        k = i * step + jnp.arange(step)
        return da + dot(load(dz.at[row[:, None], k[None, :]]), load(w.at[column[:, None], k[None, :]]), trans_b=True)

    da = lax.fori_loop(0, w.shape[1] // step, body, jnp.zeros((ROWS, columns), jnp.float32))
    at = (row[:, None], column[None, :])
    store(out.at[at], jnp.where(load(a.at[at]) > 0, da, slope * da))


def _weight_kernel(a: Any, dz: Any, out: Any, *, rounds: int, step: int) -> None:
    n_rows, n_in, n_out = a.shape[0], a.shape[1], dz.shape[1]
    size_in, size_out = _piece(n_in), _piece(n_out)
    pieces_in, pieces_out = n_in // size_in, n_out // size_out
    program = pl.program_id(0)
    piece, column = program // pieces_out, (program % pieces_out) * size_out + jnp.arange(size_out)
    cut, piece = piece // (pieces_in + 1), piece % (pieces_in + 1)
    begin = cut * rounds * ROWS
    stop = jnp.clip((n_rows - begin) // step, 0, rounds * ROWS // step)

    def total(size: int, left: Callable[[Array], Array]) -> Array:
        def body(i: Array | int, total: Array) -> Array:
            row = begin + i * step + jnp.arange(step)
            return total + dot(left(row), load(dz.at[row[:, None], column[None, :]]), trans_a=True)

        return lax.fori_loop(0, stop, body, jnp.zeros((size, size_out), jnp.float32))

    @pl.when(piece < pieces_in)
    def weights() -> None:
        i = piece * size_in + jnp.arange(size_in)
        sums = total(size_in, lambda row: load(a.at[row[:, None], i[None, :]]))
        store(out.at[cut, i[:, None], column[None, :]], sums)

    @pl.when(piece == pieces_in)
    def biases() -> None:
        i = n_in + jnp.arange(_ONES)
        sums = total(_ONES, lambda row: jnp.ones((step, _ONES), a.dtype))
        store(out.at[cut, i[:, None], column[None, :]], sums)
