import math

import numpy as np
import pytest

from jaxrl_trade.backtesting.inference import (
    deflated_sharpe,
    expected_best,
    probabilistic_sharpe,
    sharpe_difference,
)


def autoregressive(rng, n, mean, coefficient=0.2, correlation=0.6):
    """Two AR(1) series `[n, 2]` of standard deviation 0.01 with these daily means and correlated shocks."""
    shocks = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], n + 50)
    values = np.zeros_like(shocks)
    for t in range(1, len(values)):
        values[t] = coefficient * values[t - 1] + math.sqrt(1 - coefficient**2) * shocks[t]
    return np.asarray(mean) + 0.01 * values[50:]


def sharpe(rows):
    return rows.mean(axis=0) / rows.std(axis=0, ddof=1) * math.sqrt(252)


def brute_force(rows, block, resamples, seed):
    """Politis & Romano's resampling day by day: with probability 1/block a fresh day, else the next one, around the end."""
    rng, n = np.random.default_rng(seed), len(rows)
    found = []
    for _ in range(resamples):
        picked = [int(rng.integers(n))]
        for _ in range(n - 1):
            picked.append(int(rng.integers(n)) if rng.random() < 1 / block else (picked[-1] + 1) % n)
        first, second = sharpe(rows[picked])
        found.append(first - second)
    return np.quantile(found, [0.025, 0.975])


def test_the_interval_is_the_stationary_bootstraps():
    rows = autoregressive(np.random.default_rng(0), 150, [0.001, 0.0], coefficient=0.5)
    found = sharpe_difference(rows[:, 0], rows[:, 1], 252.0, resamples=4000)
    first, second = sharpe(rows)
    assert found.difference == pytest.approx(first - second, rel=1e-12)
    assert found.block > 1
    low, high = brute_force(rows, found.block, 2000, seed=1)
    # the quantiles of two draws of 2,000 and 4,000: a twentieth of the interval's length is about 3 standard errors
    tolerance = (high - low) / 20
    assert (found.low, found.high) == (pytest.approx(low, abs=tolerance), pytest.approx(high, abs=tolerance))


def test_the_interval_holds_the_true_difference_about_as_often_as_it_says():
    rng, means = np.random.default_rng(1), np.array([0.0012, 0.0002])
    truth = (means[0] - means[1]) / 0.01 * math.sqrt(252)
    holds = []
    for i in range(150):
        rows = autoregressive(rng, 250, means)
        found = sharpe_difference(rows[:, 0], rows[:, 1], 252.0, resamples=250, seed=i)
        holds.append(found.low <= truth <= found.high)
    assert 0.88 <= np.mean(holds) <= 0.99  # nominally 0.95; a percentile interval of 250 days falls a little short


def test_an_interval_follows_its_seed():
    rows = autoregressive(np.random.default_rng(2), 60, [0.0, 0.0])
    one, same, other = (sharpe_difference(*rows.T, 252.0, resamples=50, seed=seed) for seed in (0, 0, 1))
    assert one == same != other


def test_a_series_beside_itself_differs_by_nothing():
    returns = np.random.default_rng(3).normal(0, 0.01, 40)
    found = sharpe_difference(returns, returns, 252.0, resamples=50)
    assert (found.difference, found.low, found.high) == (0, 0, 0)


@pytest.mark.parametrize("returns", [np.zeros(50), np.random.default_rng(0).normal(size=19)])
def test_few_days_or_a_flat_series_have_no_interval(returns):
    found = sharpe_difference(returns, np.random.default_rng(1).normal(size=len(returns)), 252.0)
    assert math.isnan(found.difference)
    assert math.isnan(found.low)
    assert math.isnan(deflated_sharpe(returns, 252.0, 3).probability)


def test_the_deflation_gives_the_papers_example():
    """Bailey & López de Prado (2014): a Sharpe of 2.5 a year of 250 days, 1,250 days, variance of the trials 1/2 a year."""
    daily = 2.5 / math.sqrt(250)
    threshold = expected_best(100) * math.sqrt(0.5 / 250)
    assert threshold == pytest.approx(0.1132, abs=5e-5)
    assert probabilistic_sharpe(daily, threshold, 1250, -3, 10) == pytest.approx(0.9004, abs=5e-5)
    after = lambda trials: expected_best(trials) * math.sqrt(0.5 / 250)  # noqa: E731
    assert probabilistic_sharpe(daily, after(46), 1250, -3, 10) == pytest.approx(0.9505, abs=5e-5)
    assert probabilistic_sharpe(daily, after(88), 1250, 0, 3) == pytest.approx(0.9505, abs=5e-5)


def test_the_deflation_of_returns_takes_their_own_moments():
    scipy_stats = pytest.importorskip("scipy.stats")
    returns = np.random.default_rng(4).gumbel(0.001, 0.01, 400)
    found = deflated_sharpe(returns, 252.0, trials=20, variance=0.5)
    daily, skew = returns.mean() / returns.std(ddof=1), scipy_stats.skew(returns)
    kurtosis = scipy_stats.kurtosis(returns, fisher=False)
    threshold = expected_best(20) * math.sqrt(0.5 / 252)
    square = 1 - skew * daily + (kurtosis - 1) / 4 * daily**2
    expected = scipy_stats.norm.cdf((daily - threshold) * math.sqrt(399) / math.sqrt(square))
    assert found.probability == pytest.approx(expected, rel=1e-9)
    assert found.threshold == pytest.approx(threshold * math.sqrt(252))


def test_the_best_of_worthless_trials_is_about_as_good_as_expected():
    best = np.random.default_rng(5).normal(size=(4000, 50)).max(axis=1).mean()
    assert expected_best(50) == pytest.approx(best, rel=0.02)  # the approximation is off by half a per cent
    assert expected_best(1) == 0


def test_worthless_trials_spread_by_the_error_of_a_sharpe_ratio_where_nothing_else_is_known():
    returns = np.random.default_rng(6).normal(0.001, 0.01, 300)
    found = deflated_sharpe(returns, 252.0, trials=10)
    assert found.threshold == pytest.approx(expected_best(10) * math.sqrt(252 / 299))
    alone = deflated_sharpe(returns, 252.0)
    assert alone.threshold == 0
    assert found.probability < alone.probability


@pytest.mark.parametrize("trials", [0, -1, 1.5, True, 10**9 + 1])
def test_trials_that_are_none_are_refused(trials):
    with pytest.raises(ValueError, match=r"trials = .* must be"):
        deflated_sharpe(np.zeros(30), 252.0, trials)
