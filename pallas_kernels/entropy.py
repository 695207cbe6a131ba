"""Entropy of the latest symbols of every lane at every step, by running counts that stay on chip.

With counts c over the n latest symbols, H = ln n - S / n and S = sum of c ln c. One symbol enters and at most one
leaves a step, so S changes by two differences of f(c) = c ln c. f is kept as whole numbers (`_fixed_point`): sums of them
are exact, and S does not drift however long the lane.

A program owns a few lanes and a stretch of time; it counts the window before the stretch first. Several steps' symbols
are loaded at once, because a load takes longer than a step. The contract is `reference.windowed_entropy`.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import reference
from pallas_kernels.backend import Backend, launch, load, resolve, store
from pallas_kernels.numerics import padded

Array = jax.Array

_LANES = 2  # a program: few, because each waits for its own loads
_GROUP = 8  # steps loaded at once
_PROGRAMS = 2112  # wanted: sixteen on each multiprocessor of an H200
_SHORTEST = 32  # steps of a stretch
_MAX_WINDOW = 4096  # beyond it a fixed point of 31 bits is no longer exact to 1e-5


def windowed_entropy(
    history: Array, steps: Array, n_symbols: int, backend: Backend = "auto", dtype: Any = jnp.float32
) -> Array:
    """Entropy `[L, N]`, nats, of the latest min(steps + 1, W) symbols at every step.

    Args:
      history: `[W + L, N]` int32 in [0, n_symbols): the W symbols before the first step, then each step's own.
      steps: `[L, N]` int32, symbols that the lane's episode had before this one; 0 forgets all that went before. It
        rises by 1 a step or falls to 0.
      n_symbols: how many symbols there are.
      backend: `"auto"` | `"pallas"` | `"interpret"` | `"xla"`; see `backend.resolve`.
      dtype: of the result.

    Raises:
      ValueError: shapes that do not fit, or no number of symbols.
    """
    if history.ndim != 2 or history.shape[1:] != steps.shape[1:] or len(history) <= len(steps) or not steps.size:
        wanted = "[W + L, N] and [L, N] with W, L and N at least 1"
        raise ValueError(f"history has shape {history.shape}, steps {steps.shape}; wanted {wanted}")
    if not isinstance(n_symbols, int | np.integer) or n_symbols < 1:
        raise ValueError(f"n_symbols = {n_symbols!r}; wanted a Python number of at least 1")
    window = len(history) - len(steps)
    obstacle = None if dtype == jnp.float32 else f"the result is {jnp.dtype(dtype).name}, not float32"
    if window > _MAX_WINDOW:
        obstacle = f"a window of {window} symbols is longer than {_MAX_WINDOW}"
    mode = resolve(backend, faster=True, obstacle=obstacle)
    if mode == "xla":
        return reference.windowed_entropy(history, steps, n_symbols, dtype)
    length, n_lanes = steps.shape
    tiles = pl.cdiv(n_lanes, _LANES)
    stretches = max(1, min(pl.cdiv(length, _SHORTEST), _PROGRAMS // tiles))
    stretch = pl.cdiv(pl.cdiv(length, stretches), _GROUP) * _GROUP
    table, scale = _fixed_point(window)
    kernel = functools.partial(_kernel, n_symbols=n_symbols, window=window, stretch=stretch)
    run = launch(
        kernel,
        jax.ShapeDtypeStruct(steps.shape, jnp.int32),
        grid=(tiles, pl.cdiv(length, stretch)),
        name="windowed_entropy",
        warps=1,
        interpret=mode == "interpret",
    )
    history, steps = history.astype(jnp.int32), steps.astype(jnp.int32)  # a narrow integer does not hold the window
    sums = cast(Array, run(history, steps, jnp.asarray(table)))
    n = jnp.minimum(steps + 1, window).astype(jnp.float32)
    return jnp.maximum(jnp.log(n) - sums.astype(jnp.float32) * np.float32(1.0 / scale) / n, 0.0)


def _fixed_point(window: int) -> tuple[np.ndarray, float]:
    """Round(scale c ln c) for c = 0 to W + 1, padded, and a scale that keeps every sum of a window below 2^31."""
    counts = np.arange(padded(window + 2))
    f = counts * np.log(np.maximum(counts, 1))
    scale = 2.0 ** np.floor(np.log2(2.0**30 / f[window + 1]))
    return np.minimum(np.round(scale * f), 2.0**31 - 1).astype(np.int32), scale


def _kernel(history: Any, steps: Any, table: Any, out: Any, *, n_symbols: int, window: int, stretch: int) -> None:
    length, n_lanes = steps.shape
    lane = pl.program_id(0) * _LANES + jnp.arange(_LANES)
    real = lane < n_lanes
    begin = pl.program_id(1) * stretch
    symbol = jnp.arange(padded(n_symbols))

    def at(ref: Any, t: Array) -> Array:
        inside = real & (t < ref.shape[0])
        return load(ref.at[jnp.minimum(t, ref.shape[0] - 1), lane], inside, 0)

    def is_symbol(value: Array) -> Array:
        return symbol[None, :] == value[:, None]

    def count_of(counts: Array, value: Array) -> Array:
        return jnp.sum(jnp.where(is_symbol(value), counts, 0), axis=1)

    age = at(steps, begin)

    def recall(g: Array | int, counts: Array) -> Array:
        back = [window - g * _GROUP - i for i in range(_GROUP)]  # steps before `begin`, at most W
        values = [at(history, begin + window - jnp.maximum(k, 1)) for k in back]
        for k, value in zip(back, values, strict=True):
            counts = counts + jnp.where(is_symbol(value) & ((k >= 1) & (k <= age))[:, None], 1, 0)
        return counts

    counts = jnp.zeros((_LANES, symbol.size), jnp.int32)
    counts = lax.fori_loop(0, pl.cdiv(window, _GROUP), recall, counts)
    total = jnp.sum(table[counts], axis=1)

    def group(g: Array | int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        counts, total = carry
        times = [begin + g * _GROUP + i for i in range(_GROUP)]
        entering = [at(history, t + window) for t in times]
        leaving = [at(history, t) for t in times]
        ages = [at(steps, t) for t in times]
        for t, new, old, age in zip(times, entering, leaving, ages, strict=True):
            counts = jnp.where((age == 0)[:, None], 0, counts)
            total = jnp.where(age == 0, 0, total)
            c = count_of(counts, new)
            counts = counts + jnp.where(is_symbol(new), 1, 0)
            total = total + table[c + 1] - table[c]
            leaves = age >= window
            c = jnp.maximum(count_of(counts, old), 1)
            counts = counts - jnp.where(is_symbol(old) & leaves[:, None], 1, 0)
            total = total + jnp.where(leaves, table[c - 1] - table[c], 0)
            store(out.at[jnp.minimum(t, length - 1), lane], total, real & (t < length))
        return counts, total

    lax.fori_loop(0, stretch // _GROUP, group, (counts, total))
