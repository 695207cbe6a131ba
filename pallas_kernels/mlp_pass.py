"""The two launches of a multilayer perceptron: forward, and backward down to every layer's gradient before activation.

    forward    a_0 = x,  z_l = a_l W_l + b_l,  a_{l+1} = leaky(z_l),  y = z_{n-1}
    backward   dz_{n-1} = dy,  dz_{l-1} = (dz_l W_l^T) leaky'(a_l),  db_l = sum over rows of dz_l

Program p owns rows p R, ..., p R + R - 1 and takes them through all layers, so that no activation leaves the chip
unless it is kept for the backward pass. Layers go two at a time, the way attention kernels do: a chunk of the first
layer's outputs is finished, multiplied at once into the second layer's sums and forgotten; the loop over chunks lets
the compiler fetch the next weights while the tensor cores work. Wide arrays are held as pieces of powers of two.
Operands are rounded to bfloat16 (or TF32), sums are float32. What is kept has
rows for whole tiles, so that only inputs, outputs and their gradient need a mask. The programs' sums db are added,
and the weights' gradients a_l^T dz_l formed, by the caller.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.backend import dot, load, plgpu, store
from pallas_kernels.mlp_plan import Padded, Plan, passes, pieces

Array = jax.Array
_ONES = 16  # rows of the product that sums a tile's rows: the tensor cores' shortest side

_FORWARD_SUMS, _BACKWARD_SUMS = 384, 256  # columns summed at once: more, and the compiler spills


class Inputs(NamedTuple):
    """Rows of inputs: `table[row]` with `values` in the columns after the table's real ones, or values alone.

    table `[T, padded width]`, row `[B]`; values `[B, V]`, of which the first is input number `offset`. Table and
    row, or values, may be None.
    """

    table: Any
    row: Any
    values: Any


class Gradients(NamedTuple):
    """Of the backward launch: dz_0, ..., dz_{n-1} `[rows, padded width]`, 0 beyond B; sums over each program's rows, side by side.

    db `[programs, sum of the padded widths]`.
    """

    dz: tuple[Any, ...]
    db: Any


class Step(NamedTuple):
    """One layer of a chain: its outputs' padded width, and functions of a tile `[R, ...]`.

    start(n, size): what columns n, ..., n + size - 1 of the sums begin with, float32.
    product(a, k, n, size): what inputs a, of which the first is number k, add to those columns.
    finish(z, n): what the next layer multiplies, from complete sums of which the first is column n; stores it if kept.
    read(n, size): columns n, ..., n + size - 1 of what finish stored; None if nothing is kept.
    """

    width: int
    start: Callable[[Any, int], Array]
    product: Callable[[Array, Any, Any, int], Array]
    finish: Callable[[Array, Any], Array]
    read: Callable[[Any, int], Array] | None


def forward(
    plan: Plan, padded: Padded, inputs: Inputs, offset: int, *, keep: bool, interpret: bool
) -> tuple[Array, tuple[Array, ...] | None]:
    """Outputs `[B, O]` float32; if `keep`, the products' left operands a_0, ..., a_{n-1} `[rows, padded width]`."""
    kept = tuple(jax.ShapeDtypeStruct((plan.rows, width), plan.operand) for width in plan.widths[:-1])
    outs = jax.ShapeDtypeStruct((plan.batch, plan.outputs), jnp.float32), kept if keep else None
    kernel = functools.partial(_forward_kernel, plan=plan, offset=offset, interpret=interpret)
    return _launch(kernel, outs, plan, "mlp_forward", interpret)(padded, inputs)


