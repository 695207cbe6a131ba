"""Matrix products in a chosen precision: IEEE float32, TF32 or bfloat16 with float32 sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_trade.config import ComputeDtype

Array = jax.Array
DotGeneral = Callable[..., Array]


def dot_general(compute_dtype: ComputeDtype) -> DotGeneral:
    """`lax.dot_general` in that precision; operands of another dtype (float64, say) keep it, except for bfloat16."""
    return {"float32": _ieee, "tf32": _tf32, "bfloat16": _bfloat16}[compute_dtype]


def dot(x: Array, w: Array, compute_dtype: ComputeDtype) -> Array:
    """`x [..., K] @ w [K, M]` in that precision."""
    return dot_general(compute_dtype)(x, w, (((x.ndim - 1,), (0,)), ((), ())))


def plain_products(compute_dtype: ComputeDtype) -> Any:
    """A context in which products that name no precision, those of `pallas_kernels` as plain XLA, have this one.

    Without it XLA takes TF32 for float32 on a GPU, a thousandth off where IEEE was asked for.
    """
    return jax.default_matmul_precision("highest" if compute_dtype == "float32" else "default")


# `**_` takes the precision and output type that Flax passes along: this choice replaces them.
def _ieee(x: Array, w: Array, dimensions: Any, **_: Any) -> Array:
    return jax.lax.dot_general(x, w, dimensions, precision=jax.lax.Precision.HIGHEST)


def _tf32(x: Array, w: Array, dimensions: Any, **_: Any) -> Array:
    return jax.lax.dot_general(x, w, dimensions, precision=jax.lax.Precision.DEFAULT)  # TF32 on a GPU, IEEE elsewhere


def _bfloat16(x: Array, w: Array, dimensions: Any, **_: Any) -> Array:
    out = jax.lax.dot_general(
        x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), dimensions, preferred_element_type=jnp.float32
    )
    return out.astype(x.dtype)
