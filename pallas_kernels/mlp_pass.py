"""A multilayer perceptron forward in one launch: no activation leaves the chip.

    a_0 = x,  z_l = a_l W_l + b_l,  a_{l+1} = leaky(z_l),  y = z_{n-1}

Program p owns rows p R, ..., p R + R - 1 and takes them through all layers. Layers go two at a time, the way attention
kernels do: a chunk of the first layer's outputs is finished, multiplied at once into the second layer's sums and
forgotten; the loop over chunks lets the compiler fetch the next weights while the tensor cores work. Wide arrays are
held as pieces of powers of two. Operands are rounded to bfloat16 (or TF32), sums are float32.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.backend import dot, launch, load, store
from pallas_kernels.mlp_inputs import inside
from pallas_kernels.mlp_plan import Padded, Plan, passes, pieces

Array = jax.Array

_SUMS = 384  # columns summed at once: more, and the compiler spills


class Inputs(NamedTuple):
    """Rows of inputs: `table[row]` with `values` in the columns after the table's real ones, or values alone.

    table `[T, padded width]`, row `[B]`; values `[B, V]`, of which the first is input number `offset`. Table and
    row, or values, may be None.
    """

    table: Any
    row: Any
    values: Any


class Step(NamedTuple):
    """One layer of the chain: its outputs' padded width, and functions of a tile `[R, ...]`.

    start(n, size): what columns n, ..., n + size - 1 of the sums begin with, float32.
    product(a, k, n, size): what inputs a, of which the first is number k, add to those columns.
    finish(z, n): what the next layer multiplies, from complete sums of which the first is column n; the last layer stores.
    """

    width: int
    start: Callable[[Any, int], Array]
    product: Callable[[Array, Any, Any, int], Array]
    finish: Callable[[Array, Any], Array]


def forward(plan: Plan, padded: Padded, inputs: Inputs, offset: int, *, interpret: bool) -> Array:
    """Outputs `[B, O]` float32; `offset` is the number of the table's real columns."""
    out = jax.ShapeDtypeStruct((plan.batch, plan.outputs), jnp.float32)
    kernel = functools.partial(_kernel, plan=plan, offset=offset)
    tiles = plan.tiles
    run = launch(
        kernel,
        out,
        grid=(plan.programs,),
        name="mlp_forward",
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=interpret,
    )
    return cast(Array, run(padded, inputs))


def _kernel(padded: Padded, inputs: Inputs, out: Any, *, plan: Plan, offset: int) -> None:
    row = pl.program_id(0) * plan.tiles.rows + jnp.arange(plan.tiles.rows)
    real = (row < plan.batch)[:, None]
    last = len(padded.w) - 1

    def step(layer: int) -> Step:
        w, b = padded.w[layer], padded.b[layer]

        def start(n: Any, size: int) -> Array:
            return jnp.broadcast_to(b[pl.ds(n, size)][None, :], (plan.tiles.rows, size))

        def product(a: Array, k: Any, n: Any, size: int) -> Array:
            return dot(a, w[pl.ds(k, a.shape[1]), pl.ds(n, size)])

        def finish(z: Array, n: Any) -> Array:
            if layer < last:
                return jnp.maximum(z, plan.negative_slope * z).astype(plan.operand)
            column = n + jnp.arange(z.shape[1])
            store(out.at[row[:, None], column[None, :]], z, mask=real & (column < plan.outputs)[None, :])
            return z

        return Step(plan.widths[layer + 1], start, product, finish)

    x = [_input_tile(inputs, offset, row, real, n, size).astype(plan.operand) for n, size in pieces(plan.widths[0])]
    _chain(x, [step(layer) for layer in range(last + 1)], plan.tiles.chunk)


def _input_tile(inputs: Inputs, offset: int, row: Array, real: Array, n: int, size: int) -> Array:
    column = n + jnp.arange(size)
    x = jnp.zeros((row.shape[0], size), jnp.float32)
    if inputs.table is not None:
        index = load(inputs.row.at[row], mask=real[:, 0], other=0)
        index = inside(index, inputs.table.shape[0])
        x = inputs.table[index[:, None], column[None, :]].astype(jnp.float32)
    if inputs.values is not None:
        at = inputs.values.at[row[:, None], column[None, :] - offset]
        mask = real & ((column >= offset) & (column < offset + inputs.values.shape[1]))[None, :]
        x = x + load(at, mask=mask, other=0.0).astype(jnp.float32)
    return x


def _chain(a: list[Array], steps: Sequence[Step], chunk: int) -> None:
    """Takes a tile, given in pieces, through all steps, two at a time."""
    for first, second in zip(steps[0::2], steps[1::2], strict=False):
        a = _two_steps(a, first, second, chunk)
    if len(steps) % 2:
        last = steps[-1]

        def body(n: Any, size: int, carry: tuple[()]) -> tuple[()]:
            last.finish(_sums(a, last, n, size), n)
            return carry

        _for_chunks(last, chunk, body, ())


def _two_steps(a: list[Array], first: Step, second: Step, chunk: int) -> list[Array]:
    """The second step's outputs in pieces, _SUMS columns or fewer at once; each pass over them does the first step anew."""
    outputs = []
    for group in passes(second.width, _SUMS):

        def body(n: Any, size: int, sums: Any, group: Any = group) -> Any:
            middle = first.finish(_sums(a, first, n, size), n)
            return tuple(z + second.product(middle, n, *piece) for z, piece in zip(sums, group, strict=True))

        sums = _for_chunks(first, chunk, body, tuple(second.start(*piece) for piece in group))
        outputs += [second.finish(z, n) for z, (n, _) in zip(sums, group, strict=True)]
    return outputs


def _sums(a: Sequence[Array], step: Step, n: Any, size: int) -> Array:
    total, k = step.start(n, size), 0
    for piece in a:
        total, k = total + step.product(piece, k, n, size), k + piece.shape[1]
    return total


def _for_chunks(step: Step, chunk: int, body: Callable[[Any, int, Any], Any], carry: Any) -> Any:
    size = min(chunk, step.width)
    if step.width == size:
        return body(0, size, carry)
    return lax.fori_loop(0, step.width // size, lambda i, carry: body(i * size, size, carry), carry)
