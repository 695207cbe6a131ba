"""What a backtest walks over: the features and prices of one range of one instrument, on the host in NumPy.

Owns the reading of `start` and `end`. Leaves cleaning and features to `bars/`, splits to `market`.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_trade.market import Market

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.bars import Bars, FeatureFunction

When = int | str | datetime.date | None  # a bar's position, or a moment (pandas and datetime timestamps are dates)


class Track(NamedTuple):
    """n bars in a row: the account starts on the first, decides on each but the last, which only marks it."""

    features: np.ndarray  # [n, F] float32
    open: np.ndarray  # [n] float64, currency per unit, as the other prices
    high: np.ndarray
    low: np.ndarray
    close: np.ndarray
    minutes: np.ndarray  # [n] int64, since 1970 UTC

    @property
    def n_steps(self) -> int:
        """Decisions on this track: one less than its bars."""
        return len(self.close) - 1


def track_of_bars(
    bars: Bars, start: When = None, end: When = None, features: FeatureFunction | None = None
) -> tuple[Track, int]:
    """The bars [start, end), whose features look back on every bar before them, and the position of the first in `bars.frame`.

    Args:
      bars: one instrument.
      start: position in `bars.frame`, date or timestamp (UTC where it names no zone); None is the first bar with features.
      end: likewise, and not part of the range; None is the end of the bars.
      features: the policy's own, see `bars.FeatureFunction`; None are the 51.
    Raises:
      ValueError: something else than Bars, a start outside the bars or within the features' warm-up, an end before it or beyond
        the bars, fewer than 2 bars.
    """
    from jaxrl_trade.bars import Bars, features_by

    if not isinstance(bars, Bars):
        raise ValueError(f"bars is a {type(bars).__name__}; give Bars, as load_bars and sample_bars make them")
    table, index = features_by(features, bars), bars.index
    first_ready = len(index) - len(table.values)  # the warm-up
    first = first_ready if start is None else position_of(start, index, "start")
    last = len(index) if end is None else position_of(end, index, "end")
    if first < first_ready:
        raise ValueError(
            f"start = {start} is bar {first}, but features need the {first_ready} bars before the first one traded; "
            f"start at {index[first_ready]} (bar {first_ready}) or later"
        )
    if last - first < 2:
        raise ValueError(
            f"start = {start}, end = {end} hold {max(last - first, 0)} bars; a backtest needs at least 2 "
            f"(the bars run from {index[0]} to {index[-1]}, the end is not included)"
        )
    rows = bars.frame.iloc[first:last]
    prices = {name: rows[name].to_numpy(np.float64) for name in ("open", "high", "low", "close")}
    values = np.asarray(table.values[first - first_ready : last - first_ready], np.float32)
    return Track(features=values, **prices, minutes=minutes_of(index[first:last])), first


def tracks_of_market(market: Market) -> tuple[Track, ...]:
    """One track for each instrument of a Market, over the bars of its split; none of an instrument with fewer than 2 there.

    Raises:
      ValueError: no instrument has 2.
    """
    tracks = []
    for first, last in np.asarray(market.segments):
        if last - first < 1:
            continue
        rows = slice(int(first), int(last) + 1)
        prices = {
            name: np.asarray(getattr(market, name)[rows], np.float64) for name in ("open", "high", "low", "close")
        }
        features, minutes = np.asarray(market.features[rows], np.float32), np.asarray(market.time[rows], np.int64)
        tracks.append(Track(features=features, **prices, minutes=minutes))
    if not tracks:
        raise ValueError(f"no instrument has 2 bars in this split of {', '.join(market.instruments)}; bring more bars")
    return tuple(tracks)


def minutes_of(index: pd.DatetimeIndex) -> np.ndarray:
    """Minutes since 1970 UTC of an index."""
    return index.as_unit("s").asi8 // 60


def position_of(when: Any, index: pd.DatetimeIndex, name: str) -> int:
    """Position of the first bar at or after `when`; an `end` may lie one past the last bar, or at any later moment."""
    import pandas as pd

    if isinstance(when, (int, np.integer)) and not isinstance(when, bool):
        most = len(index) - 1 if name == "start" else len(index)
        if not 0 <= when <= most:
            raise ValueError(f"{name} = {when} is no bar of the data; its bars are numbered 0 to {len(index) - 1}")
        return int(when)
    try:
        moment = None if isinstance(when, bool) else pd.Timestamp(when)
    except (ValueError, TypeError, OverflowError):
        moment = None
    if moment is None or moment is pd.NaT:
        raise ValueError(
            f"{name} = {when!r} is neither a date nor a bar number; write it like 2024-03-01 or as an integer"
        )
    moment = moment.tz_localize("UTC") if moment.tzinfo is None else moment.tz_convert("UTC")
    if moment < index[0] or (name == "start" and moment > index[-1]):
        raise ValueError(f"{name} = {when} is outside the data, which runs from {index[0]} to {index[-1]}")
    return int(index.searchsorted(moment))
