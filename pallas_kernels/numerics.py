"""Arithmetic inside a kernel: float32 products from exact bfloat16 terms, and power-of-two sizes.

Why not TF32: Triton rounds every TF32 operand with an instruction sequence that costs more than the product, and
three TF32 products take as many tensor-core cycles as six of bfloat16.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.backend import dot

Array = jax.Array
PADDING = -1e30  # the bias of a column that does not exist: never a maximum


def padded(size: int) -> int:
    """The smallest power of two that is at least the size and 16, the tensor cores' shortest side."""
    return max(16, 1 << (size - 1).bit_length())


def bf16_terms(x: Array) -> tuple[Array, Array, Array]:
    """Float32 x as three bfloat16 arrays whose exact sum is x (24 bits, 8 in each).

    The first two are cut off, not rounded: one AND each, where rounding to nearest compiles to a slow conversion.
    """
    first = _cut(x)
    second = _cut(x - first)
    third = x - first - second
    return first.astype(jnp.bfloat16), second.astype(jnp.bfloat16), third.astype(jnp.bfloat16)


def dot_f32(x: Sequence[Array], y: Sequence[Array], *, trans_b: bool = False) -> Array:
    """Float32 product of two arrays given as bfloat16 terms, smallest contributions first.

    Of the nine products the three below 2^-24 of the largest are left out.
    """
    pairs = ((0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0))
    return sum(dot(x[i], y[j], trans_b=trans_b) for i, j in pairs)  # type: ignore[return-value]


def dot_exact(x: Array, y: Sequence[Array]) -> Array:
    """Product of a bfloat16 array of zeros and ones with an array given as bfloat16 terms: no product rounds."""
    return sum(dot(x, term) for term in reversed(y))  # type: ignore[return-value]


def _cut(x: Array) -> Array:
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
