import dataclasses
import json
import math
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxrl_trade.backtesting import backtest, evaluate, tracks_of_market
from jaxrl_trade.backtesting.simulate import NOTHING
from jaxrl_trade.config import PPOConfig
from jaxrl_trade.market import Market
from tests.backtesting.tracks import bars_of, random_walk, scripted, simple_rules, table_of

RULES = simple_rules(execution=table_of([-1.0, 0.0, 1.0], fee_rate=0.001))
N = 380  # bars, of which the first 320 warm the features up


def always(action):
    return lambda obs: jnp.zeros((len(obs), 3)).at[:, action].set(1.0)


def rising(n=N):
    return bars_of(np.linspace(100.0, 138.0, n), symbol="RISE")


def falling(n=N):
    return bars_of(np.linspace(138.0, 100.0, n), symbol="FALL")


@pytest.fixture(scope="module")
def report():
    """An agent that changes its mind all the time on a random walk."""
    bars = bars_of(random_walk(1, 600))
    actions = np.random.default_rng(2).integers(0, 3, 279)
    return backtest(scripted(actions, 3), bars, RULES, checkpoint="the last one")


def test_equity_starts_with_the_capital_on_the_first_bar_of_the_range(report):
    assert report.equity.iloc[0] == 1000.0
    assert str(report.equity.index.tz) == "UTC"
    assert report.equity.index[0] == pd.Timestamp("2024-01-01", tz="UTC") + pd.Timedelta(hours=320)
    assert len(report.equity) == 280


def test_equity_is_cash_and_units_of_the_trades_listed(report):
    trades = report.trades
    spent = (trades["units"] * trades["price"] + trades["fee"]).sum()
    final = 1000.0 - spent + trades["units"].sum() * report.curves["close"].iloc[-1]
    assert report.equity.iloc[-1] == pytest.approx(final, rel=1e-9)
    np.testing.assert_allclose(trades["fee"], 0.001 * trades["units"].abs() * trades["price"], rtol=1e-12)
    closes = report.curves["close"].loc[trades.index]
    np.testing.assert_allclose(trades["price"], closes, rtol=1e-12)  # this table fills at the close decided on


def test_the_table_sets_every_baseline_beside_the_agent(report):
    assert list(report.metrics.index) == ["agent", "buy and hold", "always short", "always flat", "random timing"]
    assert report.metrics.loc["agent", "total_return"] == pytest.approx(report.equity.iloc[-1] / 1000 - 1)
    assert report.metrics.loc["always flat", "total_return"] == 0
    close = report.curves["close"]
    expected = close.iloc[-1] / close.iloc[0] - 1 - 0.001
    assert report.metrics.loc["buy and hold", "total_return"] == pytest.approx(expected)
    assert 0 <= report.percentile <= 100


def test_the_action_counts_are_of_the_decisions(report):
    expected = np.bincount(np.random.default_rng(2).integers(0, 3, 279), minlength=3)
    np.testing.assert_array_equal(report.actions, expected)


def test_a_losing_agent_is_told_so():
    report = backtest(always(0), rising(), RULES, 330)
    assert not report.beats_buy_and_hold
    assert report.verdict.startswith("The agent lost to buy and hold on RISE from 2024-01-14 to 2024-01-16: -")
    assert "after costs" in report.verdict


def drifting(seed, n=420):
    """Daily bars that fall by 0.3 % a day on average, with days of 1 %; the last 100 of them have features."""
    moves = np.random.default_rng(seed).normal(-0.003, 0.01, n)
    return bars_of(100 * np.exp(np.cumsum(moves)), freq="D", symbol="FALL")


def test_a_winning_agent_is_told_so():
    report = backtest(always(0), drifting(0), RULES)
    assert report.beats_buy_and_hold
    assert report.verdict.startswith("The agent beat buy and hold on FALL")
    low, high = report.comparison.low, report.comparison.high
    assert 0 < low < report.comparison.difference < high
    text = f"the 95 % interval of the Sharpe difference, {low:+.2f} to {high:+.2f}, lies above 0."
    assert report.verdict.endswith(text)
    assert "lost money" not in report.verdict


