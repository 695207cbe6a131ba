"""Cleaning rules for bars, and the report of what they did. Rows are dropped or refused, never made up or filled in."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxrl_trade.bars.calendar_fields import BoolArray, IntArray
from jaxrl_trade.bars.rolling import FloatArray

REPAIRABLE = (
    1e-3  # fraction of the price by which open or close may lie outside low..high and the bar be widened, not dropped
)
CONFLICT_SHARE, CONFLICT_ROWS = 0.01, 3  # more times with different prices than both: two series in one file
GAP = 1.5  # bars; a longer step in time is a gap
LISTED_GAPS = 5
REGULAR_SHARE = 0.5  # of the steps in time must be one bar long
YEAR = 365.25 * 86_400 * 10**9  # ns


@dataclasses.dataclass(frozen=True)
class Gap:
    """A step in time longer than a bar: the bars around it and how many would fit between them."""

    start: datetime.datetime
    end: datetime.datetime
    missing: int


@dataclasses.dataclass(frozen=True)
class DataReport:
    """What was read, what was kept and why the rest was not.

    Attributes:
      source: file or frame.
      columns: file column by role.
      rows_read, rows_kept: rows of data in the file; bars that came of them.
      dropped: rows left out, by reason.
      repaired: bars changed, by reason.
      first, last: times of the first and last bar, UTC.
      bar_size: the most frequent step from bar to bar.
      gaps: number of steps longer than 1.5 bars.
      largest_gaps: the longest of them, longest first.
      bars_per_year: bars in 365.25 days at the density of this file, closed hours included; annualises per-bar figures.
      assumed: what the file did not say and was found out or taken for granted.
      warnings: what a user should know before trusting a result.
    """

    source: str
    columns: Mapping[str, str]
    rows_read: int
    rows_kept: int
    dropped: Mapping[str, int]
    repaired: Mapping[str, int]
    first: datetime.datetime
    last: datetime.datetime
    bar_size: datetime.timedelta
    gaps: int
    largest_gaps: tuple[Gap, ...]
    bars_per_year: float
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """The report for people, a fact a line."""
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items()) or "none"
        text = [
            f"source         {self.source}",
            f"rows           {self.rows_read:,} read, {self.rows_kept:,} kept",
            f"dropped        {dropped}",
        ]
        text += [f"repaired       {count:,} {reason}" for reason, count in self.repaired.items()]
        text += [
            f"time           {self.first:%Y-%m-%d %H:%M:%S} to {self.last:%Y-%m-%d %H:%M:%S} UTC",
            f"bar size       {in_words(self.bar_size)}",
            f"bars per year  {self.bars_per_year:,.0f}",
            f"gaps           {self.gaps:,}" + (", the longest:" if self.largest_gaps else ""),
        ]
        text += [
            f"               {gap.start:%Y-%m-%d %H:%M} to {gap.end:%Y-%m-%d %H:%M}, {gap.missing:,} bars missing"
            for gap in self.largest_gaps
        ]
        text += [f"assumed        {assumption}" for assumption in self.assumed]
        text += [f"warning        {warning}" for warning in self.warnings]
        return text

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON: times in ISO 8601, the bar size in seconds."""
        return {
            **{name: getattr(self, name) for name in ("source", "rows_read", "rows_kept", "gaps", "bars_per_year")},
            **{name: dict(getattr(self, name)) for name in ("columns", "dropped", "repaired")},
            "first": self.first.isoformat(),
            "last": self.last.isoformat(),
            "bar_size_seconds": self.bar_size.total_seconds(),
            "largest_gaps": [
                {"start": gap.start.isoformat(), "end": gap.end.isoformat(), "missing": gap.missing}
                for gap in self.largest_gaps
            ],
            "assumed": list(self.assumed),
            "warnings": list(self.warnings),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class CleanBars:
    """Bars after the rules: `ns [T]` ascending and unique, `values [T, 5]` open, high, low, close, volume."""

    ns: IntArray
    values: FloatArray
    dropped: dict[str, int]
    repaired: dict[str, int]
    warnings: tuple[str, ...]


def clean(ns: IntArray, values: FloatArray, excluded: Mapping[str, BoolArray], origin: str) -> CleanBars:
    """Apply the rules, in this order: excluded rows, missing prices, prices not above 0, impossible bars, duplicates.

    Args:
      ns: `[n]` UTC nanoseconds, in the file's order.
      values: `[n, 5]` open, high, low, close, volume; NaN where missing.
      excluded: rows that have no time, by reason.
      origin: for messages.
    Raises:
      ValueError: no row survives, or many times come with two different bars.
    """
    dropped: dict[str, int] = {}
    keep = np.ones(len(ns), bool)

    def drop(reason: str, rows: Any) -> None:
        count = int((keep & rows).sum())
        if count:
            dropped[reason] = dropped.get(reason, 0) + count
        keep[rows] = False

    for reason, rows in excluded.items():
        drop(reason, rows)
    prices = values[:, :4]
    drop("without a price", ~np.isfinite(prices).all(axis=1))
    drop("zero or negative price", (prices <= 0).any(axis=1))
    open, high, low, close = prices.T
    drop("high below low", high < low)
    top, bottom = np.maximum(open, close), np.minimum(open, close)
    outside = (high < top) | (low > bottom)
    slight = outside & (high >= top * (1 - REPAIRABLE)) & (low <= bottom * (1 + REPAIRABLE))
    drop("open or close outside low to high", outside & ~slight)
    if not keep.any():
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "it has none"
        raise ValueError(f"{origin}: no usable row ({reasons})")

    values = values.copy()
    values[slight, 1], values[slight, 2] = np.maximum(high, top)[slight], np.minimum(low, bottom)[slight]
    repaired = {"widened to hold open and close": int((keep & slight).sum())} if (keep & slight).any() else {}
    volume, repairs, warnings = _clean_volume(values[keep, 4])
    ns, values = ns[keep], np.column_stack([values[keep, :4], volume])
    ns, values, duplicates, conflicts = _order(ns, values, origin)
    return CleanBars(ns, values, dropped | duplicates, repaired | repairs, (*warnings, *conflicts))


def describe(
    bars: CleanBars, *, source: str, columns: Mapping[str, str], rows_read: int, assumed: Iterable[str] = ()
) -> DataReport:
    """The report on clean bars.

    Raises:
      ValueError: a single bar has no bar size.
    """
    if len(bars.ns) < 2:
        raise ValueError(f"{source} has a single usable bar; bars need at least two")
    steps = np.diff(bars.ns)
    sizes, counts = np.unique(steps, return_counts=True)
    bar = int(sizes[np.argmax(counts)])
    is_gap = steps > GAP * bar
    longest = np.argsort(-steps, kind="stable")[: min(LISTED_GAPS, int(is_gap.sum()))]
    notes = list(bars.warnings)
    if counts.max() < REGULAR_SHARE * len(steps):
        notes.append(
            f"only {counts.max() / len(steps):.0%} of the bars are {datetime.timedelta(microseconds=bar // 1000)} apart"
        )
    if (steps < bar / GAP).any():
        notes.append(
            f"{int((steps < bar / GAP).sum()):,} bars follow sooner than one bar size: two bar sizes may be mixed"
        )
    return DataReport(
        source=source,
        columns=dict(columns),
        rows_read=rows_read,
        rows_kept=len(bars.ns),
        dropped=bars.dropped,
        repaired=bars.repaired,
        first=_datetime(bars.ns[0]),
        last=_datetime(bars.ns[-1]),
        bar_size=datetime.timedelta(microseconds=bar // 1000),
        gaps=int(is_gap.sum()),
        largest_gaps=tuple(
            Gap(_datetime(bars.ns[i]), _datetime(bars.ns[i + 1]), int(np.rint(steps[i] / bar)) - 1) for i in longest
        ),
        bars_per_year=len(steps) * YEAR / int(bars.ns[-1] - bars.ns[0]),
        assumed=tuple(assumed),
        warnings=tuple(notes),
    )


def _clean_volume(volume: FloatArray) -> tuple[FloatArray, dict[str, int], list[str]]:
    """Volume without missing or negative values: 0 says that nothing is known to have traded."""
    unknown = ~np.isfinite(volume) | (volume < 0)
    volume = np.where(unknown, 0.0, volume) + 0.0  # -0.0 becomes 0.0
    if not volume.any():
        return volume, {}, ["no volume: the volume features are neutral"]
    return volume, {"missing or negative volume set to 0": int(unknown.sum())} if unknown.any() else {}, []


def _order(ns: IntArray, values: FloatArray, origin: str) -> tuple[IntArray, FloatArray, dict[str, int], list[str]]:
    """Ascending, one bar a time: copies are dropped, of bars that differ the last in the file is kept and reported."""
    order = np.argsort(ns, kind="stable")
    ns, values = ns[order], values[order]
    last = np.append(ns[1:] != ns[:-1], True)
    if last.all():
        return ns, values, {}, []
    kept = np.flatnonzero(last)[np.cumsum(np.append(0, last[:-1]))]  # for each row, the row kept for its time
    conflict = ~last & (values != values[kept]).any(axis=1)
    dropped = {
        "identical duplicate": int((~last & ~conflict).sum()),
        "another bar of the same time": int(conflict.sum()),
    }
    warnings = []
    times = np.unique(ns[conflict])
    if len(times) > max(CONFLICT_ROWS, CONFLICT_SHARE * last.sum()):
        raise ValueError(
            f"{origin}: {len(times):,} of {int(last.sum()):,} times have two different bars, first at {_datetime(times[0])}; "
            "it seems to hold more than one series: keep one of them"
        )
    if len(times):
        warnings.append(
            f"{len(times):,} times have bars that differ, first at {_datetime(times[0]):%Y-%m-%d %H:%M:%S}; "
            "the last one in the file was kept"
        )
    return ns[last], values[last], {reason: count for reason, count in dropped.items() if count}, warnings


def _datetime(ns: np.int64) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(ns) // 10**9, datetime.UTC) + datetime.timedelta(
        microseconds=int(ns) % 10**9 // 1000
    )


def in_words(span: datetime.timedelta) -> str:
    """A span as a person says it: 1 day, 4 hours, 5 minutes; as Python writes it where no unit divides it."""
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        count, rest = divmod(span.total_seconds(), unit)
        if count and not rest:
            return f"{count:.0f} {name}{'s' if count > 1 else ''}"
    return str(span)
