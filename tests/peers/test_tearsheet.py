"""QuantStats' sheet of our daily returns."""

import re

import numpy as np
import pytest

from jaxrl_trade.backtesting import backtest
from tests.backtesting.tracks import bars_of, random_walk, scripted, simple_rules, table_of

pytestmark = pytest.mark.peers


def report_of(n_bars, symbol="TEST"):
    bars = bars_of(random_walk(3, 320 + n_bars, volatility=0.01), freq="D", symbol=symbol)
    actions = np.random.default_rng(2).integers(0, 3, n_bars)
    return backtest(scripted(actions, 3), bars, simple_rules(execution=table_of([-1.0, 0.0, 1.0])), costs=())


def test_a_tear_sheet_shows_our_returns_and_asks_no_network(tmp_path):
    report = report_of(100, "<script>alert(1)</script>")
    text = report.to_tearsheet(tmp_path / "new" / "sheet.html").read_text()
    assert "<script>alert" not in text
    assert not re.findall(r'<(?:link|script|img|iframe)[^>]*(?:src|href)="https?:', text)
    hold, agent = (report.metrics.loc[name, "total_return"] for name in ("buy and hold", "agent"))
    assert "<tr><th>Metric</th><th>buy and hold</th><th>agent</th></tr>" in text
    shown = re.search(r"<td>Cumulative Return</td><td>([-\d.]+)%</td><td>([-\d.]+)%</td>", text)
    assert shown is not None
    assert [float(x) / 100 for x in shown.groups()] == pytest.approx([hold, agent], abs=6e-5)


def test_too_few_days_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"needs 20 days or more on which both accounts move; there are \d"):
        report_of(10).to_tearsheet(tmp_path / "sheet.html")
