"""The formulas of the 51 features, group by group: prices in, one unclipped `[T]` column per name out.

Notation: O, H, L, C are prices times the power of two that brings the first close into [0.5, 1), which is exact and keeps
the price's unit from the absolute thresholds inside TA-Lib; V is volume; X[-k] is X k bars earlier; r = ln(C / C[-1]); sigma
is the exponentially weighted standard deviation of r. TA-Lib's STOCH, MFI, ULTOSC and BBANDS return an extreme on flat
prices, compare with absolute volumes or keep running sums that lose digits on quiet bars: those four are written out, and
tested against TA-Lib where it is exact.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from jaxrl_trade.bars.rolling import FloatArray, lag, rolling_mean, rolling_std, rolling_sum

SIGMA_SPAN = 64  # bars
Z_WINDOW = 256  # bars
TINY = 1e-12  # a smaller denominator gives 0; logarithms are of at least this

Columns = dict[str, FloatArray]


@dataclasses.dataclass(frozen=True, eq=False)
class Prices:
    """What several features share; every field is `[T]`, prices in the unit described above."""

    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    log_close: FloatArray
    returns: FloatArray  # r, NaN at 0
    sigma: FloatArray
    atr: FloatArray  # Wilder's average true range over 14 bars

    @classmethod
    def of(cls, open: FloatArray, high: FloatArray, low: FloatArray, close: FloatArray, volume: FloatArray) -> Prices:
        """Scale prices `[T]` of any unit and derive the shared series."""
        import pandas as pd
        import talib

        unit = math.ldexp(1.0, -math.frexp(close[0])[1])
        open, high, low, close = (x * unit for x in (open, high, low, close))
        log_close = np.log(close)
        returns = log_close - lag(log_close, 1)
        sigma = pd.Series(returns).ewm(span=SIGMA_SPAN, min_periods=SIGMA_SPAN).std().to_numpy(np.float64)
        return cls(
            open=open,
            high=high,
            low=low,
            close=close,
            volume=np.ascontiguousarray(volume),
            log_close=log_close,
            returns=returns,
            sigma=sigma,
            atr=talib.ATR(high, low, close, timeperiod=14),
        )

    def tail(self, n: int) -> Prices:
        """The last n bars of every series."""
        return Prices(**{field.name: getattr(self, field.name)[-n:] for field in dataclasses.fields(self)})

    def per_sigma(self, log_change: FloatArray, k: int) -> FloatArray:
        """A log return over k bars in units of its expected size, sigma sqrt(k)."""
        return ratio(log_change, self.sigma * math.sqrt(k))

    def per_price(self, numerator: FloatArray, denominator: FloatArray) -> FloatArray:
        """Quotient of two price differences; 0 where the denominator is below `TINY` of the price."""
        return ratio(numerator, denominator, TINY * self.close)


def ratio(numerator: FloatArray, denominator: FloatArray, floor: FloatArray | float = TINY) -> FloatArray:
    """Numerator / denominator, and 0 where the denominator is below the floor; NaN stays NaN."""
    small = denominator < floor
    return np.where(small, 0.0, numerator / np.where(small, 1.0, denominator))


def z_score(x: FloatArray, n: int = Z_WINDOW) -> FloatArray:
    """Distance of x from the mean of its last n values, in their standard deviations."""
    return ratio(x - rolling_mean(x, n), rolling_std(x, n))


def log(x: FloatArray) -> FloatArray:
    """Natural logarithm of at least `TINY`."""
    return np.log(np.maximum(x, TINY))


def return_features(p: Prices) -> Columns:
    """Returns over powers of two bars and the opening gap, in units of sigma."""
    columns = {f"ret_{k}": p.per_sigma(p.log_close - lag(p.log_close, k), k) for k in (1, 2, 4, 8, 16, 32, 64, 128)}
    columns["gap"] = p.per_sigma(np.log(p.open) - lag(p.log_close, 1), 1)
    return columns


def bar_features(p: Prices) -> Columns:
    """The shape of the bar itself."""
    height = p.high - p.low
    upper, lower = p.high - np.maximum(p.open, p.close), np.minimum(p.open, p.close) - p.low
    return {
        "range": np.clip(p.per_sigma(np.log(p.high / p.low), 1), 0, 10) / 2 - 1,
        "body": p.per_price(p.close - p.open, height),
        "clv": _close_location(p),
        "wick": p.per_price(upper - lower, height),
    }


def trend_features(p: Prices) -> Columns:
    """Distance from moving averages, MACD, directional movement, Aroon and the regression slope."""
    import talib

    columns = {
        f"ema_dist_{n}": p.per_price(p.close - talib.EMA(p.close, timeperiod=n), p.atr * math.sqrt(n / 14))
        for n in (8, 21, 55, 144)
    }
    macd, _, histogram = talib.MACD(p.close, fastperiod=12, slowperiod=26, signalperiod=9)
    atr_26 = talib.ATR(p.high, p.low, p.close, timeperiod=26)
    bar = (p.high, p.low, p.close)
    up, down = talib.PLUS_DI(*bar, timeperiod=14), talib.MINUS_DI(*bar, timeperiod=14)
    return columns | {
        "macd": p.per_price(macd, atr_26),
        "macd_hist": p.per_price(histogram, atr_26),
        "adx_14": talib.ADX(*bar, timeperiod=14) / 50 - 1,
        "di_diff_14": (up - down) / 50,
        "aroon_25": talib.AROONOSC(p.high, p.low, timeperiod=25) / 100,
        "slope_32": p.per_sigma(talib.LINEARREG_SLOPE(p.log_close, timeperiod=32) * 32, 32),
    }


def oscillator_features(p: Prices) -> Columns:
    """RSI, stochastic, CCI, money flow and ultimate oscillator, each centred on 0 and 0 on flat prices."""
    import talib

    typical = (p.high + p.low + p.close) / 3
    return {f"rsi_{n}": _rsi(p, n) for n in (7, 14, 28)} | {
        "stoch_k": rolling_mean(_position_in_range(p, 14), 3),
        "cci_20": talib.CCI(p.high, p.low, p.close, timeperiod=20) / 200,
        "mfi_14": _money_flow(typical, p.volume, 14),
        "ultosc": _ultimate_oscillator(p),
    }


def volatility_features(p: Prices) -> Columns:
    """How large moves are now, against their own past and by different estimators."""
    std = {n: rolling_std(p.returns, n) for n in (16, 32, 64, 128)}
    log_range_squared = np.log(p.high / p.low) ** 2
    garman_klass = rolling_mean(0.5 * log_range_squared - (2 * math.log(2) - 1) * np.log(p.close / p.open) ** 2, 32)
    middle, half_width = rolling_mean(p.close, 20), 2 * rolling_std(p.close, 20, ddof=0)
    sizes = {
        "natr_z": p.atr / p.close,
        "rvol_16_z": std[16],
        "rvol_64_z": std[64],
        "parkinson_32_z": np.sqrt(rolling_mean(log_range_squared, 32) / (4 * math.log(2))),
        "bb_width_z": 2 * half_width / middle,
    }
    return {
        **dict(zip(sizes, z_score(log(np.stack(list(sizes.values())))), strict=True)),
        "vol_ratio_16_128": log(std[16]) - log(std[128]),
        "gk_cc_ratio_32": log(np.sqrt(np.maximum(garman_klass, 0))) - log(std[32]),
        "bb_pctb_20": p.per_price(p.close - middle, half_width),
    }


def channel_features(p: Prices) -> Columns:
    """Position inside the range of the last bars, and the distance from its high."""
    import talib

    columns = {f"donchian_{n}": _position_in_range(p, n) for n in (20, 55, 252)}
    columns["drawdown_252"] = p.per_sigma(p.log_close - np.log(talib.MAX(p.high, timeperiod=252)), 252)
    return columns


def volume_features(p: Prices) -> Columns:
    """Volume against its past and the price's response to it; all 0 where there is no volume, save `vwap_dist_32`."""
    log_volume = np.log1p(p.volume)
    typical = (p.high + p.low + p.close) / 3
    traded = rolling_sum(p.volume, 32)
    vwap = np.where(traded < TINY, rolling_mean(typical, 32), ratio(rolling_sum(typical * p.volume, 32), traded))
    signed = np.sign(p.returns) * p.volume
    return {
        "volume_z_64": z_score(log_volume, 64),
        "volume_ratio_8_64": rolling_mean(log_volume, 8) - rolling_mean(log_volume, 64),
        "cmf_20": ratio(rolling_sum(_close_location(p) * p.volume, 20), rolling_sum(p.volume, 20)),
        "vwap_dist_32": p.per_price(p.close - vwap, 1.5 * p.atr),
        "obv_flow_32": ratio(rolling_mean(signed, 32), rolling_mean(p.volume, 32)),
    }


