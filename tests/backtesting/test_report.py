import dataclasses
import json
import re
import sys
from html import unescape

import numpy as np
import pandas as pd
import pytest

from jaxrl_trade.backtesting import backtest
from jaxrl_trade.backtesting.chart_parts import MAX_POINTS, thin
from jaxrl_trade.backtesting.charts import charts, training_charts
from jaxrl_trade.backtesting.fold_charts import walk_forward_charts
from jaxrl_trade.backtesting.folds import plan_folds
from jaxrl_trade.backtesting.report import _script_json
from jaxrl_trade.backtesting.tables import month_table
from jaxrl_trade.backtesting.trade_charts import MAX_TRADES, price, rolling_sharpe
from jaxrl_trade.backtesting.walk_forward import walk_forward_report
from jaxrl_trade.config import PPOConfig
from tests.backtesting.tracks import bars_of, random_walk, scripted, simple_rules, table_of

SYMBOL = "<script>alert(1)</script>&'\""
TRAINING = [{"update": i, "entropy": 3.0 - i, "kl": float("nan") if i else 0.1, "nonfinite": -1} for i in range(5)]
PROVENANCE = {
    "command": "train --data <b>my</b>.csv",
    "commit": "abc123",
    "seed": 7,
    "versions": {"jax": "1.2.3"},
}


RULES = simple_rules(
    execution=table_of([-1.0, 0.0, 1.0], fee_rate=0.001), barrier_profit_mult=1.004, barrier_loss_mult=0.996
)


def report_of(symbol=SYMBOL, days=False):
    """Of 80 bars: hourly ones, or daily ones, which are enough for a rolling Sharpe ratio."""
    actions = np.random.default_rng(2).integers(0, 3, 79)
    bars = bars_of(random_walk(1, 400, volatility=0.01 if days else 0.003), freq="D" if days else "h", symbol=symbol)
    return backtest(scripted(actions, 3), bars, RULES, checkpoint="best <i>one</i>")


def walk_of():
    """Three seeds of three folds of 26 daily bars."""
    folds = plan_folds(n_bars=320 + 120, warmup=320, folds=3, out_of_sample=0.65, embargo=2)
    rng = np.random.default_rng(4)
    policies = [[scripted(rng.integers(0, 3, 26), 3) for _ in folds] for _ in range(3)]
    bars = bars_of(random_walk(1, 440, volatility=0.01), freq="D", symbol=SYMBOL)
    return walk_forward_report(policies, folds, bars, PPOConfig(env=RULES))


@pytest.fixture(scope="module")
def report():
    return report_of()


@pytest.fixture(scope="module")
def html(report, tmp_path_factory):
    path = report.to_html(
        tmp_path_factory.mktemp("report") / "new" / "r.html", training=TRAINING, provenance=PROVENANCE
    )
    return path.read_text(encoding="utf-8")


def own_part(html):
    """The page without plotly.js."""
    start, end = html.index("<script>/**"), html.index('<script type="application/json"')
    return html[:start] + html[end:]


def charts_of(html):
    return json.loads(re.search(r'<script type="application/json" id="charts">(.*?)</script>', html, re.S).group(1))


def test_texts_from_outside_are_escaped_everywhere(html):
    page = own_part(html)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&#x27;&quot;" in page
    assert "alert(1)</script>" not in page
    assert "<b>my</b>" not in page
    assert "<i>one</i>" not in page


def test_chart_data_cannot_end_its_script_element():
    text = _script_json([{"title": "</script><script>alert(1)</script><!--", "n": 1.5, "</script>": None}])
    assert "<" not in text
    assert ">" not in text
    # Plotly reads tags in labels, so they stay escaped once parsed
    assert json.loads(text)[0]["title"] == "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;!--"


def test_the_file_holds_everything_it_needs(html):
    page = own_part(html)
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "https://" not in page
    assert "http://" not in page
    assert "default-src 'none'" in page
    assert html.count("<script>/**") == 1
    assert len(html.encode()) < 6_000_000


