"""Bars of one or several instruments made ready for training: features, the splits by time, and what run.json records of them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_trade.cli.data import SPLITS
from jaxrl_trade.market import Market, split
from jaxrl_trade.parts import Part
from jaxrl_trade.patience import working

if TYPE_CHECKING:
    from jaxrl_trade.bars import Bars

FRACTIONS = (0.7, 0.15, 0.15)  # of the bar times with features: train, validation, test
FEW_DAYS, FEW_BARS = 20, 500  # below either, validation chooses and the test judges by luck
HISTORIES = 4  # truncated ones on which features of the user's own are computed again


@dataclasses.dataclass(frozen=True)
class Range:
    """Consecutive bars of an instrument: positions [first, end) and the times of the first and the last of them."""

    first: int
    end: int
    start_time: str
    last_time: str

    def __str__(self) -> str:
        return f"{self.start_time} to {self.last_time}, {self.end - self.first:,} bars"


@dataclasses.dataclass(frozen=True)
class Instrument:
    """Bars, and their part of each split; None where they have fewer than 2 bars in it."""

    bars: Bars
    ranges: dict[str, Range | None]

    def record(self) -> dict[str, Any]:
        """What run.json says of it."""
        splits = {name: None if range_ is None else dataclasses.asdict(range_) for name, range_ in self.ranges.items()}
        return {"sha256": self.bars.sha256, "report": self.bars.report.as_dict(), "splits": splits}


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Instruments in one Market, with its three splits."""

    instruments: tuple[Instrument, ...]
    markets: dict[str, Market]
    embargo: int

    @property
    def name(self) -> str:
        """Of the instrument, or how many there are."""
        n = len(self.instruments)
        return self.instruments[0].bars.symbol if n == 1 else f"{n}-instruments"

    @property
    def sha256(self) -> str:
        """Of the bars; of several instruments the hash of their symbols and hashes."""
        if len(self.instruments) == 1:
            return self.instruments[0].bars.sha256
        words = [f"{each.bars.symbol} {each.bars.sha256}" for each in self.instruments]
        return hashlib.sha256("\n".join(words).encode()).hexdigest()

    def facts(self, paths: Sequence[Path], options: Mapping[str, Any]) -> dict[str, Any]:
        """What run.json says of the data."""
        given = [str(path.absolute()) for path in paths]
        common = {"options": options, "sha256": self.sha256, "fractions": list(FRACTIONS), "embargo": self.embargo}
        if len(self.instruments) == 1 and len(given) <= 1:
            (only,) = self.instruments
            return {"path": given[0] if given else None, "symbol": only.bars.symbol, **common, **only.record()}
        each = {one.bars.symbol: one.record() for one in self.instruments}
        return {"paths": given, **common, "splits": self._times(), "instruments": each}

    def lines(self) -> list[str]:
        """The data for people: the report, features, splits."""
        market = self.markets["train"]
        features = f"features       {market.n_features} of {market.n_bars:,} bars"
        if len(self.instruments) == 1:
            (only,) = self.instruments
            return [
                *only.bars.report.lines(),
                features,
                *(line for name, range_ in only.ranges.items() for line in self._split(name, str(range_))),
            ]
        times = {name: f"{time['start_time']} to {time['last_time']}" for name, time in self._times().items()}
        return [
            *(line for one in self.instruments for line in _brief(one.bars)),
            features,
            *(line for name, text in times.items() for line in self._split(name, text)),
        ]

    def _split(self, name: str, text: str) -> list[str]:
        """A split in a line, and a warning where it is short."""
        line, days, bars = f"{name:<14} {text}", self._days(name), self._bars(name)
        if name == "train" or (days >= FEW_DAYS and bars >= FEW_BARS):
            return [line]
        use = "to choose weights by" if name == "validation" else "to judge by"
        return [
            line,
            f"               warning: {bars:,} bars on {days} days are few {use}; bring more, or take jaxrl-trade walk-forward",
        ]

    def _bars(self, name: str) -> int:
        """Of a split, over all instruments."""
        return sum(r.end - r.first for one in self.instruments if (r := one.ranges[name]) is not None)

    def _days(self, name: str) -> int:
        """UTC days of a split that hold bars, over all instruments."""
        ranges = [(one.bars.index, r) for one in self.instruments if (r := one.ranges[name]) is not None]
        return len(np.unique(np.concatenate([index[r.first : r.end].floor("D").asi8 for index, r in ranges])))

    def _times(self) -> dict[str, dict[str, str]]:
        """The first and the last time of each split, over all instruments."""
        times = {}
        for name in SPLITS:
            ranges = [range_ for one in self.instruments if (range_ := one.ranges[name]) is not None]
            times[name] = {
                "start_time": min(r.start_time for r in ranges),
                "last_time": max(r.last_time for r in ranges),
            }
        return times


