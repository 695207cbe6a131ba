"""Small price series and the files they make, for the tests of `jaxrl_trade.bars`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

HOUR = 3600


def random_frame(bars: int, seed: int = 0, start: str = "2021-03-01", freq: str = "h") -> pd.DataFrame:
    """A random walk with open, high, low, close, volume; prices have five decimals, as quotes do."""
    rng = np.random.default_rng(seed)
    close = np.exp(rng.normal(0, 2e-3, bars).cumsum())
    open = np.append(1.0, close[:-1]) * np.exp(rng.normal(0, 2e-4, bars))
    high = np.maximum(open, close) * np.exp(np.abs(rng.normal(0, 1e-3, bars)))
    low = np.minimum(open, close) * np.exp(-np.abs(rng.normal(0, 1e-3, bars)))
    prices = {"open": open, "high": high, "low": low, "close": close}
    frame = pd.DataFrame({name: np.round(x, 5) for name, x in prices.items()})
    frame["volume"] = rng.integers(1, 10_000, bars).astype(float)
    frame.index = pd.date_range(start, periods=bars, freq=freq, tz="UTC").as_unit("ns")
    return frame


def plain_rows(bars: int = 30) -> list[tuple[float, float, float, float, int]]:
    """Rising bars whose numbers are easy to recognise: open, high, low, close, volume of bar i."""
    return [(1.1 + i / 100, 1.2 + i / 100, 1.05 + i / 100, 1.11 + i / 100, 100 + i) for i in range(bars)]


def write(
    folder: Path, line: Callable[..., str], header: str | None = None, bars: int = 30, name: str = "p.csv"
) -> Path:
    """A text file of `plain_rows`: `line(i, o, h, l, c, v)` gives one row, prices as text of four decimals."""
    rows = [line(i, *(f"{x:.4f}" for x in row[:4]), row[4]) for i, row in enumerate(plain_rows(bars))]
    path = folder / name
    path.write_text("\n".join(([header] if header else []) + rows) + "\n")
    return path


def epoch(i: int) -> int:
    """Seconds since 1970 of hour i from 2021-03-01 00:00 UTC."""
    return 1614556800 + i * HOUR
