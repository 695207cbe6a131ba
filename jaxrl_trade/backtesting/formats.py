"""Figures as people read them: one spelling for the terminal and the HTML report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

NO_FIGURE = "–"

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
    }
)
_WHOLE = frozenset({"drawdown_days", "drawdown_bars", "trades"})
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


def text_table(metrics: pd.DataFrame) -> str:
    """Metrics down, strategies across, in columns of plain text."""
    heads = ["", *map(str, metrics.index)]
    rows = [[label(str(name)), *(figure(str(name), value) for value in metrics[name])] for name in metrics.columns]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = []
    for row in [heads, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join(lines)
