"""Does a feature use the future? Recompute it on a history that ends earlier, and compare what both have."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxrl_trade.bars.bars import Bars
from jaxrl_trade.bars.features import FeatureFunction, FeatureTable
from jaxrl_trade.bars.features import features as market_features
from jaxrl_trade.bars.rolling import FloatArray


@dataclasses.dataclass(frozen=True)
class LookaheadReport:
    """Outcome of recomputing features on truncated histories.

    Attributes:
      histories: how many truncated histories were compared with the whole one.
      differences: largest absolute difference by feature, of the features that changed at all; NaN against a number is inf.
      first_bar: for each of those, the earliest bar (row of `bars.frame`) whose value changed when later bars were taken
        away.
    """

    histories: int
    differences: dict[str, float]
    first_bar: dict[str, int]

    @property
    def ok(self) -> bool:
        """No feature changed."""
        return not self.differences

    def lines(self) -> list[str]:
        """The report for people."""
        if self.ok:
            return [f"no look-ahead: {self.histories:,} truncated histories give exactly the same features"]
        return [
            f"look-ahead in {name}: bar {self.first_bar[name]} changes by up to {difference:.3g} without the bars after it"
            for name, difference in self.differences.items()
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def check_lookahead(
    bars: Bars, rows: int | None = None, features: FeatureFunction = market_features, since: int = 0
) -> LookaheadReport:
    """Compare features of the whole history with those of histories that end at earlier bars; any difference counts.

    Args:
      bars: T bars.
      rows: how many ends to try, evenly spaced; None tries every bar that has a row of features.
      features: function of bars; the 51 market features by default. It must give the last bar the last row.
      since: the earliest bar at which a truncated history may end.
    Raises:
      ValueError: there are too few bars to truncate, or rows is not positive.
    """
    if rows is not None and rows < 1:
        raise ValueError(f"rows = {rows}, but at least one history must be compared")
    whole, names = _table(features(bars))
    first = len(bars) - len(whole)  # bar of the first row
    last = len(bars) - 2  # the whole history less one bar
    if last < first:
        raise ValueError(f"{bars.symbol} has {len(bars)} bars, too few to take one away and still have features")
    earliest_end = min(max(first, since), last)
    count = last - earliest_end + 1
    ends = (
        np.arange(earliest_end, last + 1)
        if rows is None
        else np.unique(np.linspace(earliest_end, last, min(rows, count)).astype(int))
    )
    largest, earliest = np.zeros(whole.shape[1]), np.full(whole.shape[1], len(bars))
    for end in ends:
        part, _ = _table(features(bars.head(int(end) + 1)))
        start = int(end) + 1 - len(part)  # bar of its first row
        from_row = max(start, first)
        difference = _difference(whole[from_row - first : end + 1 - first], part[from_row - start :])
        largest = np.maximum(largest, difference.max(axis=0))
        changed = difference > 0
        earliest = np.where(changed.any(axis=0), np.minimum(earliest, from_row + changed.argmax(axis=0)), earliest)
    offending = np.flatnonzero(largest > 0)
    return LookaheadReport(
        histories=len(ends),
        differences={names[i]: float(largest[i]) for i in offending},
        first_bar={names[i]: int(earliest[i]) for i in offending},
    )


def _table(result: Any) -> tuple[FloatArray, tuple[str, ...]]:
    """Values `[T', F]` and names of what a feature function returned."""
    if isinstance(result, FeatureTable):
        return result.values, result.names
    values = np.asarray(result, np.float64)
    values = values.reshape(len(values), -1)
    columns = getattr(result, "columns", None)
    names = range(values.shape[1]) if columns is None else columns
    return values, tuple(f"feature {name}" if isinstance(name, int) else str(name) for name in names)


def _difference(a: FloatArray, b: FloatArray) -> FloatArray:
    """Absolute difference by row and feature; 0 for two NaN or equal infinities, inf for NaN against a number."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        difference = np.abs(a - b)
    return np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))
