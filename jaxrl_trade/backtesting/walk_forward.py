"""What a walk-forward came to: the backtest of each seed's policies in turn, by fold, by seed, in words and in files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_trade.backtesting.folds import Fold
from jaxrl_trade.backtesting.judge import backtest
from jaxrl_trade.backtesting.results import BacktestReport, numbers
from jaxrl_trade.backtesting.seeds import median_of, save_seeds, seed_figures, seeds_as_dict, spread_of
from jaxrl_trade.backtesting.simulate import Relay
from jaxrl_trade.config import AgentConfig

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.bars import Bars


@dataclasses.dataclass(frozen=True, eq=False)
class WalkForwardReport:
    """The out-of-sample record of an agent that was trained anew for every fold.

    Attributes:
      reports: a backtest for each seed: one account over the test bars of all folds, in which the folds' policies take turns.
      folds: frame, a row for each fold: train_start, test_start, test_end (times), agent (total return, mean over the seeds), low,
        high (the worst and the best seed), buy_and_hold (total return), ahead (seeds that ended ahead of it), trades (mean).
      seeds: frame, a row for each seed: total_return, sharpe, max_drawdown, trades, final_equity, sharpe_difference, low and high
        (of its interval).
      equity: frame: the stitched curve of each seed, currency, and buy_and_hold; UTC index.
    """

    reports: tuple[BacktestReport, ...]
    folds: pd.DataFrame
    seeds: pd.DataFrame
    equity: pd.DataFrame

    @property
    def median(self) -> BacktestReport:
        """The seed in the middle by total return; see `seeds.median_of`."""
        return median_of(self.reports)

    @property
    def verdict(self) -> str:
        """One plain sentence of the median seed, and one of all seeds where there are several."""
        return " ".join([self.median.verdict, *self.spread])

    @property
    def spread(self) -> list[str]:
        """What the seeds came to, in a sentence; nothing of a single one."""
        return spread_of(self.reports)

    def summary(self) -> str:
        """The verdict and the tables of folds and seeds, and those of the median seed, as plain text for a terminal."""
        from jaxrl_trade.backtesting.formats import fold_rows, seed_rows, text_table

        tables = [text_table(*fold_rows(self.folds))]
        if len(self.reports) > 1:
            tables.append(text_table(*seed_rows(self.seeds)))
        details = self.median.summary().split("\n", 1)[1]
        return "\n\n".join([self.verdict, *tables, details.strip("\n")])

    def as_dict(self) -> dict[str, Any]:
        """Everything but the series, ready for JSON."""
        times = ("train_start", "test_start", "test_end")
        return {
            "verdict": self.verdict,
            "folds": [
                {
                    **{t: fold[t].isoformat() for t in times},
                    **numbers({k: v for k, v in fold.items() if k not in times}),
                }
                for fold in self.folds.to_dict("records")
            ],
            **seeds_as_dict(self.seeds, self.median),
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes walk_forward.json, equity.parquet, folds.parquet, and the median seed's files in median/; the JSON last."""
        folder = Path(folder)
        tables = {"equity": self.equity, "folds": self.folds}
        save_seeds(folder, "walk_forward", self.median, tables, self.as_dict())
        return folder

    def to_html(self, path: str | os.PathLike[str], *, provenance: Mapping[str, Any] | None = None) -> Path:
        """Writes the report of the median seed with folds and seeds beside it, as `BacktestReport.to_html`."""
        return self.median.to_html(path, provenance=provenance, walk_forward=self)


def walk_forward_report(
    policies: Sequence[Sequence[Any]], folds: Sequence[Fold], bars: Bars, config: AgentConfig, trials: int | None = None
) -> WalkForwardReport:
    """Backtests the policies of every seed in turn on the folds' test bars.

    Args:
      policies: of each seed, of each fold.
      folds: their stretches, which follow one another.
      bars: one instrument.
      config: of the runs.
      trials: settings and seeds tried, these seeds included; None are these seeds.
    """
    import pandas as pd

    first, end = folds[0].test.first, folds[-1].test.end
    steps = [fold.test.end - fold.test.first for fold in folds]
    reports = tuple(
        backtest(
            Relay(each, steps),
            bars,
            config,
            first,
            end + 1,
            checkpoint=f"{len(folds)} policies in turn, each trained on the bars before its own (seed {seed})",
            trials=len(policies) if trials is None else trials,
        )
        for seed, each in enumerate(policies)
    )
    equity = {f"seed {i}": report.equity for i, report in enumerate(reports)}
    hold = reports[0].curves["buy_and_hold"]
    return WalkForwardReport(
        reports=reports,
        folds=_fold_table(reports, folds, bars),
        seeds=seed_figures(reports),
        equity=pd.DataFrame({**equity, "buy_and_hold": hold}),
    )


def _fold_table(reports: Sequence[BacktestReport], folds: Sequence[Fold], bars: Bars) -> pd.DataFrame:
    import pandas as pd

    first = folds[0].test.first
    rows = []
    for fold in folds:
        a, b = fold.test.first - first, fold.test.end - first
        total = np.array([_growth(report.equity.to_numpy(), a, b) for report in reports])
        hold = _growth(reports[0].curves["buy_and_hold"].to_numpy(), a, b)
        trades = [int(report.trades["bar"].between(fold.test.first, fold.test.end - 1).sum()) for report in reports]
        rows.append(
            {
                "train_start": bars.index[fold.train.first],
                "test_start": bars.index[fold.test.first],
                "test_end": bars.index[fold.test.end - 1],
                "agent": float(total.mean()),
                "low": float(total.min()),
                "high": float(total.max()),
                "buy_and_hold": hold,
                "ahead": int((total > hold).sum()),
                "trades": float(np.mean(trades)),
            }
        )
    return pd.DataFrame(rows, index=pd.RangeIndex(1, len(folds) + 1, name="fold"))


def _growth(equity: np.ndarray, first: int, end: int) -> float:
    return float(equity[end] / equity[first] - 1.0) if equity[first] > 0 else 0.0
