"""The feature list: names, ranges, version, and `features(bars)`, which turns clean bars into a `[T', 51]` table.

Every feature is causal, free of the price's scale and finite, and nothing is fitted to the data, so nothing of a test period
can leak into training. The formulas are in `indicators.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxrl_trade.bars import indicators
from jaxrl_trade.bars.rolling import FloatArray
from jaxrl_trade.parts import named

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.bars.bars import Bars

FEATURE_VERSION = 1
WARMUP = 320  # bars dropped at the start: the slowest feature (rvol_64_z) is first complete at row 319
HISTORY = 1024  # bars after which the slowest average (ema_dist_144) has forgotten all earlier ones, to 1e-4

# name -> range the feature is clipped to, in the table's order
FEATURE_RANGES: dict[str, tuple[float, float]] = {
    **{f"ret_{k}": (-5.0, 5.0) for k in (1, 2, 4, 8, 16, 32, 64, 128)},
    "gap": (-5.0, 5.0),
    "range": (-1.0, 4.0),
    "body": (-1.0, 1.0),
    "clv": (-1.0, 1.0),
    "wick": (-1.0, 1.0),
    **{f"ema_dist_{n}": (-5.0, 5.0) for n in (8, 21, 55, 144)},
    "macd": (-5.0, 5.0),
    "macd_hist": (-5.0, 5.0),
    "adx_14": (-1.0, 1.0),
    "di_diff_14": (-2.0, 2.0),
    "aroon_25": (-1.0, 1.0),
    "slope_32": (-5.0, 5.0),
    **{f"rsi_{n}": (-1.0, 1.0) for n in (7, 14, 28)},
    "stoch_k": (-1.0, 1.0),
    "cci_20": (-3.0, 3.0),
    "mfi_14": (-1.0, 1.0),
    "ultosc": (-1.0, 1.0),
    "natr_z": (-5.0, 5.0),
    "rvol_16_z": (-5.0, 5.0),
    "rvol_64_z": (-5.0, 5.0),
    "vol_ratio_16_128": (-3.0, 3.0),
    "parkinson_32_z": (-5.0, 5.0),
    "gk_cc_ratio_32": (-3.0, 3.0),
    "bb_pctb_20": (-3.0, 3.0),
    "bb_width_z": (-5.0, 5.0),
    **{f"donchian_{n}": (-1.0, 1.0) for n in (20, 55, 252)},
    "drawdown_252": (-5.0, 0.0),
    "volume_z_64": (-5.0, 5.0),
    "volume_ratio_8_64": (-3.0, 3.0),
    "cmf_20": (-1.0, 1.0),
    "vwap_dist_32": (-5.0, 5.0),
    "obv_flow_32": (-1.0, 1.0),
    **dict.fromkeys(("tod_sin", "tod_cos", "dow_sin", "dow_cos"), (-1.0, 1.0)),
}
FEATURE_NAMES: tuple[str, ...] = tuple(FEATURE_RANGES)


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureTable:
    """Features of T' bars.

    Attributes:
      values: `[T', F]` float64, without units.
      names: F names, in the order of the columns.
      version: of the list of features; a checkpoint stores it beside the names.
      index: the T' bars the rows belong to, a part of `bars.frame.index`.
    """

    values: FloatArray
    names: tuple[str, ...]
    version: int
    index: pd.DatetimeIndex

    def __len__(self) -> int:
        return len(self.values)


def features(bars: Bars, tz: str | None = None) -> FeatureTable:
    """The 51 features of every bar after the first `WARMUP`.

    Args:
      bars: T clean bars.
      tz: zone whose clock the time of day and the weekday are taken from; UTC when None.
    Returns:
      Table of T - WARMUP rows, every value finite and inside `FEATURE_RANGES`.
    Raises:
      ValueError: there are not more than `WARMUP` bars.
    """
    if len(bars) <= WARMUP:
        raise ValueError(
            f"{bars.symbol} has {len(bars)} bars, but the features need more than {WARMUP} "
            f"(the first {WARMUP} only warm the indicators up); give a longer file"
        )
    raw = {name: bars.frame[name].to_numpy(np.float64) for name in ("open", "high", "low", "close", "volume")}
    prices = indicators.Prices.of(**raw)
    columns = _columns(prices, prices, bars.times, tz)
    values = np.empty((len(bars) - WARMUP, len(FEATURE_NAMES)), order="F")  # filled column by column
    for i, (name, (low, high)) in enumerate(FEATURE_RANGES.items()):
        np.clip(columns[name][WARMUP:], low, high, out=values[:, i])
    return FeatureTable(values=values, names=FEATURE_NAMES, version=FEATURE_VERSION, index=bars.index[WARMUP:])


# T bars -> T' rows of features, as a FeatureTable, a frame or an array `[T', F]`; the last row belongs to the last bar
FeatureFunction = Callable[["Bars"], Any]


def features_by(function: FeatureFunction | None, bars: Bars) -> FeatureTable:
    """The features that a function of the user's own makes of bars; `features` where it is None.

    Args:
      function: see `FeatureFunction`. Rows that its windows do not fill must be left out, or be NaN at the beginning.
      bars: T clean bars.
    Raises:
      ValueError: it gives no table of numbers, none or too many rows, or a value that is not finite after the first row that is.
    """
    if function is None:
        return features(bars)
    result = function(bars)
    if isinstance(result, FeatureTable):
        return result
    values, name = _table(result, bars, named(function)), named(function)
    is_ready = np.asarray(np.isfinite(values).all(axis=1))
    first = int(np.argmax(is_ready))
    values = values[first:]
    if not is_ready.any():
        raise ValueError(f"features {name} gives no complete row for {len(bars):,} bars; bring more bars")
    for row in np.flatnonzero(~is_ready[first:])[:1]:
        raise ValueError(
            f"features {name} gives a value that is not finite at {bars.index[len(bars) - len(values) + row]}, after rows that are"
        )
    columns = getattr(result, "columns", None)
    names = tuple(f"feature_{i}" for i in range(values.shape[1])) if columns is None else tuple(map(str, columns))
    return FeatureTable(values=values, names=names, version=0, index=bars.index[-len(values) :])


def _table(result: Any, bars: Bars, name: str) -> FloatArray:
    """What a function of the user's own gave, as numbers `[T', F]`."""
    try:
        values = np.asarray(result, np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"features {name} gives no table of numbers ({error})") from None
    if values.ndim != 2 or not values.size or len(values) > len(bars):
        raise ValueError(
            f"features {name} gives shape {values.shape} for {len(bars):,} bars; it must be [T', F], at most a row for each bar"
        )
    return values


def last_features(raw: dict[str, FloatArray], times: NDArray[np.datetime64], tz: str | None = None) -> FloatArray:
    """`[F]`: the row that `features` gives to the last bar, without the others; made for a live loop.

    Args:
      raw: open, high, low, close and volume, `[T]` float64 each, of more than `WARMUP` clean bars; the last `HISTORY` give
        what the whole history would, to 1e-4.
      times: `[T]` datetime64, UTC.
      tz: as in `features`.
    """
    prices, few = indicators.Prices.of(**raw), WARMUP + 1
    columns = _columns(prices, prices.tail(few), times[-few:], tz)
    low, high = np.array(list(FEATURE_RANGES.values())).T
    return np.clip([columns[name][-1] for name in FEATURE_NAMES], low, high)


def _columns(
    prices: indicators.Prices, recent: indicators.Prices, times: NDArray[np.datetime64], tz: str | None
) -> indicators.Columns:
    """All features by name, not clipped yet, NaN where a window is not full.

    Args:
      prices: of all bars, for averages that never quite forget.
      recent: of all bars too, or of as many as the longest window needs.
      times: of the bars in `recent`.
      tz: as in `features`.
    """
    return (
        indicators.return_features(recent)
        | indicators.bar_features(recent)
        | indicators.trend_features(prices)
        | indicators.oscillator_features(prices)
        | indicators.volatility_features(recent)
        | indicators.channel_features(recent)
        | indicators.volume_features(recent)
        | indicators.clock_features(*_clock(times, tz))
    )


def _clock(times: NDArray[np.datetime64], tz: str | None) -> tuple[FloatArray, FloatArray]:
    """Minute of the day and weekday (Monday is 0) of UTC times, read off a clock in `tz`."""
    if tz is not None:
        from jaxrl_trade.bars.zones import wall_clock

        times = wall_clock(times, tz)
    minutes = times.astype("datetime64[m]").astype(np.int64)
    return (minutes % 1440).astype(np.float64), ((minutes // 1440 + 3) % 7).astype(np.float64)  # day 0 was a Thursday
