"""How a multilayer perceptron is cut for its kernels: padded widths and weights, pieces of powers of two, tile sizes."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.mlp_inputs import Gathered, Layers, Products, inside
from pallas_kernels.mlp_layers import ROWS
from pallas_kernels.numerics import padded

Array = jax.Array

_STEP = 64  # widths beyond this are padded to a multiple of it, smaller ones to a power of two
_PIECE = 128  # columns held as one array: wider ones made the compiler spill
WIDEST = 512  # hidden layer, beyond which the registers do not hold a tile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
    """How the batch is cut: rows a program, columns of a layer at a time, warps, stages of the pipelined weights."""

    rows: int
    chunk: int
    warps: int
    stages: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Static description of a launch: rows of the batch, padded widths (the inputs' first), real width of the outputs."""

    batch: int
    widths: tuple[int, ...]
    outputs: int
    negative_slope: float
    products: Products
    tiles: Tiles

    @property
    def operand(self) -> Any:
        """The dtype of what is multiplied and kept; the tensor cores themselves round float32 to TF32."""
        return jnp.bfloat16 if self.products == "bfloat16" else jnp.float32

    @property
    def programs(self) -> int:
        """Number of programs in the grid."""
        return -(-self.batch // self.tiles.rows)


class Padded(NamedTuple):
    """Weights `[in, out]` in the operands' dtype and biases `[out]` float32 of every layer, zero beyond the real widths."""

    w: tuple[Any, ...]
    b: tuple[Any, ...]


def make_plan(layers: Layers, batch: int, negative_slope: float, products: Products) -> Plan:
    """The launch of these layers on that many rows."""
    widths = (layers[0][0].shape[0], *(bias.shape[0] for _, bias in layers))
    return Plan(
        batch=batch,
        widths=tuple(map(padded_width, widths)),
        outputs=widths[-1],
        negative_slope=negative_slope,
        products=products,
        tiles=choose_tiles(batch, products),
    )


def choose_tiles(batch: int, products: Products) -> Tiles:
    """Many rows share one pass over the weights; a small batch is cut finer so that every multiprocessor has a tile.

    `scripts/report_registers.py` shows what the compiler makes of each.
    """
    if products == "tf32":
        return Tiles(rows=64, chunk=16, warps=8, stages=2)
    if batch <= 64 * 132:
        return Tiles(rows=64, chunk=32, warps=4, stages=3)
    return Tiles(rows=128, chunk=64, warps=8, stages=3)


def pad_layers(layers: Layers, widths: Sequence[int], operand: Any) -> Padded:
    """Weights, in the operands' dtype, and biases as the kernels read them; widths: padded, the inputs' first."""
    w, b = [], []
    for (kernel, bias), rows, columns in zip(layers, widths[:-1], widths[1:], strict=True):
        w.append(_pad(kernel.astype(operand), rows, columns))
        b.append(_pad(bias.astype(jnp.float32), columns))
    return Padded(tuple(w), tuple(b))


def pad_table(table: Array, width: int, operand: Any) -> Array:
    """A table `[T, F]` of inputs with the padded width and the operands' dtype, so that its rows load in one piece."""
    return _pad(table.astype(operand), table.shape[0], width)


def pad_rows(inputs: Array | Gathered, width: int, operand: Any) -> Array:
    """All inputs `[rows, width]` in the operands' dtype, with rows for whole tiles of the kernels that differentiate.

    The last column is all ones where no input has it, and meets weights of zero: sums with it are those of a bias.
    The same of whatever network reads them, so that under jit actor and critic share one array.
    """
    if isinstance(inputs, Gathered):
        x, n_inputs = _gather(inputs, width, operand)
    else:
        x, n_inputs = inputs.astype(operand), inputs.shape[1]
    rows = _pad(x, -(-len(x) // ROWS) * ROWS, width)
    return rows if n_inputs == width else jnp.where(jnp.arange(width) == width - 1, jnp.ones((), operand), rows)


def _gather(inputs: Gathered, width: int, operand: Any) -> tuple[Array, int]:
    """The inputs `[B, width]`, zero behind the columns that there are, and how many those are.

    Rows of a padded table lie on whole sectors of memory, and values are added in columns that are zero there.
    """
    table, row, values = inputs
    n_inputs = table.shape[1]
    x = pad_table(table, width, operand)[inside(row, len(table))]
    if values is not None:
        behind = width - n_inputs - values.shape[1]
        x = x + jnp.pad(values.astype(operand), ((0, 0), (n_inputs, behind)))
        n_inputs += values.shape[1]
    return x, n_inputs


def padded_width(width: int) -> int:
    """The kernels' width of a layer: a power of two of at least 16, or a multiple of 64."""
    return padded(width) if width <= _STEP else -(-width // _STEP) * _STEP


def pieces(width: int) -> tuple[tuple[int, int], ...]:
    """A padded width as (start, size) of powers of two, the largest first."""
    found, start = [], 0
    while start < width:
        size = min(_PIECE, 1 << ((width - start).bit_length() - 1))
        found.append((start, size))
        start += size
    return tuple(found)


def passes(width: int, most: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The pieces of a padded width in as few groups as hold at most that many columns each."""
    groups: list[tuple[tuple[int, int], ...]] = []
    for piece in pieces(width):
        if groups and sum(size for _, size in groups[-1]) + piece[1] <= most:
            groups[-1] = (*groups[-1], piece)
        else:
            groups.append((piece,))
    return tuple(groups)


def _pad(x: Array, *shape: int) -> Array:
    return jnp.pad(x, [(0, wanted - size) for wanted, size in zip(shape, x.shape, strict=True)])