def prepare(bars: Sequence[Bars], features_by: Part | None = None) -> Prepared:
    """Features, Market and splits of instruments.

    Args:
      bars: of each of them.
      features_by: the user's own features; None are the package's.
    Raises:
      ValueError: too few bars for the features' warm-up or for a split; features that know the future.
    """
    embargo = _look_back()
    least = embargo + math.ceil((embargo + 2) / min(FRACTIONS))
    longest = max(bars, key=len)
    if len(longest) < least:
        raise ValueError(
            f"{longest.source} has {len(longest):,} bars; the features' warm-up and the gaps between train, validation and test "
            f"bars ({embargo} bars each) need at least {least:,}, and learning anything several times as many"
        )
    if features_by is not None:
        check_features(bars[0], features_by)
    with working(f"computing features of {sum(map(len, bars)):,} bars"):
        whole = Market.from_bars(bars, features_by)
    firsts, lasts = np.asarray(whole.segments).T
    skipped = [len(each) - int(n) for each, n in zip(bars, lasts - firsts + 1, strict=True)]
    embargo = max(embargo, *skipped)
    markets = dict(zip(SPLITS, split(whole, FRACTIONS, embargo), strict=True))
    instruments = []
    for i, each in enumerate(bars):
        moved = skipped[i] - int(firsts[i])  # from rows of the Market to positions in the instrument's bars
        ranges = {name: _range(each, np.asarray(market.segments)[i] + moved) for name, market in markets.items()}
        instruments.append(Instrument(each, ranges))
    return Prepared(tuple(instruments), markets, embargo)


def check_features(bars: Bars, features_by: Part) -> None:
    """Refuses features of the user's own that change when later bars are taken away.

    Raises:
      ValueError: names the first of them.
    """
    from jaxrl_trade.bars import check_lookahead
    from jaxrl_trade.bars import features_by as by

    with working(f"computing {features_by} again on {HISTORIES} truncated histories"):
        report = check_lookahead(bars, HISTORIES, functools.partial(by, features_by), since=_look_back())
    if not report.ok:
        raise ValueError(f"{features_by} knows the future: {report.lines()[0]}")


def _range(bars: Bars, positions: np.ndarray) -> Range | None:
    first, last = (int(position) for position in positions)
    if last - first < 1:
        return None
    start_time, last_time = (f"{bars.index[i]:%Y-%m-%d %H:%M}" for i in (first, last))
    return Range(first, last + 1, start_time, last_time)


def _brief(bars: Bars) -> list[str]:
    """One of several instruments in a line, and its warnings."""
    report = bars.report
    dropped = sum(report.dropped.values())
    return [
        f"{bars.symbol:<14} {report.first:%Y-%m-%d %H:%M} to {report.last:%Y-%m-%d %H:%M}, {report.rows_kept:,} bars, "
        f"{dropped:,} rows dropped, {report.gaps:,} gaps",
        *(f"               warning: {warning}" for warning in report.warnings),
    ]


def _look_back() -> int:
    from jaxrl_trade.bars import WARMUP

    return WARMUP  # no bar of a split looks back into the one before it
