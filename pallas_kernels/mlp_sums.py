"""A layer's weight gradient on Hopper, dW = a^T dz and db = 1^T dz: a sum over all rows of a batch.

A block owns a tile of dW and a cut of the rows, whose steps a warpgroup copies ahead while two multiply them; the cuts'
sums are added in order. The sums of dz itself are taken beside the products, out of the same copies: rows of STEP
partial sums below dW.
"""

import dataclasses
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import hopper
from pallas_kernels.hopper import BLOCK, STEP, WARPGROUP, mosaic

Array = jax.Array

_COLUMNS = 128  # of dz, a tile
_STAGES = 4  # steps copied ahead
_PIECE = 32  # float32 columns stored at once: 128 bytes


def fits(n_in: int, n_out: int) -> bool:
    """Whether there is a kernel for gradients `[n_in, n_out]`."""
    return n_in % STEP == 0 and n_out % STEP == 0


def weight_gradient(a: Array, dz: Array, *, copies: int = 1, interpret: bool = False) -> tuple[Array, Array]:
    """a^T dz `[in, out]` and the sums of dz over the rows `[out]`, float32, of a `[rows, in]` and dz `[rows, out]`.

    copies: run at once by a vmap.
    """
    total = _launch(a, dz, copies, interpret)
    n_in = a.shape[1]
    return total[:n_in], jnp.sum(total[n_in:], axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """A block's tile of dW is rows x warpgroups by columns; it sums up to `steps` STEPs of the batch, one of cuts."""

    rows: int
    warpgroups: int
    columns: int
    steps: int
    cuts: int

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return self.rows * self.warpgroups

    @property
    def share(self) -> int:
        """Columns whose own sums a warpgroup takes."""
        return max(self.columns // self.warpgroups, STEP)


def _plan(n_rows: int, n_in: int, n_out: int, copies: int) -> _Plan:
    columns = _COLUMNS if n_out % _COLUMNS == 0 else STEP
    is_large = n_in % (4 * STEP) == 0 and n_in * n_out >= 2 * 4 * STEP * columns  # two such tiles at least
    rows = 2 * STEP if is_large else STEP
    warpgroups = 2 if n_in % (2 * STEP) == 0 else 1
    tiles = n_in // (rows * warpgroups) * (n_out // columns)
    batch = n_rows // STEP
    steps = -(-batch // max(1, hopper.multiprocessors() // (tiles * copies)))
    return _Plan(rows=rows, warpgroups=warpgroups, columns=columns, steps=steps, cuts=-(-batch // steps))


def _launch(a: Array, dz: Array, copies: int, interpret: bool) -> Array:
    (n_rows, n_in), n_out = a.shape, dz.shape[1]
    plan = _plan(n_rows, n_in, n_out, copies)
    run = hopper.launch(
        functools.partial(_kernel, plan),
        jax.ShapeDtypeStruct((plan.cuts, n_in + STEP, n_out), jnp.float32),
        blocks=plan.cuts * (n_in // plan.height) * (n_out // plan.columns),
        warpgroups=plan.warpgroups + 1,
        name="mlp_weight_sums",
        interpret=interpret,
    )
    return jnp.sum(cast(Array, run(a, dz)), axis=0)


def _kernel(plan: _Plan, a: Any, dz: Any, out: Any) -> None:
    across = dz.shape[1] // plan.columns
    tiles = a.shape[1] // plan.height * across
    block, warpgroup = lax.axis_index(BLOCK), lax.axis_index(WARPGROUP)
    cut, tile = block // tiles, lax.rem(block, tiles)
    row, column = tile // across * plan.height, lax.rem(tile, across) * plan.columns
    begin = cut * plan.steps
    share = pl.ds(lax.rem(warpgroup * plan.share, plan.columns), plan.share)

    def step(_: Any, a_step: Any, dz_step: Any, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        total, own = carry
        mosaic.wgmma(total, a_step.at[:, pl.ds(warpgroup * plan.rows, plan.rows)].transpose((1, 0)), dz_step)
        own = own + hopper.load(dz_step.at[:, share]).astype(jnp.float32)
        mosaic.wgmma_wait(0)
        return total, own

    def store(total: Any, own: Array, staging: Any) -> None:
        rows = pl.ds(row + warpgroup * plan.rows, plan.rows)
        for begin in range(0, plan.columns, _PIECE):
            mosaic.wait_smem_to_gmem(0, wait_read_only=True)  # the piece before
            staging[warpgroup] = total[...][:, begin : begin + _PIECE]
            mosaic.commit_smem()
            mosaic.copy_smem_to_gmem(staging.at[warpgroup], out.at[cut, rows, pl.ds(column + begin, _PIECE)])

        @pl.when((row == 0) & (warpgroup * plan.share < plan.columns))
        def _() -> None:
            out[cut, pl.ds(a.shape[1], STEP), pl.ds(column + share.start, plan.share)] = own

    def pipeline(context: Any) -> Any:
        """Calls `context` with a function that takes a carry through all steps."""

        def operand(width: int) -> Any:
            return mosaic.BlockSpec((STEP, width), lambda k: (k, 0), transforms=hopper.tiles(STEP, STEP).transforms)

        return mosaic.emit_pipeline_warp_specialized(
            step,
            grid=(jnp.minimum(a.shape[0] // STEP - begin, plan.steps),),
            memory_registers=hopper.COPYING_REGISTERS,
            in_specs=[operand(plan.height), operand(plan.columns)],
            wg_axis=WARPGROUP,
            num_compute_wgs=plan.warpgroups,
            max_concurrent_steps=_STAGES,
            compute_context=context,
        )

    def scope(allocations: Any, staging: Any) -> None:
        def sums(run: Any) -> None:
            def scope(total: Any) -> None:
                total, own = run((total, hopper.zeros(STEP, plan.share)))
                store(total, own, staging)

            pl.run_scoped(scope, mosaic.ACC((plan.rows, plan.columns), jnp.float32))

        rows = pl.ds(begin * STEP, plan.steps * STEP)
        operands = a.at[rows, pl.ds(row, plan.height)], dz.at[rows, pl.ds(column, plan.columns)]
        pipeline(sums)(*operands, allocations=allocations)
        mosaic.wait_smem_to_gmem(0, wait_read_only=True)

    pl.run_scoped(
        scope,
        pipeline(lambda run: None).get_allocations(a, dz),
        hopper.tiles(plan.warpgroups, plan.rows, _PIECE, dtype=jnp.float32),
        collective_axes=WARPGROUP,
    )
