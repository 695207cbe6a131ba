"""How much of a Sharpe ratio may be luck: an interval of its difference to another's, and its deflation by the trials made.

Knows nothing of policies or bars: daily returns in, figures out. Undefined figures are NaN.
"""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist

import numpy as np

Array = np.ndarray

MIN_DAYS = 20  # below it neither figure means anything
MOST_TRIALS = 10**9  # beyond it the quantiles of the best trial come too close to 1
EULER = 0.5772156649015329


@dataclasses.dataclass(frozen=True)
class SharpeDifference:
    """A difference of two Sharpe ratios a year, the first's less the second's, and its bootstrap interval."""

    difference: float
    low: float
    high: float
    confidence: float  # that the interval holds the true difference, 0 to 1
    block: int  # days, mean length of the blocks drawn
    resamples: int
    days: int


@dataclasses.dataclass(frozen=True)
class DeflatedSharpe:
    """A Sharpe ratio judged as the best of several trials."""

    probability: float  # that the true ratio is above 0 although the best of `trials` was taken
    threshold: float  # Sharpe a year that the best of as many worthless trials reaches on average
    trials: int


def sharpe_difference(
    returns: Array, others: Array, per_year: float, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> SharpeDifference:
    """The percentile interval of Sharpe(returns) - Sharpe(others), both resampled at the same days.

    Stationary bootstrap (Politis & Romano 1994) with the mean block length of Politis & White (2004, corrected by Patton, Politis &
    White 2009): the longer of the two series'. A resample in which a series does not vary counts as a ratio of 0.

    Args:
      returns, others: `[D]` daily, of the same days.
      per_year: days a year.
      confidence: of the interval.
      resamples: drawn.
      seed: of the draws.
    Returns:
      NaN figures where there are fewer than 20 days, or a series does not vary.
    """
    both = np.stack([returns, others], axis=1)
    nothing = SharpeDifference(math.nan, math.nan, math.nan, confidence, 0, 0, len(both))
    if len(both) < MIN_DAYS or not (both.std(axis=0) > 0).all():
        return nothing
    from arch.bootstrap import StationaryBootstrap, optimal_block_length

    with np.errstate(divide="ignore", invalid="ignore"):
        lengths = optimal_block_length(both)["stationary"].to_numpy()
    block = max(1, math.ceil(np.nanmax(lengths, initial=1.0)))

    def difference(rows: Array) -> Array:
        deviation = rows.std(axis=0, ddof=1)
        ratio = np.where(deviation > 0, rows.mean(axis=0) / np.where(deviation > 0, deviation, 1.0), 0.0)
        return (ratio[:1] - ratio[1:]) * math.sqrt(per_year)

    bootstrap = StationaryBootstrap(block, both, seed=np.random.default_rng(seed))
    low, high = bootstrap.conf_int(difference, resamples, method="percentile", size=confidence)[:, 0]
    return SharpeDifference(
        float(difference(both)[0]), float(low), float(high), confidence, block, resamples, len(both)
    )


def deflated_sharpe(returns: Array, per_year: float, trials: int = 1, variance: float | None = None) -> DeflatedSharpe:
    """The deflated Sharpe ratio (Bailey & López de Prado 2014, "The Deflated Sharpe Ratio", equations 1 and 2).

        SR0 = sqrt(V) ((1 - g) Z(1 - 1/N) + g Z(1 - 1/(N e))),   0 for N = 1
        DSR = Phi((SR - SR0) sqrt(T - 1) / sqrt(1 - skew SR + (kurtosis - 1)/4 SR^2))

    with SR of one day, Z the normal quantile, Phi the normal distribution and g the Euler-Mascheroni constant. Days are taken as
    independent.

    Args:
      returns: `[T]` daily.
      per_year: days a year.
      trials: N, how many settings and seeds were tried, this one included; independent ones.
      variance: V, of the trials' Sharpe ratios a year; None is what worthless trials of T days have by chance, 1/(T - 1) a day.
    Returns:
      NaN figures where there are fewer than 20 days, or the returns do not vary.
    Raises:
      ValueError: fewer than 1 trial or more than a thousand million, or a negative variance.
    """
    if not isinstance(trials, (int, np.integer)) or isinstance(trials, bool) or trials < 1:
        raise ValueError(f"trials = {trials!r} must be a whole number of at least 1: this run is one of them")
    if trials > MOST_TRIALS:
        raise ValueError(f"trials = {trials!r} must be at most {MOST_TRIALS:,}")
    if variance is not None and not variance >= 0:
        raise ValueError(f"variance = {variance!r} must be at least 0; give the variance of the trials' Sharpe ratios")
    n, spread = len(returns), float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0
    if n < MIN_DAYS or not spread > 0:
        return DeflatedSharpe(math.nan, math.nan, int(trials))
    daily = float(np.mean(returns)) / spread
    deviations = (returns - np.mean(returns)) / np.std(returns)
    skew, kurtosis = float(np.mean(deviations**3)), float(np.mean(deviations**4))
    between = 1.0 / (n - 1) if variance is None else variance / per_year
    threshold = expected_best(int(trials)) * math.sqrt(between)
    probability = probabilistic_sharpe(daily, threshold, n, skew, kurtosis)
    return DeflatedSharpe(probability, threshold * math.sqrt(per_year), int(trials))


def expected_best(trials: int) -> float:
    """The largest of N standard normal numbers, on average, by the approximation of Bailey & López de Prado (2014); 0 of one."""
    if trials == 1:
        return 0.0
    quantile = NormalDist().inv_cdf
    return (1.0 - EULER) * quantile(1.0 - 1.0 / trials) + EULER * quantile(1.0 - 1.0 / (trials * math.e))


def probabilistic_sharpe(sharpe: float, threshold: float, n: int, skew: float, kurtosis: float) -> float:
    """Probability that the true ratio exceeds a threshold, both of one period, after n returns; kurtosis is 3 of a normal one."""
    square = 1.0 - skew * sharpe + (kurtosis - 1.0) / 4.0 * sharpe**2
    if not square > 0:  # returns of two values only
        return math.nan
    return NormalDist().cdf((sharpe - threshold) * math.sqrt((n - 1) / square))
