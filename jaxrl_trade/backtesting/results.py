"""What a backtest found, in frames and figures, in words, and in files."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_trade.backtesting import formats
from jaxrl_trade.backtesting.inference import MIN_DAYS, DeflatedSharpe, SharpeDifference
from jaxrl_trade.config import EnvConfig
from jaxrl_trade.train.files import replacing, write_json, write_whole

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.backtesting.sweep import SweepReport
    from jaxrl_trade.backtesting.walk_forward import WalkForwardReport

AGENT, BUY_AND_HOLD, SHORT, FLAT, RANDOM = "agent", "buy and hold", "always short", "always flat", "random timing"


@dataclasses.dataclass(frozen=True, eq=False)
class BacktestReport:
    """What a policy did on a range of bars, and what the baselines did there. Every figure is the ledger's.

    Attributes:
      equity: Series, currency, at each close of the range; UTC index.
      curves: frame on the same index: equity, buy_and_hold, always_short, cash (currency), units, close (currency), exposure
        (position value over equity), and of the step that ends at the close: reward (reward units, without the bonus of curiosity;
        the base alone where the backtest was given no scales, NaN for a reward of the user's own) and barrier (-1, 0 or 1: the
        label of the triple barrier).
      trades: frame of fills, indexed by the bar decided on: bar (position in `bars.frame`), action (-1 closes a ruined account),
        exposure (the order's target, fraction of max_position), units, price, value, fee, cost (fee and spread), position (units,
        after it).
      metrics: frame, a row for each strategy, a column for each of `metrics.METRICS`; random timing's are medians.
      actions: `[A]` int, how often each action was chosen.
      percentile: of the agent's total return among randomly timed copies of itself, 0 to 100.
      band: frame: 5th percentile, median and 95th percentile of those copies' equity, on some of the bars.
      daily: frame: returns of each day of agent and buy_and_hold.
      comparison: the Sharpe ratio less buy and hold's, with its interval.
      deflated: the Sharpe ratio in view of how many trials were made.
      by_year: frame, a row for each calendar year; see `stress.by_year`.
      stress: frame, a row for each multiple of the costs and one for the same actions one bar late; see `stress.under_stress`.
      reward_correlation: of rewards and relative changes of the equity, step by step; NaN where one does not vary.
      days_per_year, days_reason: the annualisation, and how it was inferred.
      ruined: the bar that ruined the account, or None.
      symbol, sha256, data_report: of the bars.
      config: the account's rules.
      greedy: whether the largest logit was taken, or a sample.
      checkpoint: which weights were tested, in words, or None.
      seen_bars: of the range, those that the agent was trained or chosen on, where that is known; with any, the range is no
        evidence.
    """

    equity: pd.Series
    curves: pd.DataFrame
    trades: pd.DataFrame
    metrics: pd.DataFrame
    actions: np.ndarray
    percentile: float
    band: pd.DataFrame
    daily: pd.DataFrame
    comparison: SharpeDifference
    deflated: DeflatedSharpe
    by_year: pd.DataFrame
    stress: pd.DataFrame
    reward_correlation: float
    days_per_year: float
    days_reason: str
    ruined: pd.Timestamp | None
    symbol: str
    sha256: str | None
    data_report: Any
    config: EnvConfig
    greedy: bool
    checkpoint: str | None = None
    seen_bars: int = 0

    @property
    def ended_ahead(self) -> bool:
        """Whether the agent ended with more than buy and hold."""
        total = self.metrics["total_return"]
        return bool(total[AGENT] > total[BUY_AND_HOLD])

    @property
    def beats_buy_and_hold(self) -> bool:
        """Whether the agent ended with more than buy and hold on unseen bars, and the Sharpe difference's interval is above 0."""
        return self.ended_ahead and self.comparison.low > 0 and not self.seen_bars

    @property
    def verdict(self) -> str:
        """One plain sentence: does it beat buy and hold on this range, after costs."""
        total = self.metrics["total_return"]
        agent, hold = total[AGENT], total[BUY_AND_HOLD]
        outcome = "lost to" if agent < hold else "did no better than"
        if self.ended_ahead:
            outcome = "beat" if self.beats_buy_and_hold else "lost less than" if agent < 0 else "ended ahead of"
        who = "The agent" if len(self.trades) else "The agent never traded and"
        despite = ", though it lost money" if self.beats_buy_and_hold and agent < 0 else ""
        ruin = f"; it was ruined on {self.ruined:%Y-%m-%d %H:%M} UTC and closed" if self.ruined is not None else ""
        start, end = self.equity.index[0], self.equity.index[-1]
        return (
            f"{who} {outcome} buy and hold on {self.symbol} from {start:%Y-%m-%d} to {end:%Y-%m-%d}: "
            f"{agent:+.2%} against {hold:+.2%} after costs{despite}{ruin}{self._reservation}."
        )

    @property
    def _reservation(self) -> str:
        """The end of the verdict: why it is no evidence, or what the interval says of an agent that ended ahead."""
        if self.seen_bars:
            return f", but {self.seen}, so it is no evidence"
        if math.isnan(self.comparison.low):
            reason = "an account that does not move has no Sharpe ratio"
            if self.comparison.days < MIN_DAYS:
                reason = f"{formats.too_few(self.comparison.days)} to tell it from luck"
            return f", but does not beat it: {reason}" if self.ended_ahead else ""
        text = f"the {self.interval} {self.interval_side}"
        return f", but does not beat it: {text}" if self.ended_ahead and not self.beats_buy_and_hold else f"; {text}"

    @property
    def seen(self) -> str:
        """How many bars of the range the agent had seen."""
        return f"{self.seen_bars:,} of {len(self.equity):,} bars were seen in training"

    @property
    def interval(self) -> str:
        """The interval of the Sharpe difference, in words."""
        found = self.comparison
        return (
            f"{100 * found.confidence:.0f} % interval of the Sharpe difference, {found.low:+.2f} to {found.high:+.2f},"
        )

    @property
    def interval_side(self) -> str:
        """Where that interval lies."""
        found = self.comparison
        return "lies above 0" if found.low > 0 else "lies below 0" if found.high < 0 else "holds 0"

    def summary(self) -> str:
        """The verdict, the tables and what to think of them, as plain text for a terminal."""
        tested = [f"Tested: {self.checkpoint}."] if self.checkpoint else []
        tables = [self.metrics_rows, formats.stress_rows(self.stress), formats.year_rows(self.by_year)]
        texts = [formats.text_table(*table) for table in tables]
        return "\n".join([self.verdict, *tested, "", "\n\n".join(texts), "", *self.notes])

    @property
    def metrics_rows(self) -> formats.Table:
        """The table of the strategies, which says in its head when the agent has seen its bars."""
        (_, *heads), rows = formats.metrics_rows(self.metrics)
        return [f"{self.seen_bars:,} of {len(self.equity):,} bars seen" if self.seen_bars else "", *heads], rows

    @property
    def notes(self) -> list[str]:
        """What to think of the figures, a sentence each."""
        return [
            formats.sharpe_note(self.comparison),
            formats.deflated_note(self.deflated),
            self.random_note,
            formats.reward_note(self.reward_correlation),
            self.annualisation,
        ]

    @property
    def annualisation(self) -> str:
        """How daily figures became yearly ones."""
        return f"Annualised with {self.days_per_year:.0f} days a year ({self.days_reason})."

    @property
    def random_note(self) -> str:
        """Where the agent stands among randomly timed copies of itself."""
        if math.isnan(self.percentile):
            return "Random timing: the range is too short to move the agent's positions."
        return (
            f"Random timing: the agent ended above {self.percentile:.0f} % of copies of itself that took the same positions "
            "at shifted times."
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything but the series, ready for JSON: undefined and infinite figures are None."""
        return {
            "symbol": self.symbol,
            "sha256": self.sha256,
            "start": self.equity.index[0].isoformat(),
            "end": self.equity.index[-1].isoformat(),
            "bars": len(self.equity),
            "seen_bars": self.seen_bars,
            "initial_capital": self.config.initial_capital,
            "greedy": self.greedy,
            "checkpoint": self.checkpoint,
            "verdict": self.verdict,
            "ended_ahead": self.ended_ahead,
            "beats_buy_and_hold": self.beats_buy_and_hold,
            "ruined": None if self.ruined is None else self.ruined.isoformat(),
            "random_timing_percentile": _number(self.percentile),
            "days_per_year": self.days_per_year,
            "days_reason": self.days_reason,
            "sharpe_difference": numbers(dataclasses.asdict(self.comparison)),
            "deflated_sharpe": numbers(dataclasses.asdict(self.deflated)),
            "reward_correlation": _number(self.reward_correlation),
            **{
                name: {str(key): numbers(row) for key, row in table.to_dict("index").items()}
                for name, table in (("metrics", self.metrics), ("by_year", self.by_year), ("stress", self.stress))
            },
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes equity.parquet (the curves), trades.parquet and metrics.json into `folder`, which is made if need be."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in (("equity", self.curves), ("trades", self.trades)):
            with replacing(folder / f"{name}.parquet") as partial:
                table.to_parquet(partial)
        write_json(folder / "metrics.json", self.as_dict())
        return folder

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        training: Sequence[Mapping[str, Any]] | None = None,
        provenance: Mapping[str, Any] | None = None,
        walk_forward: WalkForwardReport | None = None,
        sweep: SweepReport | None = None,
    ) -> Path:
        """Writes the report as one HTML file that needs no network.

        Args:
          path: of the file; its folder is made if need be.
          training: rows of the run's metrics, one an update, numbers by name.
          provenance: what reproduces it: command, commit, data hash, seed, versions.
          walk_forward, sweep: the one that this is the median seed of.
        Raises:
          ImportError: plotly is not installed; the message says how to get it.
        """
        from jaxrl_trade.backtesting.report import render

        html = render(self, training or (), provenance or {}, walk_forward, sweep)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, html)
        return path

    def to_tearsheet(self, path: str | os.PathLike[str]) -> Path:
        """Writes a QuantStats tear sheet of the daily returns, the agent beside buy and hold, as one HTML file.

        Raises:
          ImportError: quantstats is not installed; the message says how to get it.
          ValueError: fewer than 20 days, or an account that never moved.
        """
        from jaxrl_trade.backtesting.tearsheet import write_tearsheet

        return write_tearsheet(self, path)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def numbers(row: Mapping[Any, Any]) -> dict[str, int | float | None]:
    """A row of figures for JSON: undefined and infinite ones are None."""
    return {str(name): value if isinstance(value, int) else _number(value) for name, value in row.items()}