def test_bars_that_were_seen_are_no_evidence_whatever_the_interval_says():
    report = dataclasses.replace(backtest(always(0), drifting(0), RULES), seen_bars=40)
    assert report.comparison.low > 0
    assert not report.beats_buy_and_hold
    assert report.verdict.startswith("The agent ended ahead of buy and hold on FALL")
    assert report.verdict.endswith("but 40 of 100 bars were seen in training, so it is no evidence.")
    assert report.as_dict()["seen_bars"] == 40


def test_an_agent_that_may_have_been_lucky_does_not_beat_buy_and_hold():
    half_long = simple_rules(execution=table_of([0.5, 0.0, 1.0], fee_rate=0.001))
    report = backtest(always(0), drifting(0), half_long)  # half of buy and hold's loss at about its Sharpe ratio
    assert report.comparison.low < 0 < report.comparison.high
    assert report.ended_ahead
    assert not report.beats_buy_and_hold
    assert report.verdict.startswith("The agent lost less than buy and hold on FALL")
    assert "after costs, but does not beat it: the 95 % interval of the Sharpe difference, -" in report.verdict
    assert report.verdict.endswith("holds 0.")


def test_a_few_days_are_too_few_to_beat_buy_and_hold():
    report = backtest(always(0), falling(), RULES, 330)
    assert report.ended_ahead
    assert not report.beats_buy_and_hold
    assert report.verdict.endswith("after costs, but does not beat it: 3 days are too few to tell it from luck.")
    assert "no interval, 3 days are too few" in report.summary()


def test_an_agent_as_good_as_buy_and_hold_does_not_beat_it():
    report = backtest(always(2), rising(), simple_rules(execution=RULES.execution, sizing="units"), 330)
    assert "did no better than buy and hold" in report.verdict


def test_a_flat_agent_has_no_return_and_the_verdict_says_that_it_never_traded():
    report = backtest(always(1), rising(), RULES)
    assert (report.equity == 1000.0).all()
    assert report.verdict.startswith("The agent never traded and lost to buy and hold")
    assert "+0.00%" in report.verdict
    assert report.percentile == 50
    assert len(report.trades) == 0
    assert np.isnan(report.reward_correlation)


def test_ruin_is_in_the_verdict_and_the_closing_in_the_trades():
    close = np.append(np.full(330, 100.0), np.linspace(100.0, 230.0, 50))
    report = backtest(always(0), bars_of(close), RULES, 325)
    assert report.ruined is not None
    assert f"it was ruined on {report.ruined:%Y-%m-%d %H:%M} UTC and closed" in report.verdict
    closing = report.trades.iloc[-1]
    assert (closing["action"], closing["position"]) == (NOTHING, 0)
    assert report.trades.index[-1] == report.ruined
    assert (report.equity.loc[report.ruined :] == report.equity.iloc[-1]).all()


def test_the_annualisation_is_printed_with_its_reason(report):
    assert "365 days a year (" in report.summary()
    assert "Saturdays hold bars" in report.summary()


def test_the_summary_is_a_table_of_strategies_with_the_verdict_and_the_checkpoint(report):
    text = report.summary()
    assert text.startswith(report.verdict)
    assert "Tested: the last one." in text
    for name in (*report.metrics.index, "costs × 5", "one bar late", "2024", "Deflated Sharpe ratio", "correlation"):
        assert name in text
    assert "nan" not in text


def test_saved_files_give_equity_trades_and_metrics_back(report, tmp_path):
    folder = report.save(tmp_path / "a" / "b")
    equity = pd.read_parquet(folder / "equity.parquet")
    np.testing.assert_array_equal(equity["equity"], report.equity)
    assert str(equity.index.tz) == "UTC"
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "trades.parquet"), report.trades, check_freq=False)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics == report.as_dict()
    assert metrics["metrics"]["agent"]["total_return"] == report.metrics.loc["agent", "total_return"]


