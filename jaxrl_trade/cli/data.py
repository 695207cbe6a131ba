"""Bars for a command: the flags that say how to read a file, the record of it in run.json, and the splits by time."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from jaxrl_trade.market import Market, split
from jaxrl_trade.parts import Part

if TYPE_CHECKING:
    from jaxrl_trade.bars import Bars

FRACTIONS = (0.7, 0.15, 0.15)  # of the bars with features: train, validation, test
SPLITS = ("train", "validation", "test")
HISTORIES = 4  # truncated ones on which features of the user's own are computed again


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadFlags:
    """How to read a price file, where the file itself leaves it open."""

    symbol: Annotated[
        str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: the file's only one)")
    ] = None
    """The instrument to take from a file or folder of several."""
    tz: Annotated[str | None, tyro.conf.arg(metavar="ZONE", help_behavior_hint="(default: UTC)")] = None
    """Time zone of times without an offset, such as America/New_York."""
    day_first: bool = False
    """03/04/2021 is the third of April."""
    month_first: bool = False
    """03/04/2021 is the fourth of March."""
    columns: Annotated[
        str | None, tyro.conf.arg(metavar="ROLE=NAME,...", help_behavior_hint="(default: found out)")
    ] = None
    """Columns whose names are not understood: close=Last,time=Stamp."""
    decimal: Annotated[str | None, tyro.conf.arg(metavar=". or ,", help_behavior_hint="(default: found out)")] = None
    """The decimal mark."""
    adjust: bool = False
    """Undo the splits that are noticed: divide the prices before each by its ratio."""

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `load_bars`, and JSON values."""
        from jaxrl_trade.bars.options import parse_columns

        if self.day_first and self.month_first:
            raise ValueError("--day-first and --month-first exclude each other")
        return {
            "symbol": self.symbol,
            "tz": self.tz,
            "day_first": True if self.day_first else False if self.month_first else None,
            "columns": parse_columns(self.columns) if self.columns else None,
            "decimal": self.decimal,
            **({"adjust": True} if self.adjust else {}),
        }


@dataclasses.dataclass(frozen=True)
class Range:
    """Consecutive bars of a file: positions [first, end) and the times of the first and the last of them."""

    first: int
    end: int
    start_time: str
    last_time: str

    def __str__(self) -> str:
        return f"{self.start_time} to {self.last_time}, {self.end - self.first:,} bars"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Bars with their three splits."""

    bars: Bars
    markets: dict[str, Market]
    ranges: dict[str, Range]
    embargo: int

    def facts(self, path: Path | None, options: dict[str, Any]) -> dict[str, Any]:
        """What run.json says of the data."""
        return {
            "path": None if path is None else str(path.absolute()),
            "options": options,
            "symbol": self.bars.symbol,
            "sha256": self.bars.sha256,
            "report": self.bars.report.as_dict(),
            "fractions": list(FRACTIONS),
            "embargo": self.embargo,
            "splits": {name: dataclasses.asdict(range_) for name, range_ in self.ranges.items()},
        }

    def lines(self) -> list[str]:
        """The data for people: the report, features, splits."""
        market = self.markets["train"]
        return [
            *self.bars.report.lines(),
            f"features       {market.n_features} of {market.n_bars:,} bars",
            *(f"{name:<14} {range_}" for name, range_ in self.ranges.items()),
        ]


def load(path: Path | None, options: dict[str, Any]) -> Bars:
    """Bars of a file, or the bundled sample.

    Raises:
      OSError, ValueError: as `load_bars`.
      ValueError: options for the sample, which needs none.
    """
    from jaxrl_trade.bars import load_bars, sample_bars

    if path is not None:
        return load_bars(path, **options)
    if given := [name for name, value in options.items() if value is not None]:
        raise ValueError(f"{', '.join(given)} says how to read a file, but no --data was given")
    return sample_bars()


def load_again(facts: Mapping[str, Any], path: Path | None = None) -> Bars:
    """The bars a run was trained on.

    Args:
      facts: of run.json.
      path: where the file is now, if it was moved.
    Raises:
      OSError: the file is not there any more.
      ValueError: the run does not say, or the file has changed.
    """
    saved = recorded(facts)
    bars = load(path or (Path(saved["path"]) if saved["path"] else None), saved["options"])
    if bars.sha256 != saved["sha256"]:
        raise ValueError(f"{bars.source} does not hold the bars that the run was trained on: it has changed since")
    return bars


def recorded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json says of the data, as `Prepared.facts` wrote it.

    Raises:
      ValueError: it says nothing, or something else.
    """
    saved = facts.get("data")
    if saved is None:
        raise ValueError(
            "run.json names no price file: the run began in Python; resume it there, or backtest it on a file with --data"
        )
    kinds: dict[str, Any] = {"path": (str, type(None)), "options": dict, "sha256": str, "splits": dict}
    wrong = [
        k for k, kind in kinds.items() if not (isinstance(saved, dict) and k in saved and isinstance(saved[k], kind))
    ]
    if not wrong:
        known = ReadFlags(adjust=True).options()
        wrong += [f"options.{name}" for name in saved["options"] if name not in known]
        wrong += [f"splits.{name}" for name in SPLITS if not _is_range(saved["splits"].get(name))]
    if wrong:
        raise ValueError(f"run.json is damaged: its record of the data has no usable {', '.join(wrong)}")
    return saved


def _is_range(value: Any) -> bool:
    kinds = {"first": int, "end": int, "start_time": str, "last_time": str}
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in kinds.items())


def prepare(bars: Bars, features_by: Part | None = None) -> Prepared:
    """Features, Market and splits of bars.

    Args:
      bars: of one instrument.
      features_by: the user's own features; None are the package's.
    Raises:
      ValueError: too few bars for the features' warm-up or for a split; features that know the future.
    """
    embargo = _look_back()
    least = embargo + math.ceil((embargo + 2) / min(FRACTIONS))
    if len(bars) < least:
        raise ValueError(
            f"{bars.source} has {len(bars):,} bars; the features' warm-up and the gaps between train, validation and test "
            f"bars ({embargo} bars each) need at least {least:,}, and learning anything several times as many"
        )
    if features_by is not None:
        check_features(bars, features_by)
    whole = Market.from_bars(bars, features_by)
    skipped = len(bars) - whole.n_bars
    embargo = max(embargo, skipped)
    markets = dict(zip(SPLITS, split(whole, FRACTIONS, embargo), strict=True))
    ranges = {}
    for name, market in markets.items():
        first, last = (int(row) + skipped for row in np.asarray(market.segments)[0])
        start_time, last_time = (f"{bars.frame.index[i]:%Y-%m-%d %H:%M}" for i in (first, last))
        ranges[name] = Range(first, last + 1, start_time, last_time)
    return Prepared(bars, markets, ranges, embargo)


def check_features(bars: Bars, features_by: Part) -> None:
    """Refuses features of the user's own that change when later bars are taken away.

    Raises:
      ValueError: names the first of them.
    """
    from jaxrl_trade.bars import check_lookahead
    from jaxrl_trade.bars import features_by as by

    report = check_lookahead(bars, HISTORIES, functools.partial(by, features_by), since=_look_back())
    if not report.ok:
        raise ValueError(f"{features_by} knows the future: {report.lines()[0]}")


def _look_back() -> int:
    from jaxrl_trade.bars import WARMUP

    return WARMUP  # no bar of a split looks back into the one before it
