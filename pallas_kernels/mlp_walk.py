"""Layers of a perceptron on Hopper: a block keeps its columns' weights on chip and walks the rows.

    forward    a' = leaky(a W + b)
    backward   dz = (dz' W^T) leaky'(a)
    first      x^T dz of such a dz, which stays on chip: the gradient of the first layer, whose own inputs need none

A block owns some columns of the result and its share of the tiles of ROWS rows; its part of W is copied into shared
memory once. Two warpgroups take the block's tiles in turn, so that one multiplies while the other activates and stores,
and each is fed through a ring of slots by a warpgroup that does nothing but start copies. What `backward` multiplies
with leaky'(a) arrives meanwhile where its result will be put together.

The contract is that of `mlp_layers`, in bfloat16. Sums are float32.
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import hopper
from pallas_kernels.hopper import BLOCK, SHARED_BYTES, STEP, WARPGROUP, mosaic

Array = jax.Array
Kind = Literal["forward", "backward", "first"]

ROWS = 64  # a tile
_WALKERS = 2  # warpgroups that multiply, and as many that copy for them
_REGISTERS = 208  # of a thread that multiplies
_MOST_SLOTS = 8  # of a ring
_LEAST_SLOTS = 4  # with fewer, blocks of fewer columns were faster
_WAVES = 4  # of blocks, where a vmap runs many walks at once, so that the last one need not be full


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """One walk: rows, summed and width are the product's sizes, columns a block's, slots a ring's."""

    kind: Kind
    rows: int
    summed: int
    width: int
    columns: int
    slots: int
    workers: int  # blocks that share a tile's columns
    slope: float

    @property
    def steps(self) -> int:
        return self.summed // STEP

    @property
    def pieces(self) -> int:
        return self.columns // STEP

    @property
    def blocks(self) -> int:
        """That share a tile's rows."""
        return self.width // self.columns


class _Shared(NamedTuple):
    """A block's shared memory, and the barriers that say what has arrived in it and what is free again."""

    weights: Any
    weights_arrived: Any
    ring: Any
    arrived: Any
    free: Any
    tile: Any  # what comes with a tile, then its result
    inputs: Any  # the first layer's, or None
    tile_arrived: Any


def fits(summed: int, width: int) -> bool:
    """Whether there is a walk with a product over `summed` entries and results of that width."""
    return summed % STEP == 0 and width % STEP == 0 and _slots(summed, STEP, "first") >= _LEAST_SLOTS


def forward_layer(a: Array, w: Array, b: Array, *, slope: float, copies: int = 1, interpret: bool = False) -> Array:
    """Activated outputs `[rows, out]` of a `[rows, in]`, w `[in, out]`, b `[out]` float32. copies: run at once by a vmap."""
    return _launch("forward", a, w, b, slope=slope, copies=copies, interpret=interpret)


def backward_layer(dz: Array, w: Array, a: Array, *, slope: float, copies: int = 1, interpret: bool = False) -> Array:
    """The gradient `[rows, in]` before the activation that gave a `[rows, in]`, of dz `[rows, out]` and w `[in, out]`."""
    return _launch("backward", dz, w, a, slope=slope, copies=copies, interpret=interpret)


def first_layer_gradient(
    dz: Array, w: Array, a: Array, x: Array, *, slope: float, copies: int = 1, interpret: bool = False
) -> Array:
    """x^T dz0 `[STEP, in]` float32 of x `[rows, STEP]`, with dz0 what `backward_layer` gives of the rest."""
    return jnp.sum(_launch("first", dz, w, a, x, slope=slope, copies=copies, interpret=interpret), axis=0)


