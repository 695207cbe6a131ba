"""A perceptron with one output, evaluated on Hopper in one launch: all its weights stream by, no activation is stored.

    h_1 = leaky(x W_0 + b_0),  h_2 = leaky(h_1 W_1 + b_1), ...    value = h_n w

Layers go in pairs. PIECE columns of a pair's first layer are computed, activated and multiplied into the sums of its
second at once, out of registers; what is then activated is the next pair's input, in shared memory. A second layer that
is too wide for that is summed in groups of columns, and its first computed for each.

A block walks tiles of ROWS rows, one for each of two warpgroups at a time. A third copies the weights ahead for both, in
the order of their use, as units `[STEP, 2 PIECE]`: a step's rows of 2 PIECE columns, or two blocks `[STEP, PIECE]`
side by side.

Operands are rounded to bfloat16, sums are float32.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import hopper
from pallas_kernels.hopper import BLOCK, SHARED_BYTES, STEP, WARPGROUP, mosaic
from pallas_kernels.mlp_plan import Padded

Array = jax.Array

ROWS = 64  # a warpgroup's tile
PIECE = 64  # columns
_WARPGROUPS = 2  # that multiply
_REGISTERS, _COPYING_REGISTERS = 240, 24  # of a thread that multiplies, and of one that copies
_WIDEST_INPUT = 384  # of a pair, in shared memory
_GROUP = 256  # columns of a tile that the registers hold as sums
_HELD = 5  # units that wait for a product at once: two of a group, three of the next piece's inputs
_UNIT_BYTES = 2 * STEP * 2 * PIECE


def fits(widths: Sequence[int]) -> bool:
    """Whether there is a kernel for these padded widths, the inputs' first and the single output's last.

    An odd number of hidden layers: pairs, and one whose output meets w.
    """
    inputs, *hidden, _ = widths
    firsts, seconds = hidden[::2], hidden[1::2]
    return (
        inputs == STEP
        and len(hidden) % 2 == 1
        and all(width % PIECE == 0 for width in firsts)
        and (len(hidden) == 1 or firsts[0] % (2 * PIECE) == 0)
        and all(width % (2 * PIECE) == 0 and width <= _WIDEST_INPUT for width in seconds)
        and all(width <= _GROUP for width in seconds[1:])  # they take their own input's place
        and firsts[-1] <= _GROUP
        and _slots(hidden) >= _HELD
    )


def evaluate(padded: Padded, x: Array, *, slope: float, interpret: bool = False) -> Array:
    """The output `[rows]` float32 of inputs x `[rows, STEP]`; rows is a multiple of 128."""
    units = jnp.concatenate(list(_units(padded.w[:-1])))
    output = padded.w[-1][:, 0].astype(jnp.float32)
    vectors = jnp.concatenate([*padded.b[:-1], output]).reshape(-1, PIECE)
    pairs = len(x) // (_WARPGROUPS * ROWS)
    plan = _Plan(
        widths=tuple(b.shape[0] for b in padded.b[:-1]),
        units=len(units),
        pairs=pairs,
        blocks=min(pairs, hopper.multiprocessors()),
        slope=slope,
    )
    run = hopper.launch(
        functools.partial(_kernel, plan),
        jax.ShapeDtypeStruct((len(x),), jnp.float32),
        blocks=plan.blocks,
        warpgroups=_WARPGROUPS + 1,
        name="mlp_value",
        interpret=interpret,
    )
    return cast(Array, run(x, units, vectors)) + padded.b[-1][0]


def _units(w: Sequence[Array]) -> Iterator[Array]:
    """The weights `[units, STEP, 2 PIECE]` in the order in which `_Tile` multiplies them."""
    for first, second in zip(w[:-1:2], w[1::2], strict=True):
        pieces = first.shape[1] // PIECE
        if len(first) == STEP:  # two pieces of its columns share a unit
            pieces //= 2
            one = first.reshape(STEP, pieces, 1, 2 * PIECE).transpose(1, 2, 0, 3)
        else:
            one = _side_by_side(first)
        for begin, size in _groups(second.shape[1]):
            two = second[:, begin : begin + size].reshape(pieces, -1, STEP, size // (2 * PIECE), 2 * PIECE)
            two = two.transpose(0, 1, 3, 2, 4).reshape(pieces, -1, STEP, 2 * PIECE)
            yield jnp.concatenate([one, two], axis=1).reshape(-1, STEP, 2 * PIECE)
    yield _side_by_side(w[-1]).reshape(-1, STEP, 2 * PIECE)


def _groups(width: int) -> list[tuple[int, int]]:
    """Columns (begin, size) of a second layer that are summed at once: more would not leave registers for the first."""
    return [(begin, min(_GROUP, width - begin)) for begin in range(0, width, _GROUP)]


def _side_by_side(w: Array) -> Array:
    """For each piece of its columns, blocks of STEP rows in twos: `[pieces, units, STEP, 2 PIECE]`."""
    n_in, n_out = w.shape
    w = jnp.pad(w, ((0, -n_in % (2 * STEP)), (0, 0)))
    blocks = w.reshape(-1, 2, STEP, n_out // PIECE, PIECE).transpose(3, 0, 2, 1, 4)
    return blocks.reshape(n_out // PIECE, -1, STEP, 2 * PIECE)


def _widest(hidden: Sequence[int]) -> int:
    """Of the second layers."""
    return max(hidden[1::2], default=0)


def _slots(hidden: Sequence[int]) -> int:
    """Units that shared memory holds beside a tile's inputs and vectors."""
    others = 2 * _WARPGROUPS * ROWS * (STEP + _widest(hidden)) + 4 * (sum(hidden) + hidden[-1])
    return (SHARED_BYTES - others) // _UNIT_BYTES


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """Static description: hidden widths, units of weights a tile, pairs of tiles, blocks that share them."""

    widths: tuple[int, ...]
    units: int
    pairs: int
    blocks: int
    slope: float

    @property
    def slots(self) -> int:
        """Units in shared memory."""
        return min(self.units, _slots(self.widths))


