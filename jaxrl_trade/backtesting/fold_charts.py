"""Charts of a walk-forward: what each fold earned, and every seed's equity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxrl_trade.backtesting.chart_parts import AGENT, GREY, HOLD, Chart, axes, chart, line

if TYPE_CHECKING:
    from jaxrl_trade.backtesting.walk_forward import WalkForwardReport

FAINT = "rgba(59,130,246,0.45)"
MAX_NAMED = 8  # seeds in the legend


def walk_forward_charts(walk: WalkForwardReport) -> list[Chart]:
    """The folds' returns, and the fan of the seeds where there are several."""
    return [_folds(walk), *([_fan(walk)] if len(walk.reports) > 1 else [])]


def _folds(walk: WalkForwardReport) -> Chart:
    folds, several = walk.folds, len(walk.reports) > 1
    tested = [f"{fold['test_start']:%Y-%m-%d} to {fold['test_end']:%Y-%m-%d}" for fold in folds.to_dict("records")]
    data: list[dict[str, Any]] = []
    for column, name, color in (("agent", "agent", AGENT), ("buy_and_hold", "buy and hold", HOLD)):
        bar = {"type": "bar", "name": name, "x": [str(i) for i in folds.index], "y": _percent(folds[column])}
        data.append(bar | {"marker": {"color": color}, "hovertext": tested})
    if several:
        reach = {
            "array": _percent(folds["high"] - folds["agent"]),
            "arrayminus": _percent(folds["agent"] - folds["low"]),
        }
        data[0]["error_y"] = {"type": "data", "symmetric": False, "thickness": 1.5, "color": GREY, **reach}
    note = "Total return on each fold's own test bars, after costs."
    note += " Bars are means over the seeds, whiskers reach to the worst and the best." if several else ""
    layout = axes("fold", "return (%)") | {"barmode": "group"}
    layout["xaxis"]["type"] = "category"
    return chart("folds", "Folds", note, data, layout)


def _fan(walk: WalkForwardReport) -> Chart:
    median = walk.reports.index(walk.median)
    lines = [
        line(report.equity, f"seed {i}", FAINT, 1) | {"showlegend": len(walk.reports) <= MAX_NAMED}
        for i, report in enumerate(walk.reports)
        if i != median
    ]
    own = line(walk.median.equity, f"seed {median}, the median", AGENT, 2.5)
    hold = line(walk.equity["buy_and_hold"], "buy and hold", HOLD, 1.5)
    note = f"The stitched equity of {len(walk.reports)} seeds: the same settings, other random numbers."
    return chart("fan", "Seeds", note, [*lines, hold, own], axes("time (UTC)", "equity (currency)"))


def _percent(series: Any) -> list[float]:
    return [float(f"{100.0 * value:.7g}") for value in series]
