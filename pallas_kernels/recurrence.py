"""Discounted sums along time, y_t = x_t + d_t y_{t+1}: what advantages and returns are made of.

One program owns a few lanes and walks them from the last step to the first; it loads GROUP steps at once, because a
load takes longer than a step. The contract is `reference.discounted_sums`.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import reference
from pallas_kernels.backend import Backend, launch, load, not_differentiable, resolve, store

Array = jax.Array

_LANES = 32  # a program: one warp, a lane a thread
_GROUP = 16  # steps loaded at once


def discounted_sums(x: Array, discounts: Array, backend: Backend = "auto") -> Array:
    """Sums y `[L, N]`, y_t = x_t + discounts_t y_{t+1}, y_L = 0.

    Args:
      x: `[L, N]`.
      discounts: `[L, N]`; 0 where nothing that follows counts.
      backend: `"auto"` | `"pallas"` | `"interpret"` | `"xla"`; see `backend.resolve`.

    Raises:
      ValueError: shapes that differ, or a backend that does not fit.
    """
    if jnp.ndim(x) != 2 or jnp.shape(x) != jnp.shape(discounts) or not x.size:
        raise ValueError(
            f"x has shape {jnp.shape(x)} and discounts {jnp.shape(discounts)}; both must be [L, N] with at least one step and lane"
        )
    is_float32 = x.dtype == discounts.dtype == jnp.float32
    obstacle = None if is_float32 else f"x is {x.dtype} and discounts {discounts.dtype}, not float32"
    mode = resolve(backend, faster=True, obstacle=obstacle)
    if mode == "xla":
        return reference.discounted_sums(x, discounts)
    grid = (pl.cdiv(x.shape[1], _LANES),)
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    interpret = mode == "interpret"
    run = launch(_kernel, out, grid=grid, name="discounted_sums", warps=1, interpret=interpret)
    return cast(Array, not_differentiable(run)(x, discounts))


def _kernel(x: Any, discounts: Any, out: Any) -> None:
    length, n_lanes = x.shape
    lane = pl.program_id(0) * _LANES + jnp.arange(_LANES)
    real = lane < n_lanes

    def group(g: Array | int, y: Array) -> Array:
        steps = [length - 1 - g * _GROUP - i for i in range(_GROUP)]
        inside = [real & (t >= 0) for t in steps]
        places = [(jnp.maximum(t, 0), lane) for t in steps]
        xs = [load(x.at[at], mask, 0.0) for at, mask in zip(places, inside, strict=True)]
        ds = [load(discounts.at[at], mask, 0.0) for at, mask in zip(places, inside, strict=True)]
        for at, mask, x_t, d_t in zip(places, inside, xs, ds, strict=True):
            y = x_t + d_t * y
            store(out.at[at], y, mask)
        return y

    lax.fori_loop(0, pl.cdiv(length, _GROUP), group, jnp.zeros((_LANES,), jnp.float32))
