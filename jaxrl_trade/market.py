"""The Market pytree: prices and features of one or several instruments on the device, and which bars an episode may visit.

Owns validation of prices, valid episode starts and the split by time. Leaves files, cleaning and features to `bars/`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

if TYPE_CHECKING:
    from jaxrl_trade.bars import Bars, FeatureFunction

Array = jax.Array


class BarPrices(NamedTuple):
    """Prices around the step from bar t to t+1, each `[N]`: raw, in currency per unit."""

    close: Array  # close[t]
    next_open: Array
    next_high: Array
    next_low: Array
    next_close: Array


@struct.dataclass
class Market:
    """Bars of one or several instruments, end to end. Splits share the arrays and differ in `last_bar` and `segments`.

    `features [T, F]` (F = 51 as shipped, scale-free); `open`, `high`, `low`, `close [T]` raw prices in currency; `time [T]`
    int32, minutes since 1970 UTC (the bar's number where no times are known); `last_bar [T]` int32, the last bar of the
    instrument and of the split that a bar belongs to, -1 outside the split; `segments [K, 2]` int32, first and last bar of
    each of the K instruments in the split.
    """

    features: Array
    open: Array
    high: Array
    low: Array
    close: Array
    time: Array
    last_bar: Array
    segments: Array
    instruments: tuple[str, ...] = struct.field(pytree_node=False)
    feature_names: tuple[str, ...] = struct.field(pytree_node=False)
    features_by: Any = struct.field(
        pytree_node=False, default=None
    )  # what made the features of bars; None is the package

    @classmethod
    def from_bars(cls, bars: Bars | Sequence[Bars], features: FeatureFunction | None = None) -> Market:
        """A Market with the 51 features of each instrument, or with others; the warm-up bars of each are dropped.

        Args:
          bars: of one instrument, or of several.
          features: a function of Bars to features of one's own, see `bars.FeatureFunction`; None are the 51.
        Raises:
          ValueError: something else than Bars, too few bars for the features' warm-up, or two instruments of one name.
        """
        from jaxrl_trade.bars import Bars, features_by

        each = [bars] if not isinstance(bars, Sequence) else list(bars)
        if not each:
            raise ValueError("bars is an empty list; give at least one Bars")
        for i, b in enumerate(each):
            if not isinstance(b, Bars):
                raise ValueError(
                    f"bars[{i}] is a {type(b).__name__}; give Bars, as load_bars and sample_bars make them"
                )
        tables = [features_by(features, b) for b in each]
        frames = [b.frame.loc[t.index] for b, t in zip(each, tables, strict=True)]
        minutes = [t.index.as_unit("s").asi8 // 60 for t in tables]
        if len({t.names for t in tables}) > 1:
            raise ValueError(f"the instruments have other features each: {' / '.join(str(t.names) for t in tables)}")
        market = cls.from_arrays(
            np.concatenate([t.values for t in tables]),
            **{name: np.concatenate([f[name].to_numpy() for f in frames]) for name in ("close", "low", "high", "open")},
            instrument=np.repeat([b.symbol for b in each], [len(f) for f in frames]),
            time=np.concatenate(minutes),
            feature_names=tables[0].names,
        )
        return dataclasses.replace(market, features_by=features)

    @classmethod
    def from_arrays(
        cls,
        features: Any,
        close: Any,
        low: Any = None,
        high: Any = None,
        open: Any = None,  # the field's name for it
        instrument: Any = None,
        *,
        time: Any = None,
        feature_names: Sequence[str] = (),
    ) -> Market:
        """A Market from arrays on the host.

        Args:
          features: `[T, F]`, finite.
          close: `[T]`, positive, currency per unit.
          low, high, open: `[T]`; where absent, open[t] = close[t-1] within an instrument, and low and high are the smaller and
            the larger of open and close.
          instrument: `[T]` labels; bars of one instrument lie together. None is a single instrument.
          time: `[T]` minutes since 1970, ascending within an instrument; None numbers each instrument's bars from 0.
          feature_names: F names, or none.
        Raises:
          ValueError: wrong shapes, values that are not finite or too large for the device's floats, prices that are not positive,
            low above or high below the others.
        """
        features, close = _numbers("features", features), _numbers("close", close)
        if close.ndim != 1 or len(close) < 2:
            raise ValueError(f"close has shape {close.shape}; a Market needs one axis of at least 2 bars")
        if features.ndim != 2 or len(features) != len(close) or not features.shape[1]:
            raise ValueError(
                f"features has shape {features.shape}; with {len(close)} closes it must be [{len(close)}, F], F at least 1"
            )
        if feature_names and len(feature_names) != features.shape[1]:
            raise ValueError(f"{len(feature_names)} feature_names for {features.shape[1]} features")
        names, first = _instruments(instrument, len(close))
        prices = _complete_prices(close, low, high, open, first)
        _check_prices(prices)
        if not np.isfinite(features).all():
            t, f = np.argwhere(~np.isfinite(features))[0]
            raise ValueError(
                f"features[{t}, {f}] = {features[t, f]} is not finite; drop the warm-up rows or fill the gap"
            )
        _check_range(prices, features)
        last = np.append(first[1:], len(close)) - 1
        if time is None:
            time = np.concatenate([np.arange(b - a + 1) for a, b in zip(first, last, strict=True)])
        time = _check_time(time, first, len(close))
        segments = np.stack([first, last], axis=1)
        return cls(
            features=jnp.asarray(features, float),
            **{name: jnp.asarray(value, float) for name, value in prices.items()},
            time=jnp.asarray(time, jnp.int32),
            last_bar=jnp.asarray(_last_bar(segments, len(close)), jnp.int32),
            segments=jnp.asarray(segments, jnp.int32),
            instruments=names,
            feature_names=tuple(feature_names),
        )

    @property
    def n_bars(self) -> int:
        """T, the bars of all instruments and splits."""
        return self.close.shape[0]

    @property
    def n_features(self) -> int:
        """F, the market features of an observation."""
        return self.features.shape[1]

    def valid_starts(self, episode_length: int) -> np.ndarray:
        """Every bar s with s + episode_length <= last_bar[s], ascending, on the host.

        Raises:
          ValueError: an instrument of this split is too short for one episode; the message names it.
        """
        if not isinstance(episode_length, (int, np.integer)) or episode_length < 1:
            raise ValueError(f"episode_length = {episode_length!r} must be a whole number of at least 1")
        for name, (first, last) in zip(self.instruments, np.asarray(self.segments), strict=True):
            if last - first < episode_length:
                raise ValueError(
                    f"instrument {name!r} has {max(last - first + 1, 0)} bars in this split, too few for one episode of "
                    f"{episode_length} bars and the bar that ends it; bring more bars, shorten episode_length or leave it out"
                )
        last_bar = np.asarray(self.last_bar)
        return np.flatnonzero((last_bar >= 0) & (np.arange(self.n_bars) + episode_length <= last_bar)).astype(np.int32)

    def draw_starts(self, key: Array, shape: tuple[int, ...], episode_length: int) -> Array:
        """Uniform draws from the valid starts, int32 of the given shape; usable under jit (check with `valid_starts` first)."""
        first, last = self.segments[:, 0], self.segments[:, 1]
        ends = jnp.cumsum(jnp.maximum(last - first - episode_length + 1, 0))
        draw = jax.random.randint(key, shape, 0, ends[-1])
        k = jnp.searchsorted(ends, draw, side="right")
        return (last[k] - episode_length + 1 - (ends[k] - draw)).astype(jnp.int32)

    def check_starts(self, starts: Any, episode_length: int, name: str = "starts") -> None:
        """Refuses concrete starts that are not valid; traced ones pass (the look-ups clip them).

        Raises:
          ValueError: the first start that leaves its instrument or split before the episode ends; `name` is the argument's.
        """
        if isinstance(starts, jax.core.Tracer) or isinstance(self.last_bar, jax.core.Tracer):
            return
        flat, last_bar = np.ravel(np.asarray(starts)), np.asarray(self.last_bar)
        if flat.dtype.kind not in "iu":
            raise ValueError(f"{name} holds {flat.dtype}, but bars are whole numbers; see market.valid_starts")
        inside = (flat >= 0) & (flat < self.n_bars)
        left = np.where(inside, last_bar[np.clip(flat, 0, self.n_bars - 1)] - flat, -1)
        for i in np.flatnonzero(left < episode_length)[:1]:
            is_inside = left[i] >= 0
            where = f"leaves {left[i]} bars of its instrument" if is_inside else "is outside the split"
            raise ValueError(
                f"{name}[{i}] = {flat[i]} {where}, but episode_length is {episode_length}; "
                f"draw starts from market.valid_starts({episode_length})"
            )

    def prices_at(self, bar: Array) -> BarPrices:
        """Prices of the step from `bar` to the next one; indices are clipped to the data, never wrapped."""
        now, then = jnp.clip(bar, 0, self.n_bars - 1), jnp.clip(bar + 1, 0, self.n_bars - 1)
        return BarPrices(self.close[now], self.open[then], self.high[then], self.low[then], self.close[then])

    def close_at(self, bar: Array) -> Array:
        """close[bar], the index clipped to the data."""
        return self.close[jnp.clip(bar, 0, self.n_bars - 1)]

    def is_last(self, bar: Array) -> Array:
        """Whether no bar of the same instrument and split follows, the index clipped to the data."""
        return self.last_bar[jnp.clip(bar, 0, self.n_bars - 1)] <= bar

    def features_at(self, bar: Array) -> Array:
        """features[bar], `[..., F]`, the index clipped to the data."""
        return self.features[jnp.clip(bar, 0, self.n_bars - 1)]


def split(market: Market, fractions: Sequence[float] = (0.7, 0.15, 0.15), embargo: int = 320) -> tuple[Market, ...]:
    """Consecutive splits by time (train, validation, test), with an embargo between neighbours.

    Several instruments are cut at the same moments, so that no split knows what another instrument does in a later one. The first
    `embargo` bars of an instrument after each cut belong to no split: their features still look back across the cut.

    Args:
      market: the whole Market; the splits share its arrays.
      fractions: of the distinct bar times, one for each split; they sum to at most 1.
      embargo: bars; at least the features' warm-up (320) for splits that share no bar at all.
    Raises:
      ValueError: fractions that are not positive or exceed 1, a negative embargo, or a split left empty by them.
    """
    parts = _numbers("fractions", fractions)
    if parts.ndim != 1 or not len(parts) or not (parts > 0).all() or not parts.sum() <= 1 + 1e-9:
        raise ValueError(f"fractions = {fractions} must be a list of shares, each positive, that sum to at most 1")
    if not isinstance(embargo, (int, np.integer)) or embargo < 0:
        raise ValueError(f"embargo = {embargo!r} must be 0 bars or more, a whole number")
    time, whole = np.asarray(market.time), np.asarray(market.segments)
    moments = np.unique(np.concatenate([time[a : b + 1] for a, b in whole]))
    cuts = [round(x * len(moments)) for x in np.cumsum([0.0, *parts])]
    splits = []
    for i, (begin, end) in enumerate(itertools.pairwise(cuts)):
        segments = np.array([_bars_between(time, a, b, moments, begin, end) for a, b in whole])
        segments[:, 0] += embargo if i else 0
        if (segments[:, 0] > segments[:, 1]).all():
            raise ValueError(
                f"split {i} of fractions {tuple(fractions)} has no bars left after an embargo of {embargo} "
                f"({len(moments)} bar times in all); bring more bars, or lower the embargo"
            )
        splits.append(
            dataclasses.replace(
                market,
                segments=jnp.asarray(segments, jnp.int32),
                last_bar=jnp.asarray(_last_bar(segments, market.n_bars), jnp.int32),
            )
        )
    return tuple(splits)


def _bars_between(time: np.ndarray, a: int, b: int, moments: np.ndarray, begin: int, end: int) -> tuple[int, int]:
    """First and last bar of the instrument on bars a..b whose time is moments[begin] to moments[end - 1]."""
    own = time[a : b + 1]
    first = np.searchsorted(own, moments[begin], side="left") if begin < len(moments) else len(own)
    last = np.searchsorted(own, moments[end - 1], side="right") - 1 if end else -1
    return a + int(first), a + int(last)


def _last_bar(segments: np.ndarray, n_bars: int) -> np.ndarray:
    last_bar = np.full(n_bars, -1)
    for first, last in segments:
        last_bar[first : last + 1] = last
    return last_bar


def _instruments(instrument: Any, n_bars: int) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the instruments and the first bar of each."""
    if instrument is None:
        return ("instrument",), np.array([0])
    labels = np.asarray(instrument)
    if labels.shape != (n_bars,):
        raise ValueError(f"instrument has shape {labels.shape}; it labels each of the {n_bars} bars")
    first = np.flatnonzero(np.append(True, labels[1:] != labels[:-1]))
    names = tuple(str(x) for x in labels[first])
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise ValueError(f"bars of instrument {twice!r} do not lie together, or two instruments share that name")
    return names, first


def _complete_prices(close: np.ndarray, low: Any, high: Any, open: Any, first: np.ndarray) -> dict[str, np.ndarray]:
    given = {"open": open, "high": high, "low": low}
    prices = {name: _numbers(name, value) for name, value in given.items() if value is not None}
    for name, value in prices.items():
        if value.shape != close.shape:
            raise ValueError(f"{name} has shape {value.shape}, close has {len(close)} bars")
    if open is None:
        prices["open"] = np.append(close[:1], close[:-1])
        prices["open"][first] = close[first]
    prices.setdefault("high", np.maximum(prices["open"], close))
    prices.setdefault("low", np.minimum(prices["open"], close))
    return {"close": close, **prices}  # close first: an error in it must not be reported of a price derived from it


def _numbers(name: str, values: Any) -> np.ndarray:
    """Values as float64."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "cSUmM":  # NumPy would read text, drop imaginary parts and count days
            return array.astype(np.float64)
        problem = f"holds {array.dtype}"
    except (ValueError, TypeError) as error:
        problem = f"is no array of numbers ({error})"
    raise ValueError(f"{name} {problem}; it must hold real numbers")


def _check_time(values: Any, first: np.ndarray, n_bars: int) -> np.ndarray:
    time = _numbers("time, in minutes since 1970,", values)
    if time.shape != (n_bars,):
        raise ValueError(f"time has shape {time.shape}, close has {n_bars} bars")
    whole = (np.abs(time) < 2**31) & (np.floor(time) == time)
    for t in np.flatnonzero(~whole)[:1]:
        raise ValueError(f"time[{t}] = {time[t]} must be whole minutes since 1970, below 2**31")
    time = time.astype(np.int64)
    falls = np.flatnonzero(time[1:] < time[:-1]) + 1
    for t in falls[~np.isin(falls, first)][:1]:
        raise ValueError(
            f"time[{t}] = {time[t]} comes before time[{t - 1}] = {time[t - 1]}; sort each instrument's bars by time"
        )
    return time


def _check_prices(prices: dict[str, np.ndarray]) -> None:
    for name, value in prices.items():
        for t in np.flatnonzero(~(np.isfinite(value) & (value > 0)))[:1]:
            raise ValueError(f"{name}[{t}] = {value[t]} is not a finite positive price")
    for name in ("close", "open"):
        for t in np.flatnonzero((prices["low"] > prices[name]) | (prices["high"] < prices[name]))[:1]:
            low, high, value = prices["low"][t], prices["high"][t], prices[name][t]
            raise ValueError(f"{name}[{t}] = {value} lies outside low {low} to high {high} of its bar")


def _check_range(prices: dict[str, np.ndarray], features: np.ndarray) -> None:
    """Refuses what the device's floats would turn into an infinity or, of a price, into 0."""
    floats = np.finfo(jnp.zeros(()).dtype)
    for name, value in prices.items():
        for t in np.flatnonzero((value < floats.tiny) | (value > floats.max))[:1]:
            raise ValueError(
                f"{name}[{t}] = {value[t]} is no price that {floats.dtype} can hold; give prices in another unit"
            )
    for t, f in np.argwhere(np.abs(features) > floats.max)[:1]:
        raise ValueError(f"features[{t}, {f}] = {features[t, f]} is too large for {floats.dtype}; scale the feature")