@pytest.mark.parametrize("write", ["save", "to_html"])
def test_files_that_cannot_be_written_leave_the_ones_before(report, write, tmp_path, monkeypatch):
    path = tmp_path / "report.html" if write == "to_html" else tmp_path
    getattr(report, write)(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def half(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", lambda table, path: path.write_bytes(b"PAR1") and half())
    monkeypatch.setattr(os, "fsync", half)
    with pytest.raises(OSError, match="No space left on device") as caught:
        getattr(report, write)(path)
    assert caught.value.filename in {str(tmp_path / name) for name in before}
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_the_json_holds_every_table(report):
    found = report.as_dict()
    assert list(found["stress"]) == ["costs x 0", "costs x 1", "costs x 2", "costs x 5", "one bar late"]
    assert found["stress"]["costs x 1"]["total_return"] == found["metrics"]["agent"]["total_return"]
    assert list(found["by_year"]) == ["2024"]
    assert found["sharpe_difference"]["days"] == found["by_year"]["2024"]["days"] == len(report.daily)
    assert found["deflated_sharpe"]["trials"] == 1
    assert found["reward_correlation"] == report.reward_correlation


def test_undefined_figures_are_null_in_json():
    report = backtest(always(1), rising(), RULES, 370)  # within one day
    figures = report.as_dict()["metrics"]["agent"]
    assert figures["sharpe"] is None
    assert math.isnan(report.metrics.loc["agent", "sharpe"])
    json.dumps(report.as_dict(), allow_nan=False)


def test_two_bars_are_enough():
    report = backtest(always(2), rising(), RULES, 370, 372)
    assert len(report.equity) == 2
    assert "too short" in report.summary()
    assert "no interval, 1 day is too few" in report.summary()


def test_a_runs_config_is_taken_for_its_account():
    report = backtest(always(1), rising(), PPOConfig(env=RULES), 370)
    assert report.config == RULES


def test_another_config_is_refused():
    with pytest.raises(ValueError, match="config is a dict; give an EnvConfig"):
        backtest(always(1), rising(), {}, 370)


def test_evaluate_gives_the_backtests_figures():
    bars = bars_of(random_walk(1, 600))
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(54, 3)), jnp.float32)
    report = backtest(lambda obs: obs @ weights, bars, RULES)
    market = Market.from_bars(bars)
    figures = evaluate(lambda obs: obs @ weights, market, RULES)
    # the Market keeps prices in float32: 1e-7 of each, on 279 steps with a trade in most of them
    assert figures["total_return"] == pytest.approx(report.metrics.loc["agent", "total_return"], abs=1e-4)
    assert figures["sharpe"] == pytest.approx(report.metrics.loc["agent", "sharpe"], rel=1e-2)
    assert figures["trades"] == len(report.trades)
    assert figures == evaluate(lambda obs: obs @ weights, tracks_of_market(market), RULES)


def test_evaluate_takes_the_mean_over_instruments():
    up, down = np.linspace(100.0, 150.0, 30), np.linspace(100.0, 80.0, 30)
    close = np.append(up, down)
    market = Market.from_arrays(close[:, None], close, instrument=["U"] * 30 + ["D"] * 30)
    free = simple_rules(execution=table_of([-1.0, 0.0, 1.0]), sizing="units")
    figures = evaluate(always(2), market, free)
    assert figures["final_equity"] == pytest.approx(1000 + (50 - 20) / 2)
    assert figures["total_return"] == pytest.approx((50 - 20) / 2 / 1000)
    assert (figures["trades"], figures["ruined"]) == (2, 0)


def test_a_sharpe_that_is_undefined_counts_as_zero_in_evaluate():
    close = np.linspace(100.0, 150.0, 30)
    assert evaluate(always(1), Market.from_arrays(close[:, None], close), RULES)["sharpe"] == 0


def test_evaluate_runs_without_pandas_and_empyrical():
    code = """
import sys
import jax.numpy as jnp, numpy as np
from jaxrl_trade import EnvConfig, Market
from jaxrl_trade.backtesting import evaluate
close = np.linspace(1.0, 2.0, 9)
evaluate(lambda obs: jnp.zeros((len(obs), 45)), Market.from_arrays(close[:, None], close), EnvConfig())
loaded = {"pandas", "empyrical", "plotly", "scipy.stats", "pyarrow", "talib"} & set(sys.modules)
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_tear_sheet_without_its_library_says_how_to_get_it(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "quantstats.reports", None)
    with pytest.raises(ImportError, match=r"pip install \"jaxrl-trade\[tearsheet\]\""):
        report.to_tearsheet(tmp_path / "sheet.html")
