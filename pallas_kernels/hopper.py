"""What kernels for Hopper's warpgroups are written with: Pallas' Mosaic back end, and the few things all of them say.

A warpgroup is 128 threads that multiply together, with operands in shared memory and sums in registers, while copies
arrive that others asked for. Triton leaves both to its compiler; where products bound a kernel, saying it is worth it.
`backend` knows whether a GPU is there; only this file and the kernels written with it know Mosaic.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import backend

try:
    from jax.experimental.pallas import mosaic_gpu
except ImportError:  # a JAX that moved it
    mosaic_gpu = None  # type: ignore[assignment]

mosaic: Any = mosaic_gpu  # untyped: its functions come and go between releases
BLOCK, WARPGROUP = "block", "warpgroup"  # names of a kernel's axes
SHARED_BYTES = 232_448 - 2_048  # a block's arrays in shared memory, beside its barriers
STEP = 64  # bfloat16 entries of a row copied in one piece: 128 bytes, which the hardware stores without bank conflicts
COPYING_REGISTERS = 40  # a thread that only starts copies


def is_here() -> bool:
    """Whether the default device is a Hopper GPU, and this JAX can compile for its warpgroups."""
    return mosaic is not None and 9.0 <= backend.capability() < 10.0


def multiprocessors() -> int:
    """Of the default device; an H200's, where there is none."""
    return getattr(backend.device(), "core_count", None) or 132


def launch(
    kernel: Callable[..., None], out: Any, *, blocks: int, warpgroups: int, name: str, interpret: bool
) -> Callable[..., Any]:
    """The kernel on whole arrays, in blocks of warpgroups that find themselves on the axes BLOCK and WARPGROUP.

    interpret: on a simulated GPU, which JAX has from 0.11 on.
    """
    interpreted = {"interpret": mosaic.InterpretGPUParams()} if interpret else {}
    run = mosaic.kernel(
        kernel,
        out_type=out,
        grid=(blocks,),
        grid_names=(BLOCK,),
        num_threads=warpgroups,
        thread_name=WARPGROUP,
        kernel_name=name,
        compiler_params=mosaic.CompilerParams(lowering_semantics=mosaic.LoweringSemantics.Lane),
        **interpreted,
    )

    def with_32_bits(*inputs: jax.Array) -> Any:
        with jax.enable_x64(False):  # Mosaic's indices have 32 bits, also next to a Python number
            # A slice of an array would reach the kernel as it lies, and Mosaic wants multiples of 256 bytes.
            return run(*jax.lax.optimization_barrier(inputs))

    return with_32_bits


def tiles(*shape: int, dtype: Any = jnp.bfloat16) -> Any:
    """An array in shared memory, laid out as products and copies want it; rows of at most 128 bytes in one piece."""
    bits = jnp.dtype(dtype).itemsize * 8
    swizzle = mosaic.find_swizzle(shape[-1] * bits)
    layout = mosaic.TilingTransform((8, 8 * swizzle // bits)), mosaic.SwizzleTransform(swizzle)
    return mosaic.SMEM(shape, dtype, transforms=layout)


def load(ref: Any, *, of_columns: bool = False) -> jax.Array:
    """An array `[rows, columns]` as sums of products lie in registers, or a vector that belongs to their columns."""
    layout = mosaic.Layout.WGMMA.reduce(0) if of_columns else mosaic.Layout.WGMMA
    index = ((),) if _wants_index() else ()
    return mosaic.load(ref, *index, layout=layout, optimized=not of_columns)


def zeros(*shape: int) -> jax.Array:
    """Float32 zeros as sums of products lie in registers."""
    return mosaic.layout_cast(jnp.zeros(shape, jnp.float32), mosaic.Layout.WGMMA)


def _wants_index() -> bool:
    """Whether `mosaic.load` takes a reference and an index apart, as it did before JAX 0.11."""
    index = inspect.signature(mosaic.load).parameters.get("idx")
    return index is not None and index.default is inspect.Parameter.empty
