"""The newest bars of a live loop, as `Policy.act` takes them: read, and refused where they are not fit to act on."""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from jaxrl_trade.agents.origin import Origin

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.bars import Bars

COLUMNS = ("open", "high", "low", "close", "volume")
MINUTE = 60 * 10**9  # nanoseconds
FRESH = 2  # bars: a newest bar that old has a closed successor, whether bars are named by their beginning or their end


class History(NamedTuple):
    """The last n bars given."""

    ns: NDArray[np.int64]  # [n] UTC nanoseconds
    prices: dict[str, NDArray[np.float64]]  # [n] each


def bars_of(bars: Any, n: int) -> Bars:
    """The last n bars as `Bars`, for a function of features."""
    from jaxrl_trade.bars import Bars

    if isinstance(bars, Bars):
        return dataclasses.replace(bars, frame=bars.frame.iloc[-n:])
    return Bars.from_frame(bars.iloc[-n:])


def history_of(bars: Any, least: int) -> History:
    """The last `least` bars, refused unless they are as many, in order and clean."""
    import pandas as pd

    from jaxrl_trade.bars import Bars

    if isinstance(bars, Bars):
        frame = bars.frame
    elif isinstance(bars, pd.DataFrame) and isinstance(bars.index, pd.DatetimeIndex) and _is_plain(bars):
        frame = bars.rename(columns=str.lower) if set(bars.columns) - set(COLUMNS) else bars
    elif isinstance(bars, (list, tuple, dict, str, np.ndarray, type(None))):
        raise ValueError(f"bars is a {type(bars).__name__}; give Bars or a frame with a time, prices and volume")
    else:
        frame = Bars.from_frame(bars).frame
    if len(frame) < least:
        raise ValueError(
            f"the history has {len(frame):,} bars; act needs the last {least:,}, since the features' averages reach that far back"
        )
    rows = frame.iloc[-least:]
    ns = cast("pd.DatetimeIndex", rows.index).as_unit("ns").asi8
    if (np.diff(ns) <= 0).any():
        raise ValueError(
            "the bars are not in ascending order of time, each time once; sort them, and keep one bar of each"
        )
    if list(rows.columns) != list(COLUMNS):
        rows = rows.reindex(columns=COLUMNS, fill_value=0.0)  # a volume of 0 is one that is not known
    values = rows.to_numpy(np.float64)
    values = values if isinstance(bars, Bars) else _clean(ns, values)
    return History(ns, dict(zip(COLUMNS, np.ascontiguousarray(values.T), strict=True)))


def _is_plain(frame: pd.DataFrame) -> bool:
    """Whether a frame says nothing that needs to be found out: prices, perhaps volume, and no other column."""
    names = [str(name).lower() for name in frame.columns]
    return len(set(names)) == len(names) and {*COLUMNS[:4]} <= {*names} <= {*COLUMNS}


def _clean(ns: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values `[n, 5]` under the rules of files, but refused where a file's rows would be dropped."""
    from jaxrl_trade.bars import quality

    open, high, low, close, volume = values.T
    is_bar = (low > 0) & (np.minimum(open, close) >= low) & (np.maximum(open, close) <= high) & (volume >= 0)
    if is_bar.all() and np.isfinite(values).all():
        return values
    cleaned = quality.clean(ns, values, {}, "the history")
    for reason, count in cleaned.dropped.items():
        raise ValueError(f"the history has bars that are none ({count:,} {reason}); repair them before acting on it")
    return cleaned.values


def check_steps(ns: NDArray[np.int64], origin: Origin, allow_gaps: bool) -> None:
    """Refuses bars of another size, or with a step in time that the bars trained on never made."""
    steps = np.diff(ns)
    bar = _bar_size(steps)
    if origin.steps and bar != origin.steps[0] * MINUTE:
        raise ValueError(
            f"the bars are {_words(bar)} apart, but the policy was trained on bars {_words(origin.steps[0] * MINUTE)} apart"
        )
    if allow_gaps:
        return
    known = np.array(origin.steps or [bar // MINUTE], np.int64) * MINUTE if bar >= MINUTE else np.array([bar])
    unlike = "which no two bars trained on were" if origin.steps else "not " + _words(bar)
    for i in np.flatnonzero(~np.isin(steps, known))[-1:]:
        raise ValueError(
            f"the bars of {_text(ns[i])} and {_text(ns[i + 1])} are {_words(steps[i])} apart, {unlike}; fetch what is missing, "
            "or pass allow_gaps=True if the market was closed"
        )


def check_age(ns: NDArray[np.int64], now: int, max_age: Any) -> None:
    """Refuses a newest bar that a newer one must have followed, or that lies ahead."""
    import pandas as pd

    bar, age = _bar_size(np.diff(ns)), now - int(ns[-1])
    if age < 0:
        raise ValueError(
            f"the newest bar is of {_text(ns[-1])}, after now = {_text(now)}; check the zone of both (UTC where none is said)"
        )
    limit = FRESH * bar if max_age is None else pd.Timedelta(max_age).as_unit("ns").value + 1
    if age >= limit:
        raise ValueError(
            f"the history is stale: its newest bar is of {_text(ns[-1])}, {_words(age)} before now = {_text(now)}, where bars are "
            f"{_words(bar)} apart; fetch newer ones, or raise max_age if the market was closed"
        )


def _bar_size(steps: NDArray[np.int64]) -> int:
    """The most frequent step, nanoseconds."""
    sizes, counts = np.unique(steps, return_counts=True)
    return int(sizes[np.argmax(counts)])


def moment_of(when: Any) -> int:
    """UTC nanoseconds of a datetime, a timestamp or a text."""
    import pandas as pd

    try:
        moment = pd.Timestamp(when)
    except (ValueError, TypeError, OverflowError):
        moment = None
    if moment is None or moment is pd.NaT:
        raise ValueError(f"now = {when!r} is no time; give datetime.datetime.now(datetime.UTC), say")
    return int((moment.tz_localize("UTC") if moment.tzinfo is None else moment).as_unit("ns").value)


def _text(ns: int) -> str:
    import pandas as pd

    return f"{pd.Timestamp(int(ns)):%Y-%m-%d %H:%M} UTC"


def _words(ns: int) -> str:
    from jaxrl_trade.bars.quality import in_words

    return in_words(datetime.timedelta(microseconds=int(ns) // 1000))