class _Shared(NamedTuple):
    """A block's shared memory, and the barriers that say what has arrived in it and what is free again."""

    vectors: Any
    vectors_arrived: Any
    x: Any
    x_arrived: Any
    x_free: Any
    a: Any  # pieces of a pair's input
    ring: Any
    arrived: Any
    free: Any


def _kernel(plan: _Plan, x: Any, units: Any, vectors: Any, out: Any) -> None:
    shared = _Shared(
        vectors=mosaic.SMEM(vectors.shape, jnp.float32),
        vectors_arrived=mosaic.Barrier(),
        x=hopper.tiles(_WARPGROUPS, ROWS, STEP),
        x_arrived=mosaic.Barrier(num_barriers=_WARPGROUPS),
        x_free=mosaic.Barrier(num_barriers=_WARPGROUPS),
        a=hopper.tiles(_WARPGROUPS, _widest(plan.widths) // PIECE, ROWS, PIECE) if len(plan.widths) > 1 else None,
        ring=hopper.tiles(plan.slots, STEP, 2 * PIECE),
        arrived=mosaic.Barrier(num_barriers=plan.slots),
        free=mosaic.Barrier(num_arrivals=_WARPGROUPS, num_barriers=plan.slots),
    )
    scope = functools.partial(_block, plan, x, units, vectors, out)
    pl.run_scoped(lambda *s: scope(_Shared(*s)), *shared, collective_axes=WARPGROUP)


def _block(plan: _Plan, x: Any, units: Any, vectors: Any, out: Any, shared: _Shared) -> None:
    warpgroup, block = lax.axis_index(WARPGROUP), lax.axis_index(BLOCK)
    mine = (plan.pairs - block + plan.blocks - 1) // plan.blocks

    def rows(i: Array, warpgroup: Array | int) -> Any:
        """Of the warpgroup's i-th tile."""
        return pl.ds(((i * plan.blocks + block) * _WARPGROUPS + warpgroup) * ROWS, ROWS)

    def copy() -> None:
        mosaic.set_max_registers(_COPYING_REGISTERS, action="decrease")
        mosaic.copy_gmem_to_smem(vectors, shared.vectors, shared.vectors_arrived)
        _copy(plan, x, units, shared, mine, rows)

    def multiply() -> None:
        mosaic.set_max_registers(_REGISTERS, action="increase")
        mosaic.barrier_wait(shared.vectors_arrived)

        def tile(i: Array, _: None) -> None:
            out[rows(i, warpgroup)] = _Tile(plan, shared, warpgroup, i * plan.units).value()

        lax.fori_loop(0, mine, tile, None)

    lax.cond(warpgroup < _WARPGROUPS, multiply, copy)


def _copy(
    plan: _Plan, x: Any, units: Any, shared: _Shared, mine: Array, rows: Callable[[Array, Array | int], Any]
) -> None:
    def tile(i: Array, _: None) -> None:
        for w in range(_WARPGROUPS):
            pl.when(i > 0)(functools.partial(mosaic.barrier_wait, shared.x_free.at[w]))
            mosaic.copy_gmem_to_smem(x.at[rows(i, w), :], shared.x.at[w], shared.x_arrived.at[w])
        lax.fori_loop(0, plan.units, lambda n, _: unit(i * plan.units + n, n), None)

    def unit(n: Array, source: Array) -> None:
        slot = lax.rem(n, plan.slots)
        pl.when(n >= plan.slots)(functools.partial(mosaic.barrier_wait, shared.free.at[slot]))
        mosaic.copy_gmem_to_smem(units.at[source], shared.ring.at[slot], shared.arrived.at[slot])

    lax.fori_loop(0, mine, tile, None)
    # nothing may be on its way, or be waited for, when the block ends
    for w in range(_WARPGROUPS):
        mosaic.barrier_wait(shared.x_free.at[w])
    for n in range(plan.slots):
        mosaic.barrier_wait(shared.free.at[n])


class _Tile:
    """A warpgroup's walk through the layers with one tile. Counts, while it is traced, what it takes from shared memory."""

    def __init__(self, plan: _Plan, shared: _Shared, warpgroup: Array, first_unit: Array) -> None:
        self.plan, self.shared, self.warpgroup, self.first_unit = plan, shared, warpgroup, first_unit
        self.taken = self.released = 0
        self.half: int | None = None  # the unit whose second half is still to be multiplied

    def value(self) -> Array:
        """The outputs `[ROWS]`."""
        mosaic.barrier_wait(self.shared.x_arrived.at[self.warpgroup])
        widths = self.plan.widths
        a = [self.shared.x.at[self.warpgroup]]
        for layer in range(0, len(widths) - 1, 2):
            for group in _groups(widths[layer + 1]):
                self._second(a, layer, *group)
            if layer == 0:
                mosaic.barrier_arrive(self.shared.x_free.at[self.warpgroup])
            mosaic.commit_smem()
            a = [self.shared.a.at[self.warpgroup, n] for n in range(widths[layer + 1] // PIECE)]
        last = len(widths) - 1
        hidden = [self._first(a, last, n) for n in range(0, widths[last], PIECE)]
        if last == 0:
            mosaic.barrier_arrive(self.shared.x_free.at[self.warpgroup])
        products = [h.astype(jnp.float32) * self._vector(last + 1, n * PIECE, h.shape) for n, h in enumerate(hidden)]
        return functools.reduce(jnp.add, [jnp.sum(product, axis=1) for product in products])

    def _second(self, a: Sequence[Any], layer: int, begin: int, size: int) -> None:
        """A group of columns of the layer behind this one, activated: the next pair's input."""

        def sums(total: Any) -> Array:
            for n in range(0, self.plan.widths[layer], PIECE):
                h = self._first(a, layer, n, shares_units=len(a) == 1)
                for m in range(0, size, 2 * PIECE):
                    self._multiply(total.at[:, pl.ds(m, 2 * PIECE)], h, self._unit())
            return self._read(total)

        z = pl.run_scoped(sums, mosaic.ACC((ROWS, size), jnp.float32))
        for n in range(0, size, PIECE):
            h = self._activate(z[:, n : n + PIECE], layer + 1, begin + n)
            self.shared.a[self.warpgroup, (begin + n) // PIECE] = h

    def _first(self, a: Sequence[Any], layer: int, column: int, *, shares_units: bool = False) -> Array:
        """PIECE columns of a layer, activated; a: its inputs in pieces; whether the piece after it shares a unit."""

        def sums(total: Any) -> Array:
            for piece in a:
                self._multiply(total, piece, self._half())
            if not shares_units:
                self.half = None  # zeros that made the blocks even
            return self._read(total)

        return self._activate(pl.run_scoped(sums, mosaic.ACC((ROWS, PIECE), jnp.float32)), layer, column)

    def _activate(self, z: Array, layer: int, column: int) -> Array:
        z = z + self._vector(layer, column, z.shape)
        return jnp.maximum(z, self.plan.slope * z).astype(jnp.bfloat16)

    def _vector(self, layer: int, column: int, shape: tuple[int, ...]) -> Array:
        """PIECE entries of a layer's bias, or of the output's weights behind the last, in every row."""
        n = (sum(self.plan.widths[:layer]) + column) // PIECE
        return lax.broadcast_in_dim(hopper.load(self.shared.vectors.at[n], of_columns=True), shape, [1])

    def _multiply(self, total: Any, a: Any, w: Any) -> None:
        """Adds a w to the sums, some time before they are read; a in shared memory or in registers."""
        mosaic.wgmma(total, a, w)

    def _half(self) -> Any:
        if self.half is None:
            unit, self.half = self._unit(), self.taken - 1
            return unit.at[:, pl.ds(0, PIECE)]
        unit, self.half = self._at(self.half), None
        return unit.at[:, pl.ds(PIECE, PIECE)]

    def _unit(self) -> Any:
        mosaic.barrier_wait(self.shared.arrived.at[self._slot(self.taken)])
        self.taken += 1
        return self._at(self.taken - 1)

    def _at(self, n: int) -> Any:
        return self.shared.ring.at[self._slot(n)]

    def _read(self, total: Any) -> Array:
        """The sums, once all products are done; whose units are free then, but for one that is half used."""
        z = total[...]
        for n in range(self.released, self.taken if self.half is None else self.half):
            mosaic.barrier_arrive(self.shared.free.at[self._slot(n)])
            self.released = n + 1
        return cast(Array, z)

    def _slot(self, n: int) -> Array:
        return lax.rem(self.first_unit + n, self.plan.slots)