def backward(plan: Plan, padded: Padded, kept: tuple[Array, ...], grad: Array, *, interpret: bool) -> Gradients:
    """Gradients before every activation, and the programs' sums of them, from the outputs' gradient `[B, O]`."""
    outs = Gradients(
        dz=tuple(jax.ShapeDtypeStruct((plan.rows, width), plan.operand) for width in plan.widths[1:]),
        db=jax.ShapeDtypeStruct((plan.programs + _ONES - 1, sum(plan.widths[1:])), jnp.float32),
    )
    kernel = functools.partial(_backward_kernel, plan=plan, interpret=interpret)
    (outs,) = _launch(kernel, (outs,), plan, "mlp_backward", interpret)(padded, kept, grad)
    return outs._replace(db=outs.db[: plan.programs])


def _launch(kernel: Callable[..., None], outs: Any, plan: Plan, name: str, interpret: bool) -> Callable[..., Any]:
    """As `backend.launch`, with software pipelining of the kernels' loops."""
    return pl.pallas_call(
        kernel,
        out_shape=outs,
        grid=(plan.programs,),
        interpret=interpret,
        compiler_params=plgpu.CompilerParams(num_warps=plan.tiles.warps, num_stages=plan.tiles.stages),
        name=name,
    )


def _forward_kernel(
    padded: Padded,
    inputs: Inputs,
    y_out: Any,
    kept: tuple[Any, ...] | None,
    *,
    plan: Plan,
    offset: int,
    interpret: bool,
) -> None:
    row, real = _rows(plan)
    last = len(padded.w) - 1

    def keep(layer: int, a: Array, n: Any) -> Array:
        a = a.astype(plan.operand)
        if kept is not None:
            store(_tile(kept[layer], row, n, a.shape[1]), a)
        return a

    def step(layer: int) -> Step:
        w, b = padded.w[layer], padded.b[layer]

        def start(n: Any, size: int) -> Array:
            return jnp.broadcast_to(b[pl.ds(n, size)][None, :], (plan.tiles.rows, size))

        def product(a: Array, k: Any, n: Any, size: int) -> Array:
            return dot(a, w[pl.ds(k, a.shape[1]), pl.ds(n, size)])

        def finish(z: Array, n: Any) -> Array:
            if layer < last:
                return keep(layer + 1, jnp.maximum(z, plan.negative_slope * z), n)
            column = n + jnp.arange(z.shape[1])
            store(_tile(y_out, row, n, z.shape[1]), z, mask=real & (column < plan.outputs)[None, :])
            return z

        read = None if kept is None or layer == last else functools.partial(_read, kept[layer + 1], row)
        return Step(plan.widths[layer + 1], start, product, finish, read)

    x = [keep(0, _input_tile(inputs, offset, row, real, n, size), n) for n, size in pieces(plan.widths[0])]
    _chain(x, [step(layer) for layer in range(last + 1)], plan.tiles.chunk, _FORWARD_SUMS, interpret)


def _input_tile(inputs: Inputs, offset: int, row: Array, real: Array, n: int, size: int) -> Array:
    column = n + jnp.arange(size)
    x = jnp.zeros((row.shape[0], size), jnp.float32)
    if inputs.table is not None:
        index = load(inputs.row.at[row], mask=real[:, 0], other=0)
        index = jnp.clip(index, 0, inputs.table.shape[0] - 1)
        x = inputs.table[index[:, None], column[None, :]].astype(jnp.float32)
    if inputs.values is not None:
        at = inputs.values.at[row[:, None], column[None, :] - offset]
        mask = real & ((column >= offset) & (column < offset + inputs.values.shape[1]))[None, :]
        x = x + load(at, mask=mask, other=0.0).astype(jnp.float32)
    return x


