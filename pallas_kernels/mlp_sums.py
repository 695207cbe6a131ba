"""A layer's weight gradient on Hopper, dW = a^T dz and db = 1^T dz: a sum over all rows of a batch.

A block owns a tile of dW and a cut of the rows, whose steps a warpgroup copies ahead while two multiply them; the cuts'
sums are added in order. The sums of dz itself are taken beside the products, out of the same copies: rows of STEP
partial sums below dW.
"""

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


def _tile(n_in: int, n_out: int) -> tuple[int, int, int]:
    """Rows of dW that a warpgroup sums, warpgroups of a block, columns of its tile; two tiles at least, if there can be."""
    columns = _COLUMNS if n_out % _COLUMNS == 0 else STEP
    if n_in % (4 * STEP) == 0 and n_in * n_out >= 2 * 4 * STEP * columns:
        return 2 * STEP, 2, columns
    return STEP, 2 if n_in % (2 * STEP) == 0 else 1, columns


def _launch(a: Array, dz: Array, copies: int, interpret: bool) -> Array:
    (n_rows, n_in), n_out = a.shape, dz.shape[1]
    rows, warpgroups, columns = _tile(n_in, n_out)
    tiles = n_in // (rows * warpgroups) * (n_out // columns)
    steps = n_rows // STEP
    wanted = max(1, hopper.multiprocessors() // (tiles * copies))
    rounds = -(-steps // wanted)
    cuts = -(-steps // rounds)
    kernel = functools.partial(_kernel, rows=rows, warpgroups=warpgroups, columns=columns, rounds=rounds)
    out = jax.ShapeDtypeStruct((cuts, n_in + STEP, n_out), jnp.float32)
    run = hopper.launch(
        kernel, out, blocks=cuts * tiles, warpgroups=warpgroups + 1, name="mlp_weight_sums", interpret=interpret
    )
    return jnp.sum(cast(Array, run(a, dz)), axis=0)


def _kernel(a: Any, dz: Any, out: Any, *, rows: int, warpgroups: int, columns: int, rounds: int) -> None:
    (n_rows, n_in), across = a.shape, dz.shape[1] // columns
    down = n_in // (rows * warpgroups)
    block, warpgroup = lax.axis_index(BLOCK), lax.axis_index(WARPGROUP)
    cut, tile = block // (down * across), lax.rem(block, down * across)
    row = tile // across * (rows * warpgroups)
    column = lax.rem(tile, across) * columns
    begin = cut * rounds
    share = columns // warpgroups if columns // warpgroups >= STEP else columns  # of dz's own sums, a warpgroup's

    def step(_: Any, a_step: Any, dz_step: Any, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        total, own = carry
        mosaic.wgmma(total, a_step.at[:, pl.ds(warpgroup * rows, rows)].transpose((1, 0)), dz_step)
        own = own + hopper.load(dz_step.at[:, pl.ds(own_begin, share)]).astype(jnp.float32)
        mosaic.wgmma_wait(0)
        return total, own

    own_begin = lax.rem(warpgroup * share, columns)

    def finish(run: Any, staging: Any) -> None:
        def sums(total: Any) -> None:
            total, own = run((total, hopper.zeros(STEP, share)))
            for k in range(columns // _PIECE):
                part = pl.ds(column + k * _PIECE, _PIECE)
                mosaic.wait_smem_to_gmem(0, wait_read_only=True)
                staging[warpgroup] = total[...][:, k * _PIECE : (k + 1) * _PIECE]
                mosaic.commit_smem()
                mosaic.copy_smem_to_gmem(staging.at[warpgroup], out.at[cut, pl.ds(row + warpgroup * rows, rows), part])

            @pl.when((tile // across == 0) & (warpgroup * share < columns))
            def _() -> None:
                out[cut, pl.ds(n_in, STEP), pl.ds(column + own_begin, share)] = own

        pl.run_scoped(sums, mosaic.ACC((rows, columns), jnp.float32))

    def pipeline(context: Any) -> Any:
        def operand(width: int) -> Any:
            layout = hopper.tiles(STEP, STEP).transforms
            return mosaic.BlockSpec((STEP, width), lambda k: (k, 0), transforms=layout)

        return mosaic.emit_pipeline_warp_specialized(
            step,
            grid=(jnp.minimum(n_rows // STEP - begin, rounds),),
            memory_registers=hopper.COPYING_REGISTERS,
            in_specs=[operand(rows * warpgroups), operand(columns)],
            wg_axis=WARPGROUP,
            num_compute_wgs=warpgroups,
            max_concurrent_steps=_STAGES,
            compute_context=context,
        )

    def scope(allocations: Any, staging: Any) -> None:
        its_rows = pl.ds(begin * STEP, rounds * STEP)
        pipeline(lambda run: finish(run, staging))(
            a.at[its_rows, pl.ds(row, rows * warpgroups)],
            dz.at[its_rows, pl.ds(column, columns)],
            allocations=allocations,
        )
        mosaic.wait_smem_to_gmem(0, wait_read_only=True)

    pl.run_scoped(
        scope,
        pipeline(lambda run: None).get_allocations(a, dz),
        hopper.tiles(warpgroups, rows, _PIECE, dtype=jnp.float32),
        collective_axes=WARPGROUP,
    )
