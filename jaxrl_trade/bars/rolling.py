"""Rolling statistics over exactly the last n values. Knows nothing of prices.

Every function is causal and depends on nothing outside its window: no running sum that drifts, so a value is the same on
any history that holds the window. Rows before the first full window are NaN, and a NaN in the input reaches the n rows
whose window holds it. Windows are put together by doubling, in O(log n) passes over the array. Time is the last axis, so that
several series of one window are rolled together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def lag(x: FloatArray, k: int) -> FloatArray:
    """`[..., T]`: x[t - k] at t, NaN for the first k rows."""
    out = np.empty(x.shape)
    out[..., :k] = np.nan
    out[..., k:] = x[..., : max(x.shape[-1] - k, 0)]
    return out


def rolling_sum(x: FloatArray, n: int) -> FloatArray:
    """`[..., T]`: x[t - n + 1] + ... + x[t], added pairwise."""
    total: FloatArray | None = None
    covered, block, width = 0, x, 1
    while True:
        if n & width:
            total = block if total is None else total + lag(block, covered)
            covered += width
        if covered == n:
            assert total is not None  # n >= 1 has a bit set
            return total
        block, width = block + lag(block, width), 2 * width


def rolling_mean(x: FloatArray, n: int) -> FloatArray:
    """`[..., T]`: mean of the last n values."""
    return rolling_sum(x, n) / n


def rolling_std(x: FloatArray, n: int, ddof: int = 1) -> FloatArray:
    """`[..., T]`: standard deviation of the last n values with divisor n - ddof; exactly 0 where they are all equal.

    Means and squared deviations of adjacent blocks are merged (Chan, Golub and LeVeque 1983, The American Statistician
    37:242), which has none of the cancellation of E[x^2] - E[x]^2.
    """
    total: FloatArray | None = None
    covered, width = 0, 1
    block = np.stack([x, np.where(np.isnan(x), np.nan, 0.0)])
    while True:
        if n & width:
            total = block if total is None else _merge(total, covered, lag(block, covered), width)
            covered += width
        if covered == n:
            assert total is not None  # n >= 1 has a bit set
            return np.sqrt(total[1] / (n - ddof))
        block = _merge(block, width, lag(block, width), width)
        width *= 2


def _merge(a: FloatArray, n_a: int, b: FloatArray, n_b: int) -> FloatArray:
    """`[2, ..., T]`: mean and sum of squared deviations of two blocks of n_a and n_b values together."""
    difference = b[0] - a[0]
    n = n_a + n_b
    merged = np.empty(a.shape)
    np.add(a[0], difference * (n_b / n), out=merged[0])
    np.add(a[1] + b[1], difference * difference * (n_a * n_b / n), out=merged[1])
    return merged
