"""What the report's charts are made of: Plotly figures in plain dictionaries. Colours of the page are the template's business.

Long series are thinned for drawing only: each stretch keeps its first, lowest, highest and last bar, so no extreme is lost.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Chart = dict[str, Any]  # id, title, note, data, layout

MAX_POINTS = 2000  # drawn of one line
AGENT, AGENT_FILL, HOLD = "#3b82f6", "rgba(59,130,246,0.15)", "#f59e0b"
UP, DOWN, GREY = "#10b981", "#ef4444", "#94a3b8"
BAND = "rgba(148,163,184,0.28)"


def thin(values: np.ndarray, most: int = MAX_POINTS) -> np.ndarray:
    """Positions, ascending, of at most `most` of `values` `[n]`: each stretch's first, last, lowest and highest."""
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 4 + 1).astype(int)
    stretches = list(itertools.pairwise(edges))
    extremes = [a + int(choose(values[a:b])) for a, b in stretches for choose in (np.argmin, np.argmax)]
    return np.unique(np.concatenate([edges[:-1], edges[1:] - 1, extremes]))


def line(series: pd.Series, name: str, color: str, width: float) -> dict[str, Any]:
    """A line through a series, thinned."""
    keep = thin(series.to_numpy())
    drawn = series.iloc[keep]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": times(drawn.index),
        "y": numbers(drawn),
        "line": {"color": color, "width": width},
    }


def chart(name: str, title: str, note: str, data: list[dict[str, Any]], layout: dict[str, Any]) -> Chart:
    """One chart of the report: its place in the page, its words, and Plotly's figure."""
    return {"id": name, "title": title, "note": note, "data": data, "layout": layout}


def axes(x: str, y: str) -> dict[str, Any]:
    """Titles of both axes, with their units."""
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}


def times(index: pd.Index) -> list[str]:
    """Moments as Plotly reads them."""
    return [f"{moment:%Y-%m-%d %H:%M:%S}" for moment in index]


def numbers(series: pd.Series) -> list[float | None]:
    """Seven digits are more than a screen shows; JSON has no NaN."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in series]
