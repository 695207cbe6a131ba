"""Rolling sums and deviations against NumPy on each window."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_trade.bars.rolling import lag, rolling_mean, rolling_std, rolling_sum


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 20, 28, 31, 64, 100])
def test_sums_and_deviations_are_those_of_each_window(n):
    x = np.random.default_rng(n).normal(3, 1, 150)
    windows = np.lib.stride_tricks.sliding_window_view(x, n)
    # pairwise sums of at most 100 terms: a few units in the last place of the sum
    np.testing.assert_allclose(rolling_sum(x, n)[n - 1 :], windows.sum(axis=1), rtol=1e-14)
    np.testing.assert_allclose(rolling_mean(x, n)[n - 1 :], windows.mean(axis=1), rtol=1e-14)
    np.testing.assert_allclose(rolling_std(x, n, ddof=0)[n - 1 :], windows.std(axis=1), rtol=1e-12, atol=1e-15)
    if n > 1:
        np.testing.assert_allclose(rolling_std(x, n)[n - 1 :], windows.std(axis=1, ddof=1), rtol=1e-12)
    assert np.isnan(rolling_sum(x, n)[: n - 1]).all()
    assert np.isnan(rolling_std(x, n, ddof=0)[: n - 1]).all()


def test_a_window_of_equal_values_deviates_by_exactly_0_whatever_came_before():
    x = np.append(np.random.default_rng(0).normal(0, 1e9, 100), np.full(50, 0.1))
    assert (rolling_std(x, 20)[119:] == 0).all()


def test_small_deviations_around_a_large_mean_keep_their_digits():
    noise = np.random.default_rng(1).normal(0, 1, 100)
    expected = np.lib.stride_tricks.sliding_window_view(noise, 16).std(axis=1, ddof=1)
    # 1e8 + noise is rounded to 1.5e-8; the sum of squares less the square of the sum would have no digit left
    np.testing.assert_allclose(rolling_std(1e8 + noise, 16)[15:], expected, rtol=1e-7)


def test_a_value_depends_on_its_window_alone():
    x = np.random.default_rng(2).normal(size=90)
    other = np.append(np.random.default_rng(3).normal(size=70) * 1e12, x[70:])
    np.testing.assert_array_equal(rolling_std(other, 20)[89:], rolling_std(x, 20)[89:])
    np.testing.assert_array_equal(rolling_sum(other, 20)[89:], rolling_sum(x, 20)[89:])


def test_a_lag_longer_than_the_series_is_all_nan():
    np.testing.assert_array_equal(lag(np.arange(3.0), 1), [np.nan, 0, 1])
    assert np.isnan(lag(np.arange(3.0), 5)).all()
