"""What the commands do with the backtests of one or of several instruments: show them, write them, give them as JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_trade.patience import working

if TYPE_CHECKING:
    from jaxrl_trade.backtesting import BacktestReport
    from jaxrl_trade.backtesting.sweep import SweepReport
    from jaxrl_trade.backtesting.walk_forward import WalkForwardReport
    from jaxrl_trade.bars import Bars
    from jaxrl_trade.config import AgentConfig

Reports = Mapping[str, "BacktestReport"]  # by symbol
LONGEST_NAME = 100  # characters of a folder


def shown(reports: Reports) -> str:
    """The reports for people; after those of several instruments a line on each, and one on all."""
    summaries = [report.summary() for report in reports.values()]
    if len(reports) == 1:
        return summaries[0]
    each = [f"{symbol:<14} {report.verdict}" for symbol, report in reports.items()]
    return "\n\n".join([*summaries, "\n".join([*each, _together(reports)])])


def as_json(reports: Reports) -> dict[str, Any]:
    """The figures of one report, or those of several by symbol with what they come to together."""
    if len(reports) == 1:
        return next(iter(reports.values())).as_dict()
    each = {symbol: report.as_dict() for symbol, report in reports.items()}
    return {"together": _figures(reports), "instruments": each}


def whole_as_json(report: SweepReport | WalkForwardReport, folder: Path, page: Path) -> dict[str, Any]:
    """The figures of a sweep or of a walk-forward, with where they lie and the bars that they are of."""
    median = report.median.as_dict()
    tested = {name: median[name] for name in ("symbol", "sha256", "start", "end", "bars")}
    return {"run": str(folder), "report": str(page), **tested, **report.as_dict()}


def save_all(
    reports: Reports,
    files: Path,
    page: Path,
    history: Sequence[Mapping[str, Any]],
    provenance: Mapping[str, Any],
) -> list[Path]:
    """Writes the reports; of several instruments, each to a folder of its symbol in `files`.

    Args:
      reports: of a backtest each.
      files: folder of the Parquet files and metrics.json.
      page: folder of report.html.
      history: rows of the training log.
      provenance: what reproduces it.
    Returns:
      Path of each report.html, or of its files where plotly is not installed.
    """
    if len(reports) == 1:
        return [_save(next(iter(reports.values())), files, page, history, provenance)]
    folders = [files / folder_name(symbol) for symbol in reports]
    return [
        _save(report, folder, folder, history, provenance)
        for folder, report in zip(folders, reports.values(), strict=True)
    ]


def backtest_each(
    policy: Any, config: AgentConfig, ranges: Iterable[tuple[Bars, Any, Any]], **options: Any
) -> dict[str, BacktestReport]:
    """A backtest of each instrument, by symbol.

    Args:
      policy, config: of a run.
      ranges: bars, and the start and end of the range to trade.
      options: of `backtest`.
    """
    from jaxrl_trade.backtesting import backtest

    reports = {}
    for bars, start, end in ranges:
        with working(f"backtesting on {bars.symbol}"):
            reports[bars.symbol] = backtest(policy, bars, config, start, end, **options)
    return reports


def folder_name(text: str) -> str:
    """A text as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lower()[:LONGEST_NAME]


def _save(
    report: BacktestReport,
    files: Path,
    page: Path,
    history: Sequence[Mapping[str, Any]],
    provenance: Mapping[str, Any],
) -> Path:
    try:
        with working(f"writing the report on {report.symbol}"):
            report.save(files)
            return report.to_html(page / "report.html", training=history, provenance=provenance)
    except ImportError as error:
        print(f"no report.html: {error}", file=sys.stderr)
        return files


def _figures(reports: Reports) -> dict[str, Any]:
    """Means over the instruments, each with an account of its own of the same capital."""
    totals = [report.metrics["total_return"] for report in reports.values()]
    return {
        "instruments": len(reports),
        "mean_total_return": sum(float(total["agent"]) for total in totals) / len(totals),
        "mean_buy_and_hold": sum(float(total["buy and hold"]) for total in totals) / len(totals),
        "beat_buy_and_hold": sum(report.beats_buy_and_hold for report in reports.values()),
    }


def _together(reports: Reports) -> str:
    found = _figures(reports)
    return (
        f"{found['instruments']} instruments with an account each: {found['mean_total_return']:+.2%} on the mean against "
        f"{found['mean_buy_and_hold']:+.2%} of buy and hold; the agent beat it on {found['beat_buy_and_hold']}."
    )
