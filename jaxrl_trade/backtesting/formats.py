"""Figures as people read them: one spelling for the terminal and the HTML report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_trade.backtesting.inference import MIN_DAYS, DeflatedSharpe, SharpeDifference

if TYPE_CHECKING:
    import pandas as pd

NO_FIGURE = "–"
MAX_SETTINGS = 20  # of a sweep that a table shows

_PERCENT = frozenset(
    {
        "total_return",
        "annual_return",
        "volatility",
        "max_drawdown",
        "cost_drag",
        "exposure",
        "time_in_market",
        "hit_rate",
        "agent",
        "buy_and_hold",
        "low",
        "high",
    }
)
_WHOLE = frozenset({"drawdown_days", "drawdown_bars", "trades", "days", "ahead"})
_UNITS = {
    "annual_return": "a year",
    "volatility": "a year",
    "turnover": "a year",
    "cost_drag": "of equity a year",
    "exposure": "mean",
}


def label(name: str) -> str:
    """A metric's name for a person, with its unit where the figure alone does not say it."""
    unit = _UNITS.get(name)
    words = name.replace("_", " ").capitalize()
    return f"{words} ({unit})" if unit else words


def figure(name: str, value: float) -> str:
    """A metric's value for a person."""
    if math.isnan(value):
        return NO_FIGURE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if name in _PERCENT:
        return f"{value:.2%}" if abs(value) < 10 else f"{value:,.0%}"
    if name in _WHOLE:
        return f"{value:,.0f}"
    if name == "turnover":
        return f"{value:,.1f}×"
    return f"{value:,.2f}"


Table = tuple[list[str], list[list[str]]]  # heads and rows of cells; the first cell of a row names it


def metrics_rows(metrics: pd.DataFrame) -> Table:
    """Metrics down, strategies across."""
    rows = [[label(str(name)), *(figure(str(name), value) for value in metrics[name])] for name in metrics.columns]
    return ["", *map(str, metrics.index)], rows


def stress_rows(stress: pd.DataFrame) -> Table:
    """Costs and lateness down."""
    columns = {
        "total_return": "agent",
        "buy_and_hold": "buy and hold",
        "sharpe": "Sharpe",
        "max_drawdown": "max drawdown",
        "trades": "trades",
    }
    return _rows(stress, columns, ["the same weights", *columns.values()], lambda name: name.replace(" x ", " × "))


def year_rows(by_year: pd.DataFrame) -> Table:
    """Calendar years down."""
    columns = {
        "agent": "agent",
        "buy_and_hold": "buy and hold",
        "agent_sharpe": "Sharpe",
        "buy_and_hold_sharpe": "of buy and hold",
        "max_drawdown": "max drawdown",
        "days": "days",
    }
    return _rows(by_year, columns, ["year", *columns.values()], str)


def fold_rows(folds: pd.DataFrame) -> Table:
    """Folds of a walk-forward down."""
    columns = {
        "agent": "agent",
        "low": "worst seed",
        "high": "best seed",
        "buy_and_hold": "buy and hold",
        "ahead": "seeds ahead",
        "trades": "trades",
    }
    heads, rows = _rows(folds, columns, ["fold", *columns.values()], str)
    tested = [f"{fold['test_start']:%Y-%m-%d} to {fold['test_end']:%Y-%m-%d}" for fold in folds.to_dict("records")]
    heads, rows = (
        [heads[0], "tested on", *heads[1:]],
        [[row[0], when, *row[1:]] for row, when in zip(rows, tested, strict=True)],
    )
    return heads, rows


def seed_rows(seeds: pd.DataFrame) -> Table:
    """Seeds of a walk-forward down, their mean and standard deviation last."""
    import pandas as pd

    columns = {
        "total_return": "total return",
        "sharpe": "Sharpe",
        "sharpe_difference": "less buy and hold's",
        "max_drawdown": "max drawdown",
        "trades": "trades",
    }
    summary = pd.DataFrame({"mean": seeds.mean(), "standard deviation": seeds.std()}).T
    return _rows(pd.concat([seeds, summary]), columns, ["seed", *columns.values()], str)


def setting_rows(settings: pd.DataFrame, names: Sequence[str], most: int = MAX_SETTINGS) -> Table:
    """Settings of a sweep down, the best on validation bars first, and no more than the best `most`.

    Args:
      settings: of a `SweepReport`.
      names: of the hyperparameters that were swept.
      most: rows.
    """
    order = settings.sort_values("total_return", ascending=False, kind="stable", na_position="last").head(most)
    return ["setting", *names, "return on validation", "Sharpe", "trades", ""], [
        [
            str(number),
            *(f"{row[name]:g}" for name in names),
            _with_spread("total_return", row),
            _with_spread("sharpe", row),
            figure("trades", row["trades"]),
            "chosen" if row["chosen"] else f"{row['diverged']} diverged" if row["diverged"] else "",
        ]
        for number, row in order.to_dict("index").items()
    ]


def _with_spread(name: str, row: Mapping[Any, Any]) -> str:
    spread = row[f"{name}_std"]
    return figure(name, row[name]) + ("" if math.isnan(spread) else f" ± {figure(name, spread)}")


def sharpe_note(found: SharpeDifference) -> str:
    """The interval of the Sharpe difference, in a sentence."""
    if math.isnan(found.low):
        why = too_few(found.days) if found.days < MIN_DAYS else "one of the two does not move"
        return f"Sharpe less that of buy and hold: no interval, {why}."
    return (
        f"Sharpe less that of buy and hold: {found.difference:+.2f}, {100 * found.confidence:.0f} % interval {found.low:+.2f} to "
        f"{found.high:+.2f} (stationary bootstrap of {found.days} days, blocks of {found.block} on average)."
    )


def too_few(days: int) -> str:
    """That so many days tell nothing."""
    return "1 day is too few" if days == 1 else f"{days} days are too few"


def deflated_note(found: DeflatedSharpe) -> str:
    """The deflated Sharpe ratio, in a sentence."""
    if math.isnan(found.probability):
        return "Deflated Sharpe ratio: none, for want of days or of movement."
    likely = f"Deflated Sharpe ratio: {100 * found.probability:.0f} % likely to be above 0"
    if found.trials == 1:
        return f"{likely}, if these bars were tried once."
    return f"{likely}, being one of {found.trials:,} trials (the best of so many worthless ones reaches {found.threshold:.2f})."


def reward_note(correlation: float) -> str:
    """The correlation of reward and equity, in a sentence."""
    if math.isnan(correlation):
        return "Reward and change of the equity: no correlation to give."
    return f"Reward and change of the equity, step by step: correlation {correlation:.2f}."


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in columns of plain text."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = []
    for row in [heads, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join(lines)


def _rows(table: pd.DataFrame, columns: dict[str, str], heads: list[str], name: Callable[[Any], str]) -> Table:
    return heads, [[name(key), *(figure(c, row[c]) for c in columns)] for key, row in table.to_dict("index").items()]