def _backward_kernel(
    padded: Padded, kept: tuple[Any, ...], grad: Any, outs: Gradients, *, plan: Plan, interpret: bool
) -> None:
    row, real = _rows(plan)
    program = pl.program_id(0) + jnp.arange(_ONES)  # of these rows of db the first alone is stored
    first = (jnp.arange(_ONES) == 0)[:, None]
    ones = jnp.ones((_ONES, plan.tiles.rows), plan.operand)

    def keep(layer: int, dz: Array, n: Any) -> Array:
        dz = dz.astype(plan.operand)
        store(_tile(outs.dz[layer], row, n, dz.shape[1]), dz)
        total = dot(ones, dz)  # every row is the sum: adding in registers took hundreds of shuffles
        at = _tile(outs.db, program, n + sum(plan.widths[1 : layer + 1]), dz.shape[1])
        store(at, total, mask=jnp.broadcast_to(first, total.shape))
        return dz

    def step(layer: int) -> Step:
        """From dz of the layer to dz of the one before it."""
        w = padded.w[layer]

        def start(n: Any, size: int) -> Array:
            del n
            return jnp.zeros((plan.tiles.rows, size), jnp.float32)

        def product(dz: Array, k: Any, n: Any, size: int) -> Array:
            return dot(dz, w[pl.ds(n, size), pl.ds(k, dz.shape[1])], trans_b=True)

        def finish(da: Array, n: Any) -> Array:
            a = _read(kept[layer], row, n, da.shape[1])
            return keep(layer - 1, jnp.where(a > 0, da, plan.negative_slope * da), n)

        return Step(plan.widths[layer], start, product, finish, functools.partial(_read, outs.dz[layer - 1], row))

    def grad_tile(n: int, size: int) -> Array:
        mask = real & (n + jnp.arange(size) < plan.outputs)[None, :]
        return load(_tile(grad, row, n, size), mask=mask, other=0.0)

    last = len(padded.w) - 1
    dy = [keep(last, grad_tile(n, size), n) for n, size in pieces(plan.widths[-1])]
    _chain(dy, [step(layer) for layer in range(last, 0, -1)], plan.tiles.chunk, _BACKWARD_SUMS, interpret)


def _rows(plan: Plan) -> tuple[Array, Array]:
    """The program's row numbers `[R]`, and which of them are real `[R, 1]`."""
    row = pl.program_id(0) * plan.tiles.rows + jnp.arange(plan.tiles.rows)
    return row, (row < plan.batch)[:, None]


def _tile(ref: Any, row: Array, n: Any, size: int) -> Any:
    return ref.at[row[:, None], (n + jnp.arange(size))[None, :]]


def _read(ref: Any, row: Array, n: Any, size: int) -> Array:
    return load(_tile(ref, row, n, size))


def _chain(a: list[Array], steps: Sequence[Step], chunk: int, summed: int, interpret: bool) -> None:
    """Takes a tile, given in pieces, through all steps, two at a time."""
    for first, second in zip(steps[0::2], steps[1::2], strict=False):
        a = _two_steps(a, first, second, chunk, summed, interpret)
    if len(steps) % 2:
        last = steps[-1]

        def body(n: Any, size: int, carry: tuple[()]) -> tuple[()]:
            last.finish(_sums(a, last, n, size), n)
            return carry

        _for_chunks(last, chunk, body, ())


def _two_steps(a: list[Array], first: Step, second: Step, chunk: int, summed: int, interpret: bool) -> list[Array]:
    """The second step's outputs in pieces, `summed` columns or fewer at once.

    Where that takes several passes, the later ones read what the first kept of the first step, or do that step again.
    The outputs themselves are read back too: so they wait in shared memory for the next step, and the registers that
    they would fill are free for its sums.
    """
    outputs, done = [], False
    for group in passes(second.width, summed):

        def body(n: Any, size: int, sums: Any, group: Any = group, done: bool = done) -> Any:
            middle = first.read(n, size) if done and first.read else first.finish(_sums(a, first, n, size), n)
            return tuple(z + second.product(middle, n, *piece) for z, piece in zip(sums, group, strict=True))

        sums = _for_chunks(first, chunk, body, tuple(second.start(*piece) for piece in group))
        outputs += [second.finish(z, n) for z, (n, _) in zip(sums, group, strict=True)]
        done = True
        if first.read is not None and not interpret:
            plgpu.debug_barrier()  # before the program's threads read what others of them stored
    return outputs if second.read is None else [second.read(*piece) for piece in pieces(second.width)]


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
