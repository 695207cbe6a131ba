"""The report's tables as HTML. Every text from outside is escaped here."""

from __future__ import annotations

import calendar
import dataclasses
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_trade.backtesting.formats import figure, fold_rows, seed_rows, stress_rows, year_rows

if TYPE_CHECKING:
    from jaxrl_trade.backtesting.results import BacktestReport
    from jaxrl_trade.backtesting.sweep import SweepReport
    from jaxrl_trade.backtesting.walk_forward import WalkForwardReport

FULL = 0.1  # a month's return that has the strongest colour


def metrics_table(report: BacktestReport) -> str:
    """Metrics down, strategies across."""
    heads, rows = report.metrics_rows
    return html_table([f"{name} (median)" if name == "random timing" else name for name in heads], rows)


def config_table(report: BacktestReport) -> str:
    """The account's rules."""
    config = report.config
    fields = [f.name for f in dataclasses.fields(config) if f.name != "execution"]
    return html_table(["setting", "value"], [[name, spelled(getattr(config, name))] for name in fields])


def execution_table(report: BacktestReport) -> str:
    """What each action means, and how often it was chosen."""
    table = report.config.execution
    names = [f.name for f in dataclasses.fields(table)]
    columns = [getattr(table, name) for name in names]
    each = enumerate(zip(*columns, report.actions, strict=True))
    rows = [[str(i), *(spelled(value) for value in row), f"{chosen:,}"] for i, (*row, chosen) in each]
    return html_table(["action", *names, "times chosen"], rows)


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, the first of each row its name."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(text)}</td>' for text in row[1:])}</tr>" for row in rows
    )
    return _scrolling(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def spelled(value: Any) -> str:
    """A setting as a person writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.10g}"
    return "off" if value is None else str(value)


def stress_table(report: BacktestReport) -> str:
    """Other costs, and a bar late."""
    return html_table(*stress_rows(report.stress))


def year_table(report: BacktestReport) -> str:
    """Calendar years."""
    return html_table(*year_rows(report.by_year))


def fold_table(walk: WalkForwardReport) -> str:
    """Folds of a walk-forward."""
    return html_table(*fold_rows(walk.folds))


def seed_table(whole: WalkForwardReport | SweepReport) -> str:
    """Seeds of a walk-forward or of a sweep's chosen setting; nothing of a single one."""
    return html_table(*seed_rows(whole.seeds)) if len(whole.reports) > 1 else ""


def month_table(report: BacktestReport) -> str:
    """Returns of calendar months, years down; those of buy and hold below the agent's, in small."""
    import pandas as pd

    grown_by = 1.0 + report.daily
    day = pd.DatetimeIndex(report.daily.index)
    grown = grown_by.groupby([day.year, day.month]).prod() - 1.0
    by_year = grown_by.groupby(day.year).prod() - 1.0
    months = sorted({month for _, month in grown.index})
    heads = ["", *(calendar.month_abbr[month] for month in months), "Year"]
    rows = []
    for year in by_year.index:
        found = [grown.loc[(year, month)] if (year, month) in grown.index else None for month in months]
        cells = "".join(_month(row) for row in [*found, by_year.loc[year]])
        rows.append(f"<tr><th>{int(year)}</th>{cells}</tr>")
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    return _scrolling(f'<table class="months"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>')


def _scrolling(table: str) -> str:
    """A table that scrolls within itself where it is wider than the page, by keys, too."""
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _month(row: Any) -> str:
    if row is None:
        return "<td></td>"
    own, hold = float(row["agent"]), float(row["buy_and_hold"])
    strength = round(float(np.clip(abs(own) / FULL, 0.0, 1.0)), 2)
    kind = "up" if own > 0 else "down" if own < 0 else "none"
    shown, beside = escape(figure("agent", own)), escape(figure("buy_and_hold", hold))
    return f'<td class="{kind}" style="--strength:{strength}">{shown}<small>{beside}</small></td>'
