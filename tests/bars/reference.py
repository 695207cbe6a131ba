"""The 51 features, one bar and one window at a time, in plain NumPy from the table of formulas. Slow, and knows no library.

Recursive averages start as their authors define them: an exponential average from the mean of its first n values, Wilder's
averages from the mean of the first n (for directional movement, from a sum). Rows before a window is full are NaN.
"""

from __future__ import annotations

import math

import numpy as np

NAN = float("nan")


def market_features(open, high, low, close, volume, minute_of_day, weekday):
    """`{name: [T]}`, clipped, from `[T]` arrays."""
    o, h, lo, c, v = (np.asarray(x, float) for x in (open, high, low, close, volume))
    bars = len(c)
    r = np.append(NAN, np.log(c[1:] / c[:-1]))
    sigma = weighted_std(r, 64)
    clv = each(bars, lambda t: safe((c[t] - lo[t]) - (h[t] - c[t]), h[t] - lo[t]))
    typical = (h + lo + c) / 3
    true_range = np.append(NAN, np.maximum(h[1:], c[:-1]) - np.minimum(lo[1:], c[:-1]))
    atr14, atr26 = wilder(true_range, 14), wilder(true_range, 26)

    def vs(t, x, k):
        return np.clip(safe(x, sigma[t] * math.sqrt(k)), -5, 5)

    out = {
        f"ret_{k}": each(bars, lambda t, k=k: vs(t, math.log(c[t] / c[t - k]), k), k)
        for k in (1, 2, 4, 8, 16, 32, 64, 128)
    }
    out["gap"] = each(bars, lambda t: vs(t, math.log(o[t] / c[t - 1]), 1), 1)
    out["range"] = each(bars, lambda t: np.clip(safe(math.log(h[t] / lo[t]), sigma[t]), 0, 10) / 2 - 1)
    out["body"] = each(bars, lambda t: safe(c[t] - o[t], h[t] - lo[t]))
    out["clv"] = clv
    out["wick"] = each(bars, lambda t: safe((h[t] - max(o[t], c[t])) - (min(o[t], c[t]) - lo[t]), h[t] - lo[t]))
    for n in (8, 21, 55, 144):
        ema = exponential(c, n)
        out[f"ema_dist_{n}"] = each(
            bars, lambda t, ema=ema, n=n: np.clip(safe(c[t] - ema[t], atr14[t] * math.sqrt(n / 14)), -5, 5)
        )
    macd = exponential(c, 12) - exponential(c, 26)
    histogram = macd - np.append(np.full(25, NAN), exponential(macd[25:], 9))
    out["macd"] = each(bars, lambda t: np.clip(safe(macd[t], atr26[t]), -5, 5))
    out["macd_hist"] = each(bars, lambda t: np.clip(safe(histogram[t], atr26[t]), -5, 5))
    up, down = np.append(NAN, h[1:] - h[:-1]), np.append(NAN, lo[:-1] - lo[1:])
    plus = 100 * wilder(np.where((up > down) & (up > 0), up, 0), 14) / atr14
    minus = 100 * wilder(np.where((down > up) & (down > 0), down, 0), 14) / atr14
    dx = 100 * np.abs(plus - minus) / (plus + minus)
    out["adx_14"] = np.append(np.full(14, NAN), wilder(np.append(NAN, dx[15:]), 14)) / 50 - 1
    out["di_diff_14"] = (plus - minus) / 50
    out["aroon_25"] = each(bars, lambda t: (np.argmax(h[t - 25 : t + 1]) - np.argmin(lo[t - 25 : t + 1])) / 25, 25)
    x = np.arange(32) - 15.5
    out["slope_32"] = each(bars, lambda t: vs(t, 32 * (x @ np.log(c[t - 31 : t + 1])) / (x @ x), 32), 31)
    change = np.append(NAN, np.diff(c))
    for n in (7, 14, 28):
        gain, loss = wilder(np.maximum(change, 0), n), wilder(np.maximum(-change, 0), n)
        out[f"rsi_{n}"] = 2 * gain / (gain + loss) - 1
    channel = {n: each(bars, lambda t, n=n: position(t, n, h, lo, c), n - 1) for n in (14, 20, 55, 252)}
    out["stoch_k"] = each(bars, lambda t: channel[14][t - 2 : t + 1].mean(), 2)

    def cci(t):
        window = typical[t - 19 : t + 1]
        return np.clip((typical[t] - window.mean()) / (0.015 * np.abs(window - window.mean()).mean()) / 200, -3, 3)

    def mfi(t):
        rising, falling = 0.0, 0.0
        for s in range(t - 13, t + 1):
            rising += typical[s] * v[s] * (typical[s] > typical[s - 1] * (1 + 1e-12))
            falling += typical[s] * v[s] * (typical[s] < typical[s - 1] * (1 - 1e-12))
        return safe(rising, rising + falling) * 2 - 1

    pressure = np.append(NAN, c[1:] - np.minimum(lo[1:], c[:-1]))

    def ultimate(t):
        average = [pressure[t - n + 1 : t + 1].sum() / true_range[t - n + 1 : t + 1].sum() for n in (7, 14, 28)]
        return 2 * (4 * average[0] + 2 * average[1] + average[2]) / 7 - 1

    out["cci_20"] = each(bars, cci, 19)
    out["mfi_14"] = each(bars, mfi, 14)
    out["ultosc"] = each(bars, ultimate, 28)
    std = {n: each(bars, lambda t, n=n: r[t - n + 1 : t + 1].std(ddof=1), n) for n in (16, 32, 64, 128)}
    log_range = np.log(h / lo)
    out["natr_z"] = z(np.log(atr14 / c))
    out["rvol_16_z"], out["rvol_64_z"] = z(np.log(std[16])), z(np.log(std[64]))
    out["vol_ratio_16_128"] = np.clip(np.log(std[16] / std[128]), -3, 3)
    out["parkinson_32_z"] = z(
        each(bars, lambda t: math.log(math.sqrt((log_range[t - 31 : t + 1] ** 2).mean() / (4 * math.log(2)))), 31)
    )
    garman_klass = 0.5 * log_range**2 - (2 * math.log(2) - 1) * np.log(c / o) ** 2
    out["gk_cc_ratio_32"] = each(
        bars, lambda t: np.clip(0.5 * math.log(garman_klass[t - 31 : t + 1].mean() / std[32][t] ** 2), -3, 3), 32
    )
    middle = each(bars, lambda t: c[t - 19 : t + 1].mean(), 19)
    half = each(bars, lambda t: 2 * c[t - 19 : t + 1].std(), 19)
    out["bb_pctb_20"] = np.clip((c - middle) / half, -3, 3)
    out["bb_width_z"] = z(np.log(2 * half / middle))
    out |= {f"donchian_{n}": channel[n] for n in (20, 55, 252)}
    out["drawdown_252"] = each(
        bars, lambda t: np.clip(math.log(c[t] / h[t - 251 : t + 1].max()) / (sigma[t] * math.sqrt(252)), -5, 0), 251
    )
    log_volume = np.log(1 + v)
    out["volume_z_64"] = z(log_volume, 64)
    out["volume_ratio_8_64"] = each(
        bars, lambda t: np.clip(log_volume[t - 7 : t + 1].mean() - log_volume[t - 63 : t + 1].mean(), -3, 3), 63
    )
    out["cmf_20"] = each(bars, lambda t: safe((clv * v)[t - 19 : t + 1].sum(), v[t - 19 : t + 1].sum()), 19)

    def vwap(t):
        window = slice(t - 31, t + 1)
        if v[window].sum() < 1e-12:
            return typical[window].mean()
        return (typical * v)[window].sum() / v[window].sum()

    out["vwap_dist_32"] = each(bars, lambda t: np.clip((c[t] - vwap(t)) / (1.5 * atr14[t]), -5, 5), 31)
    out["obv_flow_32"] = each(
        bars, lambda t: safe((np.sign(r) * v)[t - 31 : t + 1].mean(), v[t - 31 : t + 1].mean()), 32
    )
    day, week = 2 * np.pi * np.asarray(minute_of_day) / 1440, 2 * np.pi * np.asarray(weekday) / 7
    return out | {"tod_sin": np.sin(day), "tod_cos": np.cos(day), "dow_sin": np.sin(week), "dow_cos": np.cos(week)}


