"""What a sweep came to: its settings on validation bars, and the chosen one's seeds on bars that no setting was chosen on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_trade.backtesting.formats import Table, seed_rows, setting_rows, text_table
from jaxrl_trade.backtesting.judge import backtest
from jaxrl_trade.backtesting.results import BUY_AND_HOLD, BacktestReport, numbers
from jaxrl_trade.backtesting.seeds import median_of, save_seeds, seed_figures, seeds_as_dict, spread_of
from jaxrl_trade.backtesting.tracks import When
from jaxrl_trade.config import AgentConfig

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.bars import Bars

Setting = Mapping[str, float]


@dataclasses.dataclass(frozen=True, eq=False)
class SweepReport:
    """The settings of a sweep, and the record of the chosen one.

    Attributes:
      settings: frame, a row for each setting, numbered from 1: the swept hyperparameters; on the validation bars total_return,
        sharpe and trades (means over the seeds; NaN where one diverged), total_return_std and sharpe_std (standard deviations);
        diverged (seeds that met a NaN), chosen.
      runs: frame, a row for each run: setting, seed, diverged (the update, or NaN), total_return, sharpe, trades.
      reports: a backtest for each seed of the chosen setting; every run counts as a trial.
      seeds: frame, a row for each of those; see `seeds.seed_figures`.
    """

    settings: pd.DataFrame
    runs: pd.DataFrame
    reports: tuple[BacktestReport, ...]
    seeds: pd.DataFrame

    @property
    def median(self) -> BacktestReport:
        """The chosen setting's seed in the middle by total return; see `seeds.median_of`."""
        return median_of(self.reports)

    @property
    def verdict(self) -> str:
        """One plain sentence of the median seed, and one of all seeds where there are several."""
        return " ".join([self.median.verdict, *self.spread])

    @property
    def spread(self) -> list[str]:
        """What the seeds came to, in a sentence; nothing of a single one."""
        return spread_of(self.reports)

    @property
    def choice(self) -> str:
        """Which setting was chosen, and what it came to there and here, in words."""
        (chosen,) = self.settings[self.settings["chosen"]].to_dict("records")
        setting = _described({name: chosen[name] for name in self._names})
        total, hold = self.seeds["total_return"], self.median.metrics["total_return"][BUY_AND_HOLD]
        spread = f" ± {total.std():.2%}" if len(total) > 1 else ""
        return (
            f"Chosen on validation bars alone, of {len(self.settings)} settings: {setting}; {chosen['total_return']:+.2%} there, "
            f"{total.mean():+.2%}{spread} on these bars, where buy and hold made {hold:+.2%}."
        )

    def summary(self) -> str:
        """Verdict, choice and tables, as plain text for a terminal."""
        tables = [text_table(*self.setting_rows)]
        if len(self.reports) > 1:
            tables.append(text_table(*seed_rows(self.seeds)))
        details = self.median.summary().split("\n", 1)[1]
        return "\n\n".join([f"{self.verdict}\n{self.choice}", *tables, details.strip("\n")])

    def as_dict(self) -> dict[str, Any]:
        """Everything but the series, ready for JSON."""
        return {
            "verdict": self.verdict,
            "choice": self.choice,
            "settings": [{"setting": number, **numbers(row)} for number, row in self.settings.to_dict("index").items()],
            "runs": [numbers(row) for row in self.runs.to_dict("records")],
            "trials": self.median.deflated.trials,
            **seeds_as_dict(self.seeds, self.median),
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes sweep.json, settings.parquet, runs.parquet, and the median seed's files in median/; the JSON last."""
        folder = Path(folder)
        tables = {"settings": self.settings, "runs": self.runs}
        save_seeds(folder, "sweep", self.median, tables, self.as_dict())
        return folder

    def to_html(self, path: str | os.PathLike[str], *, provenance: Mapping[str, Any] | None = None) -> Path:
        """Writes the report of the median seed with settings and seeds beside it, as `BacktestReport.to_html`."""
        return self.median.to_html(path, provenance=provenance, sweep=self)

    @property
    def setting_rows(self) -> Table:
        """The settings, the best on validation bars first."""
        return setting_rows(self.settings, self._names)

    @property
    def _names(self) -> list[str]:
        """Of the swept hyperparameters."""
        names = [str(name) for name in self.settings.columns]
        return names[: names.index("total_return")]


def sweep_report(
    settings: Sequence[Setting],
    runs: Sequence[Mapping[str, Any]],
    chosen: int,
    policies: Sequence[Any],
    config: AgentConfig,
    bars: Bars,
    start: When = None,
    end: When = None,
    *,
    seed: int = 0,
    trials: int | None = None,
) -> SweepReport:
    """Backtests the chosen setting's seeds.

    Args:
      settings, runs, chosen: of a `SweepResult`.
      policies: of the chosen setting's seeds.
      config: of the chosen setting.
      bars, start, end: as for `backtest`.
      seed: of the bootstrap and of random timing.
      trials: settings and seeds tried on these bars; None are the runs.
    """
    setting = _described(settings[chosen])
    reports = tuple(
        backtest(
            policy,
            bars,
            config,
            start,
            end,
            checkpoint=f"the last weights of seed {number} with {setting}, the best of {len(settings)} settings on validation",
            trials=len(runs) if trials is None else trials,
            seed=seed,
        )
        for number, policy in enumerate(policies)
    )
    table = _runs(runs)
    return SweepReport(_settings(settings, table, chosen), table, reports, seed_figures(reports))


def _runs(runs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    figures = dict.fromkeys(("diverged", "total_return", "sharpe", "trades"), float)
    table = pd.DataFrame([dict(run) for run in runs]).astype(figures)  # None becomes NaN
    table["setting"] += 1
    return table


def _settings(settings: Sequence[Setting], runs: pd.DataFrame, chosen: int) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame([dict(setting) for setting in settings])
    table.index = pd.RangeIndex(1, len(table) + 1, name="setting")
    of_setting = runs.groupby("setting")
    for name in ("total_return", "sharpe"):
        table[name] = of_setting[name].agg(lambda values: values.mean(skipna=False))
        table[f"{name}_std"] = of_setting[name].agg(lambda values: values.std(skipna=False))
    table["trades"] = of_setting["trades"].agg(lambda values: values.mean(skipna=False))
    table["diverged"] = of_setting["diverged"].count()
    table["chosen"] = table.index == chosen + 1
    return table


def _described(setting: Setting) -> str:
    """`learning_rate 0.0003, entropy_coef 0.01`."""
    return ", ".join(f"{name} {value:g}" for name, value in setting.items())
