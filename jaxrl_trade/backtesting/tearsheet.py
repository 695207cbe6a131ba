"""A QuantStats tear sheet of a backtest's daily returns, for those who know theirs by heart. Its figures are QuantStats' own."""

from __future__ import annotations

import contextlib
import html
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from jaxrl_trade.backtesting.results import AGENT, BUY_AND_HOLD, BacktestReport

MIN_DAYS = 20  # with fewer, half of the sheet is empty


def write_tearsheet(report: BacktestReport, path: str | os.PathLike[str]) -> Path:
    """Writes the tear sheet of the agent beside buy and hold as one HTML file that needs no network.

    Raises:
      ImportError: quantstats is not installed; the message says how to get it.
      ValueError: fewer than MIN_DAYS days, or an account that never moved.
    """
    try:
        import quantstats.reports
    except ImportError:
        raise ImportError(
            'a tear sheet needs QuantStats, which is not installed: pip install "jaxrl-trade[tearsheet]"'
        ) from None
    daily = report.daily
    if len(daily) < MIN_DAYS or not daily.std().gt(0).all():
        raise ValueError(
            f"a tear sheet needs {MIN_DAYS} days or more on which both accounts move; there are {len(daily)}"
        )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _quietly():
        sheet = Path(folder) / "sheet.html"
        quantstats.reports.html(
            daily["agent"].rename(AGENT),
            benchmark=daily["buy_and_hold"].rename(BUY_AND_HOLD),
            title=html.escape(f"{report.symbol}: the agent and buy and hold, after costs"),
            strategy_title=AGENT,
            benchmark_title=BUY_AND_HOLD,
            periods_per_year=round(report.days_per_year),
            output=str(sheet),
        )
        text = sheet.read_text(encoding="utf-8")
    path.write_text(re.sub(r"<link[^>]*https?://[^>]*>", "", text), encoding="utf-8")  # an icon of QuantStats' site
    return path


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what Matplotlib says of fonts and QuantStats of its own ticks."""
    log = logging.getLogger("matplotlib.font_manager")
    before = log.level
    log.setLevel(logging.ERROR + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
