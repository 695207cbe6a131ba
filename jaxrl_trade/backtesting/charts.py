"""The report's charts: the account, the trades, the training, a walk-forward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_trade.backtesting.chart_parts import (
    AGENT,
    AGENT_FILL,
    BAND,
    HOLD,
    MAX_POINTS,
    Chart,
    axes,
    chart,
    line,
    numbers,
    thin,
    times,
)
from jaxrl_trade.backtesting.trade_charts import price, rolling_sharpe

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.backtesting.results import BacktestReport

_COUNTERS = (
    "update",
    "updates",
    "step",
    "steps",
    "env_steps",
    "experiences",
    "seconds",
    "time",
    "timestamp",
    "wall_time",
)
_NOT_DRAWN = frozenset({*_COUNTERS, "nonfinite"})
_TRAINING_UNITS = {
    "episode_return": "fraction of capital",
    "validation_total_return": "fraction of capital",
    "episodes": "episodes ended",
    "reward": "reward units a step",
    "equity": "fraction of capital",
    "cost": "fraction of capital a step",
    "exposure": "fraction of the maximum",
    "entropy": "nats",
    "kl": "nats",
    "clip_fraction": "fraction of samples",
    "explained_variance": "fraction",
    "steps_per_second": "steps a second",
    "learning_rate": "step size",
}


def charts(report: BacktestReport) -> list[Chart]:
    """Equity, price with trades, drawdown, rolling Sharpe ratio, exposure and actions."""
    own = [_equity(report), price(report), _drawdown(report), *rolling_sharpe(report)]
    return [*own, _exposure(report), _actions(report)]


def training_charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """A small chart for every number that the run logged at least twice, over the first counter that all rows have."""
    counter = next((name for name in _COUNTERS if rows and all(_is_number(row.get(name)) for row in rows)), None)
    names = dict.fromkeys(name for row in rows for name in row if name not in _NOT_DRAWN)
    found: list[Chart] = []
    for name in names:
        logged = [(i, row) for i, row in enumerate(rows, 1) if _is_number(row.get(name))]
        if len(logged) < 2:
            continue
        x = [float(row[counter]) if counter else float(i) for i, row in logged]
        y = [float(row[name]) for _, row in logged]
        keep = thin(np.array(y))
        curve: dict[str, Any] = {"type": "scatter", "mode": "lines", "line": {"color": AGENT, "width": 1.5}}
        curve |= {"x": [x[i] for i in keep], "y": [y[i] for i in keep]}
        unit = _TRAINING_UNITS.get(name, name.replace("_", " ").split()[-1])
        layout = axes(counter.replace("_", " ") if counter else "update", unit) | {"showlegend": False}
        found.append(chart(f"training-{len(found)}", name.replace("_", " "), "", [curve], layout))
    return found


def _equity(report: BacktestReport) -> Chart:
    curves = report.curves
    data = [
        *_band(report.band.iloc[thin(report.band["low"].to_numpy(), MAX_POINTS // 2)]),
        line(curves["buy_and_hold"], "buy and hold", HOLD, 1.5),
        line(curves["equity"], "agent", AGENT, 2),
    ]
    note = "After all costs, at each bar's close. The shaded band holds 90 % of the agent's copies that trade at shifted times."
    return chart("equity", "Equity", note, data, axes("time (UTC)", "equity (currency)"))


def _band(band: pd.DataFrame) -> list[dict[str, Any]]:
    if band.isna().to_numpy().any():  # the range was too short to shift anything
        return []
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "x": times(band.index), "hoverinfo": "skip"}
    filled = {"fill": "tonexty", "fillcolor": BAND, "name": "random timing, 5–95 %"}
    return [{**edge, "y": numbers(band["low"]), "showlegend": False}, {**edge, "y": numbers(band["high"]), **filled}]


def _drawdown(report: BacktestReport) -> Chart:
    data = []
    for name, label, color in (("buy_and_hold", "buy and hold", HOLD), ("equity", "agent", AGENT)):
        curve = report.curves[name]
        fall = line(100.0 * (curve / curve.cummax() - 1.0), label, color, 1.5)
        data.append({**fall, "fill": "tozeroy", "fillcolor": AGENT_FILL} if name == "equity" else fall)
    layout = axes("time (UTC)", "below the peak so far (%)")
    layout["yaxis"]["rangemode"] = "tozero"
    return chart("drawdown", "Drawdown", "Fall of the equity below its highest close so far, bar by bar.", data, layout)


def _exposure(report: BacktestReport) -> Chart:
    held = line(100.0 * report.curves["exposure"], "exposure", AGENT, 1)
    held |= {"fill": "tozeroy", "fillcolor": AGENT_FILL}
    held["line"]["shape"] = "hv"
    layout = axes("time (UTC)", "position value (% of equity)") | {"showlegend": False}
    return chart(
        "exposure", "Exposure", "Value of the position over equity; below 0 the agent is short.", [held], layout
    )


def _actions(report: BacktestReport) -> Chart:
    table = report.config.execution
    exposures = sorted(set(table.exposure))
    decisions = max(1, int(report.actions.sum()))
    data: list[dict[str, Any]] = []
    for is_maker, name, color in ((False, "takes the market's price", AGENT), (True, "rests at a limit", HOLD)):
        if is_maker not in table.is_maker:
            continue
        counts = dict.fromkeys(exposures, 0)
        for exposure, maker, count in zip(table.exposure, table.is_maker, report.actions, strict=True):
            counts[exposure] += int(count) if maker == is_maker else 0
        share = [100.0 * count / decisions for count in counts.values()]
        labels = [f"{exposure:+.0%}" if exposure else "flat" for exposure in exposures]
        data.append({"type": "bar", "x": labels, "y": share, "name": name, "marker": {"color": color}})
    layout = axes("exposure asked for (% of the maximum position)", "decisions (%)") | {"barmode": "stack"}
    layout["xaxis"]["type"] = "category"
    return chart("actions", "Actions", f"What the policy asked for in {decisions:,} decisions.", data, layout)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