def test_the_page_says_the_verdict_the_checkpoint_and_how_to_reproduce_it(report, html):
    for text in ("abc123", "versions jax", "1.2.3", "train --data &lt;b&gt;my&lt;/b&gt;.csv", report.sha256, "rows "):
        assert text in html
    assert "lost to buy and hold" in html or "beat buy and hold" in html
    assert "Tested: best &lt;i&gt;one&lt;/i&gt;." in html


def test_what_was_read_is_a_list_of_names_and_texts(report, html):
    shown = html[html.index("<h2>Data</h2>") : html.index("<h2>Account</h2>")]
    pairs = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", shown)
    expected = [(line[:15].strip(), line[15:]) for line in report.data_report.lines() if line[0] != " "]
    assert [(name, unescape(text)) for name, text in pairs] == expected


def test_every_chart_has_a_title_and_names_its_axes(html):
    drawn = charts_of(html)
    assert [chart["id"] for chart in drawn] == ["equity", "price", "drawdown", "exposure", "actions", "training-0"]
    for chart in drawn:
        assert chart["layout"]["xaxis"]["title"]["text"]
        assert chart["layout"]["yaxis"]["title"]["text"]
        assert re.search(rf'<h[23]>[^<]+</h[23]>(<p>[^<]*</p>)?<div class="\w+" id="{chart["id"]}"', html)


def test_the_charts_show_the_ledgers_figures(report, html):
    equity, _, drawdown, exposure, actions = charts_of(html)[:5]
    agent = next(line for line in equity["data"] if line.get("name") == "agent")
    np.testing.assert_allclose(agent["y"], report.equity, rtol=1e-6)  # drawn with 7 digits
    fall = next(line for line in drawdown["data"] if line["name"] == "agent")
    np.testing.assert_allclose(fall["y"], 100 * (report.equity / np.maximum.accumulate(report.equity) - 1), atol=1e-4)
    np.testing.assert_allclose(exposure["data"][0]["y"], 100 * report.curves["exposure"], rtol=1e-6)
    assert actions["data"][0]["x"] == ["-100%", "flat", "+100%"]
    np.testing.assert_allclose(actions["data"][0]["y"], 100 * report.actions / 79)


def test_the_metrics_table_has_every_strategy_and_figure(report, html):
    for name in ("agent", "buy and hold", "always short", "always flat", "random timing (median)"):
        assert f"<th>{name}</th>" in html
    assert f"<td>{report.metrics.loc['agent', 'total_return']:.2%}</td>" in html


def test_trades_are_marked_on_the_price_at_their_fill_and_barriers_where_they_ended(report):
    close, buys, sells, won, lost = price(report)["data"]
    bought = report.trades[report.trades["units"] > 0]
    np.testing.assert_allclose(buys["y"], bought["price"], rtol=1e-6)
    assert buys["x"] == [f"{t:%Y-%m-%d %H:%M:%S}" for t in bought.index]
    assert len(sells["x"]) == len(report.trades) - len(bought)
    assert sells["text"][0].startswith("sell ")
    ends = {1.0: won, -1.0: lost}
    for label, markers in ends.items():
        assert len(markers["x"]) == (report.curves["barrier"] == label).sum() > 0
    np.testing.assert_allclose(close["y"], report.curves["close"], rtol=1e-6)


def test_of_very_many_trades_the_largest_are_drawn(report):
    many = pd.concat([report.trades] * 100)
    many["value"] = np.random.default_rng(0).permutation(len(many))
    drawn = price(dataclasses.replace(report, trades=many))
    bought = many[many["units"] > 0]
    assert len(drawn["data"][1]["y"]) == MAX_TRADES
    least = bought["value"].nlargest(MAX_TRADES).min()
    np.testing.assert_allclose(drawn["data"][1]["y"], bought["price"][bought["value"] >= least], rtol=1e-6)
    assert "The largest 1,000 of each side are drawn." in drawn["note"]


