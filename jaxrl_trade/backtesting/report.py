"""The HTML report: one file, no network. Text is escaped here, charts come from `charts`, the page from `templates/report.html`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from jaxrl_trade.backtesting.chart_parts import MAX_POINTS, Chart
from jaxrl_trade.backtesting.charts import charts, training_charts
from jaxrl_trade.backtesting.fold_charts import walk_forward_charts
from jaxrl_trade.backtesting.formats import figure, label
from jaxrl_trade.backtesting.metrics import METRICS
from jaxrl_trade.backtesting.tables import (
    config_table,
    execution_table,
    fold_table,
    html_table,
    metrics_table,
    month_table,
    seed_table,
    spelled,
    stress_table,
    year_table,
)

if TYPE_CHECKING:
    from jaxrl_trade.backtesting.results import BacktestReport
    from jaxrl_trade.backtesting.sweep import SweepReport
    from jaxrl_trade.backtesting.walk_forward import WalkForwardReport

TEMPLATE = Path(__file__).parent / "templates" / "report.html"
DATA_NAME = 15  # characters of a line of the data's report that name it

_CARDS = (
    ("Total return", "agent", "total_return"),
    ("Buy and hold", "buy and hold", "total_return"),
    ("Sharpe a year", "agent", "sharpe"),
    ("Max drawdown", "agent", "max_drawdown"),
    ("Trades", "agent", "trades"),
    ("Costs a year", "agent", "cost_drag"),
)
_RULES = (
    "Buy and hold and always short trade once, on the first bar, as the dearest taker of the execution table, to the largest "
    "position allowed there, and hold it.",
    "Random timing takes the agent's own exposures and trades at times shifted around the range, at the agent's own mean cost.",
    "There is no financing of shorts, no margin call and no funding.",
)


class PlotlyMissingError(ImportError):
    """The report needs plotly, which is an optional dependency."""


def render(
    report: BacktestReport,
    training: Sequence[Mapping[str, Any]],
    provenance: Mapping[str, Any],
    walk_forward: WalkForwardReport | None = None,
    sweep: SweepReport | None = None,
) -> str:
    """The report as HTML.

    Args:
      report: of a backtest.
      training: rows of the run's metrics, one an update, numbers by name; may be empty.
      provenance: what reproduces it, by name; nested mappings are spelled out.
      walk_forward, sweep: the one that `report` is the median seed of.
    Raises:
      PlotlyMissingError: plotly is not installed.
    """
    figures, curves = charts(report), training_charts(training)
    folds = [] if walk_forward is None else walk_forward_charts(walk_forward)
    whole = walk_forward or sweep
    kind = "Backtest" if whole is None else "Walk-forward" if sweep is None else "Sweep"
    several = [*(whole.spread if whole else []), *([sweep.choice] if sweep else [])]
    metrics = report.metrics.to_dict("index")
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"{kind} of {report.symbol}"),
        symbol=escape(report.symbol),
        span=escape(f"{report.equity.index[0]:%Y-%m-%d %H:%M} to {report.equity.index[-1]:%Y-%m-%d %H:%M} UTC"),
        size=escape(f"{len(report.equity):,} bars · {'greedy' if report.greedy else 'sampled'} actions"),
        checkpoint=f"<p>Tested: {escape(report.checkpoint)}.</p>" if report.checkpoint else "",
        outcome="won" if report.beats_buy_and_hold and metrics["agent"]["total_return"] > 0 else "lost",
        kind=kind if whole is None else f"{kind}, {_seeds_and_trials(report, len(whole.reports))}",
        verdict=escape(report.verdict),
        cards=_cards(metrics),
        notes="".join(f"<li>{escape(note)}</li>" for note in [*several, *report.notes]),
        whole=_walk(walk_forward, folds) + _settings(sweep),
        figures="".join(_figure(chart) for chart in figures),
        months=month_table(report),
        stress=stress_table(report),
        years=year_table(report),
        training=_training(curves),
        table=metrics_table(report),
        meanings="".join(f"<dt>{escape(label(k))}</dt><dd>{escape(v)}</dd>" for k, v in METRICS.items()),
        annualisation=escape(report.annualisation),
        rules="".join(f"<li>{escape(rule)}</li>" for rule in _RULES),
        data=_data_list(report),
        config=config_table(report),
        execution=execution_table(report),
        provenance=_provenance(report, provenance),
        points=f"{MAX_POINTS:,}",
        charts=_script_json([{k: chart[k] for k in ("id", "data", "layout")} for chart in [*folds, *figures, *curves]]),
        plotly=_plotly(),
    )


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise PlotlyMissingError(
            'the HTML report needs plotly, which is not installed: pip install "jaxrl-trade[report]"'
        ) from error
    return str(get_plotlyjs())


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, nor start a comment there."""
    text = json.dumps(_escaped(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _escaped(value: Any) -> Any:
    """Every text of a figure with HTML's characters escaped: Plotly reads tags in titles and labels."""
    if isinstance(value, str):
        return escape(value, quote=False)
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


def _cards(metrics: Mapping[Any, Mapping[Any, float]]) -> str:
    shown = [(title, figure(name, metrics[strategy][name])) for title, strategy, name in _CARDS]
    return "".join(f'<div class="card"><span>{escape(t)}</span><b>{escape(value)}</b></div>' for t, value in shown)


def _figure(chart: Chart, kind: str = "chart") -> str:
    note = f"<p>{escape(chart['note'])}</p>" if chart["note"] else ""
    title = escape(chart["title"])
    head = f"<h2>{title}</h2>{note}" if kind == "chart" else f"<h3>{title}</h3>"
    name = escape(chart["id"])
    return (
        f'<section class="panel">{head}<div class="{kind}" id="{name}" role="img" aria-label="{title}"></div></section>'
    )


def _walk(walk: WalkForwardReport | None, folds: Sequence[Chart]) -> str:
    if walk is None:
        return ""
    table = f'<section class="panel"><h2>Folds and seeds</h2>{fold_table(walk)}{seed_table(walk)}</section>'
    return "".join(_figure(chart) for chart in folds) + table


def _settings(sweep: SweepReport | None) -> str:
    if sweep is None:
        return ""
    return (
        '<section class="panel"><h2>Settings and seeds</h2><p>Means of the seeds on validation bars, after costs, ± their standard '
        f"deviation; the chosen setting's seeds on these bars.</p>{html_table(*sweep.setting_rows)}{seed_table(sweep)}</section>"
    )


def _seeds_and_trials(report: BacktestReport, seeds: int) -> str:
    """Which of several this is, and how many were tried."""
    trials = f"{report.deflated.trials:,} {'trial' if report.deflated.trials == 1 else 'trials'}"
    return f"{f'the median of {seeds} seeds' if seeds > 1 else '1 seed'}, {trials}"


def _training(curves: Sequence[Chart]) -> str:
    if not curves:
        return ""
    return f'<h2 class="over">Training</h2><div class="grid">{"".join(_figure(c, "small") for c in curves)}</div>'


def _data_list(report: BacktestReport) -> str:
    """The lines of the data's report as a list; one without a name goes on with the one before it."""
    if report.data_report is None:
        return "<p>No report came with the bars.</p>"
    items = []
    for line in str(report.data_report).splitlines():
        name, text = line[:DATA_NAME].strip(), line[DATA_NAME:].strip()
        items.append(f"<dt>{escape(name)}</dt>" * bool(name) + f"<dd>{escape(text)}</dd>")
    return f'<dl class="facts">{"".join(items)}</dl>'


def _provenance(report: BacktestReport, provenance: Mapping[str, Any]) -> str:
    known = {"data sha256": report.sha256} if report.sha256 else {}
    items = {**dict(_flat(provenance)), **known}
    command = items.pop("command", None)
    if isinstance(command, (list, tuple)):  # of a run that began in Python
        command = shlex.join(map(str, command))
    line = f"<pre>{escape(spelled(command))}</pre>" if command else ""
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(spelled(value))}</dd>" for name, value in items.items())
    return f"{line}<dl class='facts'>{facts}</dl>" if facts or line else "<p>Nothing was recorded.</p>"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", value