def each(bars, value, first=0):
    """`[T]`: value(t) from row `first` on, NaN before."""
    return np.array([NAN if t < first else value(t) for t in range(bars)])


def safe(numerator, denominator):
    """Quotient, 0 where the denominator is below 1e-12."""
    return 0.0 if denominator < 1e-12 else numerator / denominator


def position(t, n, h, lo, c):
    """Close in the range of n bars, -1 to 1."""
    highest, lowest = h[t - n + 1 : t + 1].max(), lo[t - n + 1 : t + 1].min()
    return safe(2 * c[t] - highest - lowest, highest - lowest)


def z(x, n=256):
    """Clipped distance from the mean of n values in sample standard deviations."""
    return each(
        len(x),
        lambda t: np.clip(safe(x[t] - x[t - n + 1 : t + 1].mean(), x[t - n + 1 : t + 1].std(ddof=1)), -5, 5),
        n - 1,
    )


def exponential(x, n):
    """Exponential average with weight 2/(n + 1), from the mean of the first n values."""
    out = np.full(len(x), NAN)
    out[n - 1] = x[:n].mean()
    for t in range(n, len(x)):
        out[t] = out[t - 1] + (x[t] - out[t - 1]) * 2 / (n + 1)
    return out


def wilder(x, n):
    """Wilder's average of x[1:] with weight 1/n, from the mean of the first n values."""
    out = np.full(len(x), NAN)
    out[n] = x[1 : n + 1].mean()
    for t in range(n + 1, len(x)):
        out[t] = out[t - 1] + (x[t] - out[t - 1]) / n
    return out


def weighted_std(r, span):
    """Standard deviation under weights (1 - 2/(span + 1))^age over the whole past, unbiased for such weights."""
    out = np.full(len(r), NAN)
    for t in range(span, len(r)):
        weight = (1 - 2 / (span + 1)) ** np.arange(t - 1, -1, -1.0)
        mean = (weight * r[1 : t + 1]).sum() / weight.sum()
        biased = (weight * (r[1 : t + 1] - mean) ** 2).sum() / weight.sum()
        out[t] = math.sqrt(biased * weight.sum() ** 2 / (weight.sum() ** 2 - (weight**2).sum()))
    return out