def test_the_rolling_sharpe_is_of_the_days_before():
    report = report_of(days=True)
    hold, agent = rolling_sharpe(report)[0]["data"]
    last = report.daily.iloc[-20:]  # a quarter of 79 days, but at least 20
    for drawn, name in ((hold, "buy_and_hold"), (agent, "agent")):
        assert len(drawn["y"]) == 79 - 19
        assert drawn["y"][-1] == pytest.approx(last[name].mean() / last[name].std() * 365**0.5, rel=1e-5)
    assert rolling_sharpe(report_of()) == []  # four days


def test_months_compound_to_their_year_in_the_table():
    report = report_of(days=True)
    table = month_table(report)
    assert re.findall(r"<th>(\w+)</th>", table) == ["Jan", "Feb", "Nov", "Dec", "Year", "2024", "2025"]
    month = report.daily["agent"][(report.daily.index.year == 2024) & (report.daily.index.month == 12)]
    assert f">{np.prod(1 + month) - 1:.2%}<small>" in table
    for year in (2024, 2025):
        assert f">{report.by_year.loc[year, 'agent']:.2%}<small>" in table


def test_the_tables_of_costs_and_years_and_the_notes_are_in_the_page(report, html):
    for text in ("<th>costs × 5</th>", "<th>one bar late</th>", "<th>2024</th>", *report.notes):
        assert text in html
    assert f"<td>{report.stress.loc['costs x 5', 'total_return']:.2%}</td>" in html


def test_a_walk_forward_has_its_folds_and_its_fan_in_the_page(tmp_path):
    walk = walk_of()
    folds, fan = walk_forward_charts(walk)
    assert folds["data"][0]["x"] == ["1", "2", "3"]
    np.testing.assert_allclose(folds["data"][0]["y"], 100 * walk.folds["agent"], rtol=1e-6)
    reach = np.add(folds["data"][0]["y"], folds["data"][0]["error_y"]["array"])
    np.testing.assert_allclose(reach, 100 * walk.folds["high"], rtol=1e-5)
    assert len(fan["data"]) == 4  # three seeds, buy and hold
    page = own_part(walk.to_html(tmp_path / "w.html").read_text(encoding="utf-8"))
    for text in (
        "Walk-forward, ",
        "<th>standard deviation</th>",
        "That is the median of 3 seeds",
        "<th>seeds ahead</th>",
    ):
        assert text in page
    assert "alert(1)</script>" not in page


def test_training_curves_skip_what_is_no_curve():
    curves = training_charts(TRAINING)
    assert [chart["title"] for chart in curves] == ["entropy"]  # kl has one finite value, nonfinite is a flag
    assert curves[0]["data"][0]["x"] == [0, 1, 2, 3, 4]
    assert curves[0]["layout"]["yaxis"]["title"]["text"] == "nats"
    assert training_charts([]) == []


def test_thinning_keeps_every_extreme_and_both_ends():
    values = np.random.default_rng(0).normal(size=100_000)
    values[[123, 77_777]] = 50.0, -50.0
    keep = thin(values)
    assert len(keep) <= MAX_POINTS
    assert {0, 123, 77_777, 99_999} <= set(keep.tolist())
    assert (np.diff(keep) > 0).all()
    np.testing.assert_array_equal(thin(values[:100]), np.arange(100))


def test_without_plotly_the_error_says_how_to_get_it(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=r'pip install "jaxrl-trade\[report\]"'):
        report.to_html(tmp_path / "r.html")


def test_a_report_without_training_or_provenance_is_whole(report, tmp_path):
    html = report.to_html(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Training</h2>" not in html
    assert report.sha256 in html


def test_a_band_that_is_undefined_is_not_drawn(report):
    nowhere = pd.DataFrame(np.nan, columns=["low", "median", "high"], index=report.equity.index[:2])
    drawn = charts(dataclasses.replace(report, band=nowhere))[0]["data"]
    assert [line["name"] for line in drawn] == ["buy and hold", "agent"]
