"""Backtests of several seeds, alike but for their random numbers: a table of them, the one in the middle, their spread in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_trade.backtesting.results import AGENT, BacktestReport, numbers
from jaxrl_trade.train.files import replacing, write_json

if TYPE_CHECKING:
    import pandas as pd

_OF_SEED = ("total_return", "sharpe", "max_drawdown", "trades", "final_equity")


def seed_figures(reports: Sequence[BacktestReport]) -> pd.DataFrame:
    """A row for each seed: total_return, sharpe, max_drawdown, trades, final_equity, sharpe_difference, low, high."""
    import pandas as pd

    return pd.DataFrame([_figures(report) for report in reports]).rename_axis("seed")


def median_of(reports: Sequence[BacktestReport]) -> BacktestReport:
    """The seed in the middle by total return, the lower one of two: what one may expect, not what the best seed reached."""
    order = np.argsort(_totals(reports), kind="stable")
    return reports[order[(len(order) - 1) // 2]]


def spread_of(reports: Sequence[BacktestReport]) -> list[str]:
    """What the seeds came to, in a sentence; nothing of a single one."""
    if len(reports) == 1:
        return []
    total = _totals(reports)
    ahead = sum(report.ended_ahead for report in reports)
    beats = sum(report.beats_buy_and_hold for report in reports)
    return [
        f"That is the median of {len(total)} seeds: {total.mean():+.2%} on average, standard deviation {total.std(ddof=1):.2%}, "
        f"{total.min():+.2%} to {total.max():+.2%}; {ahead} ended ahead of buy and hold, {beats} beat it."
    ]


def seeds_as_dict(seeds: pd.DataFrame, median: BacktestReport) -> dict[str, Any]:
    """The figures of several seeds and of the one in the middle, ready for JSON."""
    return {
        "seeds": [numbers(seed) for seed in seeds.to_dict("records")],
        "mean": numbers(seeds.mean().to_dict()),
        "standard_deviation": numbers(seeds.std().to_dict()),
        "median_seed": median.as_dict(),
    }


def save_seeds(
    folder: Path, name: str, median: BacktestReport, tables: Mapping[str, Any], figures: dict[str, Any]
) -> None:
    """Writes the median seed's files in median/, a Parquet file of each series or frame, and NAME.json, which comes last."""
    median.save(folder / "median")
    for title, table in tables.items():
        with replacing(folder / f"{title}.parquet") as path:
            table.to_parquet(path)
    write_json(folder / f"{name}.json", figures)


def _totals(reports: Sequence[BacktestReport]) -> np.ndarray:
    return np.array([report.metrics["total_return"][AGENT] for report in reports], np.float64)


def _figures(report: BacktestReport) -> dict[str, float]:
    found, agent = report.comparison, report.metrics.to_dict("index")[AGENT]
    return {
        **{name: float(agent[name]) for name in _OF_SEED},
        "sharpe_difference": found.difference,
        "low": found.low,
        "high": found.high,
    }