def clock_features(minute_of_day: FloatArray, weekday: FloatArray) -> Columns:
    """Time of day and weekday (Monday is 0) on the circle."""
    day, week = 2 * math.pi * minute_of_day / 1440, 2 * math.pi * weekday / 7
    return {"tod_sin": np.sin(day), "tod_cos": np.cos(day), "dow_sin": np.sin(week), "dow_cos": np.cos(week)}


def _close_location(p: Prices) -> FloatArray:
    """Close location value: -1 at the low, 1 at the high."""
    return p.per_price((p.close - p.low) - (p.high - p.close), p.high - p.low)


def _position_in_range(p: Prices, n: int) -> FloatArray:
    """Close inside the high and low of the last n bars: -1 at the lowest, 1 at the highest."""
    import talib

    highest, lowest = talib.MAX(p.high, timeperiod=n), talib.MIN(p.low, timeperiod=n)
    return p.per_price(2 * p.close - highest - lowest, highest - lowest)


def _rsi(p: Prices, n: int) -> FloatArray:
    """RSI/50 - 1, and 0 (not TA-Lib's -1) where prices have not moved for so long that gains and losses have died away."""
    import pandas as pd
    import talib

    movement = pd.Series(np.abs(p.close - lag(p.close, 1))).ewm(alpha=1 / n, adjust=False).mean().to_numpy(np.float64)
    return np.where(movement < TINY * np.maximum(p.close, 1), 0.0, talib.RSI(p.close, timeperiod=n) / 50 - 1)


def _money_flow(typical: FloatArray, volume: FloatArray, n: int) -> FloatArray:
    """MFI/50 - 1 = (flow on rising typical prices - flow on falling ones) / (their sum), over n bars.

    Typical prices that differ by rounding alone are equal: sums of three prices in ticks often are.
    """
    flow = typical * volume
    change = typical - lag(typical, 1)
    direction = np.where(np.abs(change) < TINY * typical, 0.0, np.sign(change))
    return ratio(rolling_sum(direction * flow, n), rolling_sum(np.abs(direction) * flow, n))


def _ultimate_oscillator(p: Prices) -> FloatArray:
    """ULTOSC(7, 14, 28)/50 - 1: buying pressure over true range, weighted 4, 2 and 1."""
    previous = lag(p.close, 1)
    true_low, true_high = np.minimum(p.low, previous), np.maximum(p.high, previous)
    balance = 2 * (p.close - true_low) - (true_high - true_low)  # 2 buying pressure - true range
    parts = [
        weight * p.per_price(rolling_sum(balance, n), rolling_sum(true_high - true_low, n))
        for weight, n in ((4, 7), (2, 14), (1, 28))
    ]
    return sum(parts[1:], start=parts[0]) / 7
