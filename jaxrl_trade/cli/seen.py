"""Which bars of a file a run has seen in training or validation, and where the bars begin that it has not."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_trade.cli.recorded import load_again, recorded

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.backtesting import BacktestReport
    from jaxrl_trade.bars import Bars

Ranges = list[tuple["Bars", str | int | None, str | int | None]]  # bars, and the start and end of those to trade


@dataclasses.dataclass(frozen=True)
class Span:
    """The time of the bars that an agent was trained and chosen on, both ends included."""

    first: pd.Timestamp
    last: pd.Timestamp

    def holds(self, index: pd.DatetimeIndex) -> np.ndarray:
        """Whether each time lies in the span, `[n]` bool; run.json gives its ends to the minute."""
        minutes = index.floor("min")
        return np.asarray((minutes >= self.first) & (minutes <= self.last))

    def __str__(self) -> str:
        return f"{self.first:%Y-%m-%d} to {self.last:%Y-%m-%d}"


def seen_by(facts: Mapping[str, Any], bars: Bars) -> tuple[Span | None, bool]:
    """The time that a run has seen, where the bars lie in it, and whether they are of an instrument that it was trained on.

    The same instrument has the same symbol, or the same closes: a newer export often has another name. A run that says nothing of
    its data has seen nothing.

    Args:
      facts: of run.json.
      bars: of one instrument.
    Raises:
      ValueError: a record of the data that is damaged.
    """
    if facts.get("data") is None:
        return None, False
    saved = recorded(facts)
    each = saved.get("instruments") or {str(saved.get("symbol")): saved}
    known = {symbol.lower(): span for symbol, one in each.items() if (span := _span(one["splits"])) is not None}
    span = known.get(bars.symbol.lower())
    if span is None and (whole := _span(saved["splits"])) is not None and whole.holds(bars.index).any():
        return whole, _holds_the_same(facts, bars)
    return (span, True) if span is not None and span.holds(bars.index).any() else (None, False)


def unseen_ranges(facts: Mapping[str, Any], every: Sequence[Bars], end: str | None) -> Ranges:
    """The bars of each instrument that a run has not seen; where that is not all of them, a line on stderr says so.

    Args:
      facts: of run.json.
      every: the instruments of other files.
      end: of the range, as for `backtest`.
    Raises:
      ValueError: nothing unseen is left of any of them.
    """
    from jaxrl_trade.backtesting.tracks import position_of

    found: Ranges = []
    for bars in every:
        span, is_same = seen_by(facts, bars)
        first = None if span is None or not is_same else _first_unseen(facts, bars, span)
        if span is not None and not is_same:
            print(
                f"note: {bars.symbol} shares time with the bars that the agent was trained and chosen on ({span}): if it moves "
                "with them, the agent has seen part of it",
                file=sys.stderr,
            )
        if first is None:
            found.append((bars, None, end))
            continue
        said = f"the run has seen {bars.symbol} from {span}, and the {_gap(facts)} bars after that are left out"
        if len(bars) - first < 2 or (end is not None and position_of(end, bars.index, "end") - first < 2):
            until = "" if end is None else f" before {end}"
            line = f"{bars.source} has no unseen bars{until}: {said}; --start DATE trades seen bars all the same"
            if len(every) == 1:
                raise ValueError(line)
            print(line, file=sys.stderr)
            continue
        print(f"the backtest begins on {bars.index[first]:%Y-%m-%d %H:%M}: {said}", file=sys.stderr)
        found.append((bars, first, end))
    if not found:
        raise ValueError("no file has unseen bars; bring newer ones, or choose a range with --start DATE")
    return found


def with_seen(report: BacktestReport, facts: Mapping[str, Any], bars: Bars) -> BacktestReport:
    """The report, with the number of its bars that the run has seen."""
    import pandas as pd

    span, is_same = seen_by(facts, bars)
    seen = 0 if span is None or not is_same else int(span.holds(pd.DatetimeIndex(report.equity.index)).sum())
    return dataclasses.replace(report, seen_bars=seen)


def _first_unseen(facts: Mapping[str, Any], bars: Bars, span: Span) -> int:
    """Position of the first bar after those that the run has seen and the gap that its own splits have between them."""
    return int(np.flatnonzero(span.holds(bars.index))[-1]) + 1 + _gap(facts)


def _gap(facts: Mapping[str, Any]) -> int:
    from jaxrl_trade.bars import WARMUP

    return int(recorded(facts).get("embargo", WARMUP))


def _span(splits: Mapping[str, Any]) -> Span | None:
    import pandas as pd

    ranges = [found for name in ("train", "validation") if (found := splits[name]) is not None]
    if not ranges:
        return None
    times = [pd.Timestamp(found[end], tz="UTC") for found in ranges for end in ("start_time", "last_time")]
    return Span(min(times), max(times))


def _holds_the_same(facts: Mapping[str, Any], bars: Bars) -> bool:
    """Whether at least half of the closes at shared times are those of an instrument of the run; False if its files are gone."""
    try:
        own = load_again(facts)
    except (OSError, ValueError):
        return False
    for each in own:
        shared = each.index.intersection(bars.index)
        then, now = (one.frame["close"].reindex(shared).to_numpy() for one in (each, bars))
        if len(shared) and np.isclose(then, now, rtol=1e-6, atol=0.0).mean() >= 0.5:
            return True
    return False