def _launch(kind: Kind, a: Array, w: Array, *rest: Array, slope: float, copies: int, interpret: bool) -> Array:
    summed, width = w.shape if kind == "forward" else w.shape[::-1]
    columns = next(
        size for size in (2 * STEP, STEP) if width % size == 0 and _slots(summed, size, kind) >= _LEAST_SLOTS
    )
    wanted = hopper.multiprocessors() * (1 if copies == 1 else _WAVES) // (copies * (width // columns))
    plan = _Plan(
        kind=kind,
        rows=len(a),
        summed=summed,
        width=width,
        columns=columns,
        slots=_slots(summed, columns, kind),
        workers=max(1, min(len(a) // ROWS, wanted)),
        slope=slope,
    )
    out = jax.ShapeDtypeStruct((len(a), width), a.dtype)
    if kind == "first":
        out = jax.ShapeDtypeStruct((_WALKERS * plan.workers, STEP, width), jnp.float32)
    run = hopper.launch(
        functools.partial(_kernel, plan),
        out,
        blocks=plan.blocks * plan.workers,
        warpgroups=2 * _WALKERS,
        name=f"mlp_walk_{kind}",
        interpret=interpret,
    )
    return cast(Array, run(a, w, *rest))


def _slots(summed: int, columns: int, kind: Kind) -> int:
    """Slots of each ring that shared memory holds beside the weights and the walkers' tiles."""
    entries = summed * columns + _WALKERS * ROWS * (columns + (STEP if kind == "first" else 0))
    return min(_MOST_SLOTS, (SHARED_BYTES - 2 * entries) // (2 * _WALKERS * ROWS * STEP))


def _kernel(plan: _Plan, *refs: Any) -> None:
    walkers, ring = (_WALKERS,), _WALKERS * plan.slots
    weights = (plan.steps, STEP, plan.columns) if plan.kind == "forward" else (plan.steps, plan.columns, STEP)
    is_first = plan.kind == "first"
    shared = _Shared(
        weights=hopper.tiles(*weights),
        weights_arrived=mosaic.Barrier(num_arrivals=plan.steps),
        ring=hopper.tiles(ring, ROWS, STEP),
        arrived=mosaic.Barrier(num_barriers=ring),
        free=mosaic.Barrier(num_barriers=ring),
        tile=hopper.tiles(*walkers, plan.pieces, ROWS, STEP),
        inputs=hopper.tiles(*walkers, ROWS, STEP) if is_first else None,
        tile_arrived=mosaic.Barrier(num_arrivals=plan.pieces + is_first, num_barriers=_WALKERS),
    )
    pl.run_scoped(lambda *s: _block(plan, refs, _Shared(*s)), *shared, collective_axes=WARPGROUP)


def _block(plan: _Plan, refs: tuple[Any, ...], shared: _Shared) -> None:
    warpgroup, block = lax.axis_index(WARPGROUP), lax.axis_index(BLOCK)
    walk = _Walk(
        plan=plan,
        shared=shared,
        walker=lax.rem(warpgroup, _WALKERS),
        worker=block // plan.blocks,
        first_column=lax.rem(block, plan.blocks) * plan.columns,
    )

    @pl.when(warpgroup >= _WALKERS)
    def copy() -> None:
        mosaic.set_max_registers(hopper.COPYING_REGISTERS, action="decrease")
        pl.when(warpgroup == _WALKERS)(functools.partial(_copy_weights, walk, refs[1]))
        _copy_rows(walk, refs[0])

    @pl.when(warpgroup < _WALKERS)
    def multiply() -> None:
        mosaic.set_max_registers(_REGISTERS, action="increase")
        mosaic.barrier_wait(shared.weights_arrived)
        (_forward if plan.kind == "forward" else _backward)(walk, *refs[2:])
        mosaic.wait_smem_to_gmem(0, wait_read_only=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Walk:
    """The tiles of one warpgroup that multiplies, for it and for the one that copies for it."""

    plan: _Plan
    shared: _Shared
    walker: Array  # which of the block's
    worker: Array  # which of the blocks that share the columns
    first_column: Array

    @property
    def tiles(self) -> Array:
        """How many."""
        of_block = (self.plan.rows // ROWS - self.worker + self.plan.workers - 1) // self.plan.workers
        return (of_block - self.walker + _WALKERS - 1) // _WALKERS

    def rows(self, i: Array) -> Any:
        """Of the i-th tile."""
        return pl.ds(((_WALKERS * i + self.walker) * self.plan.workers + self.worker) * ROWS, ROWS)

    def columns(self, piece: int) -> Any:
        """STEP of the block's columns."""
        return pl.ds(self.first_column + piece * STEP, STEP)

    def slot(self, n: Array) -> Array:
        """Where in the rings the walk's n-th step lies."""
        return self.walker * self.plan.slots + lax.rem(n, self.plan.slots)


def _copy_weights(walk: _Walk, w: Any) -> None:
    plan, shared = walk.plan, walk.shared
    columns = pl.ds(walk.first_column, plan.columns)
    for k in range(plan.steps):
        step = pl.ds(k * STEP, STEP)
        source = w.at[step, columns] if plan.kind == "forward" else w.at[columns, step]
        mosaic.copy_gmem_to_smem(source, shared.weights.at[k], shared.weights_arrived)


def _copy_rows(walk: _Walk, a: Any) -> None:
    plan, shared = walk.plan, walk.shared

    def wait_for_slot(n: Array) -> None:
        mosaic.barrier_wait(shared.free.at[walk.slot(n)])

    def tile(i: Array, _: None) -> None:
        for k in range(plan.steps):
            n = i * plan.steps + k
            pl.when(n >= plan.slots)(functools.partial(wait_for_slot, n))
            step, slot = a.at[walk.rows(i), pl.ds(k * STEP, STEP)], walk.slot(n)
            mosaic.copy_gmem_to_smem(step, shared.ring.at[slot], shared.arrived.at[slot])

    lax.fori_loop(0, walk.tiles, tile, None)
    end = walk.tiles * plan.steps  # nothing may be waited for when the block ends
    lax.fori_loop(jnp.maximum(end - plan.slots, 0), end, lambda n, _: wait_for_slot(n), None)


def _product(walk: _Walk, i: Array) -> Array:
    """The i-th tile times the weights, float32; gives its slots back as it goes."""
    plan, shared = walk.plan, walk.shared

    def sums(total: Any) -> Array:
        for k in range(plan.steps):
            n = i * plan.steps + k
            mosaic.barrier_wait(shared.arrived.at[walk.slot(n)])
            w = shared.weights.at[k] if plan.kind == "forward" else shared.weights.at[k].transpose((1, 0))
            mosaic.wgmma(total, shared.ring.at[walk.slot(n)], w)
            if k > 0:
                mosaic.wgmma_wait(1)
                mosaic.barrier_arrive(shared.free.at[walk.slot(n - 1)])
        mosaic.wgmma_wait(0)
        mosaic.barrier_arrive(shared.free.at[walk.slot(n)])
        return cast(Array, total[...])

    return cast(Array, pl.run_scoped(sums, mosaic.ACC((ROWS, plan.columns), jnp.float32)))


def _forward(walk: _Walk, b: Any, out: Any) -> None:
    plan, tiles = walk.plan, walk.shared.tile
    bias = hopper.load(b.at[pl.ds(walk.first_column, plan.columns)], of_columns=True)

    def tile(i: Array, _: None) -> None:
        z = _product(walk, i)
        z = z + lax.broadcast_in_dim(bias, z.shape, [1])
        mosaic.wait_smem_to_gmem(0, wait_read_only=True)  # the tile before
        for piece in range(plan.pieces):
            part = z[:, piece * STEP : (piece + 1) * STEP]
            tiles[walk.walker, piece] = jnp.maximum(part, plan.slope * part).astype(out.dtype)
        _store(walk, i, out)

    lax.fori_loop(0, walk.tiles, tile, None)


def _backward(walk: _Walk, a: Any, *x_out: Any) -> None:
    plan, tiles, arrived = walk.plan, walk.shared.tile, walk.shared.tile_arrived.at[walk.walker]
    *x, out = x_out

    def tile(i: Array, total: Any) -> None:
        mosaic.wait_smem_to_gmem(0, wait_read_only=True)  # the tile before
        for piece in range(plan.pieces):
            source = a.at[walk.rows(i), walk.columns(piece)]
            mosaic.copy_gmem_to_smem(source, tiles.at[walk.walker, piece], arrived)
        for inputs in x:
            mosaic.copy_gmem_to_smem(inputs.at[walk.rows(i), :], walk.shared.inputs.at[walk.walker], arrived)
        da = _product(walk, i)
        mosaic.barrier_wait(arrived)
        for piece in range(plan.pieces):
            part = da[:, piece * STEP : (piece + 1) * STEP]
            dz = jnp.where(hopper.load(tiles.at[walk.walker, piece]) > 0, part, plan.slope * part)
            tiles[walk.walker, piece] = dz.astype(a.dtype)
        if total is None:
            _store(walk, i, out)
        else:
            _add_gradient(walk, total)

    def all_tiles(total: Any = None) -> Any:
        lax.fori_loop(0, walk.tiles, lambda i, _: tile(i, total), None)
        return None if total is None else total[...]

    if plan.kind == "backward":
        all_tiles()
    else:
        total = pl.run_scoped(all_tiles, mosaic.ACC((STEP, plan.columns), jnp.float32))
        out[_WALKERS * walk.worker + walk.walker, :, pl.ds(walk.first_column, plan.columns)] = total


def _add_gradient(walk: _Walk, total: Any) -> None:
    """The tile's x^T dz into the sums."""
    x, tiles = walk.shared.inputs.at[walk.walker].transpose((1, 0)), walk.shared.tile
    mosaic.commit_smem()
    for piece in range(walk.plan.pieces):
        mosaic.wgmma(total.at[:, pl.ds(piece * STEP, STEP)], x, tiles.at[walk.walker, piece])
    mosaic.wgmma_wait(0)


def _store(walk: _Walk, i: Array, out: Any) -> None:
    """Starts copying the i-th tile to where it belongs."""
    mosaic.commit_smem()
    for piece in range(walk.plan.pieces):
        mosaic.copy_smem_to_gmem(walk.shared.tile.at[walk.walker, piece], out.at[walk.rows(i), walk.columns(piece)])
