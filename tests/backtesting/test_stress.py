import dataclasses
import math

import numpy as np
import pytest

from jaxrl_trade.backtesting import backtest
from jaxrl_trade.backtesting.simulate import NOTHING, replay
from jaxrl_trade.backtesting.stress import correlation, rewards
from jaxrl_trade.config import PPOConfig
from tests.backtesting.tracks import bars_of, random_track, random_walk, scripted, simple_rules, table_of, track_of
from tests.reference import account as reference
from tests.reference import presets

RULES = simple_rules(execution=table_of([-1.0, 0.0, 1.0], fee_rate=0.001))
ACTIONS = np.random.default_rng(2).integers(0, 3, 99)


@pytest.fixture(scope="module")
def bars():
    """Daily bars; the last 100, from 2024-11-16 on, have features."""
    return bars_of(random_walk(3, 420, volatility=0.01), freq="D")


@pytest.fixture(scope="module")
def report(bars):
    return backtest(scripted(ACTIONS, 3), bars, RULES)


def test_years_compound_to_the_whole_and_each_is_its_own_days(report):
    years = report.by_year
    assert years.index.tolist() == [2024, 2025]
    assert math.prod(1 + years["agent"]) == pytest.approx(report.equity.iloc[-1] / 1000)
    hold = report.curves["buy_and_hold"]
    assert math.prod(1 + years["buy_and_hold"]) == pytest.approx(hold.iloc[-1] / 1000)
    last = report.equity[report.equity.index.year == 2024].iloc[-1]
    assert years.loc[2024, "agent"] == pytest.approx(last / 1000 - 1)
    second = report.equity[report.equity.index.year == 2025].to_numpy() / last
    own = np.diff(second, prepend=1) / np.append(1, second[:-1])
    assert years.loc[2025, "agent_sharpe"] == pytest.approx(own.mean() / own.std(ddof=1) * 365**0.5)
    assert years["days"].tolist() == [45, 54]


def test_other_costs_are_those_of_another_table(bars, report):
    stress = report.stress
    assert stress.index.tolist() == ["costs x 0", "costs x 1", "costs x 2", "costs x 5", "one bar late"]
    for multiple in (0, 2, 5):
        dearer = dataclasses.replace(RULES, execution=table_of([-1.0, 0.0, 1.0], fee_rate=0.001 * multiple))
        other = backtest(scripted(ACTIONS, 3), bars, dearer, costs=()).metrics
        row = stress.loc[f"costs x {multiple}"]
        for name in ("total_return", "sharpe", "trades", "max_drawdown"):
            assert row[name] == pytest.approx(other.loc["agent", name], rel=1e-9), name
        assert row["buy_and_hold"] == pytest.approx(other.loc["buy and hold", "total_return"], rel=1e-9)
    agent = report.metrics.loc["agent"]
    assert stress.loc["costs x 1", "total_return"] == agent["total_return"]
    assert stress["total_return"].iloc[:4].is_monotonic_decreasing


def test_a_bar_late_is_the_same_actions_after_a_first_bar_of_nothing(bars, report):
    late = backtest(scripted([1, *ACTIONS[:-1]], 3), bars, RULES).metrics.loc[
        "agent"
    ]  # 1 is flat, as the account begins
    row = report.stress.loc["one bar late"]
    assert row["total_return"] == pytest.approx(late["total_return"], rel=1e-9)
    assert row["trades"] == late["trades"]
    assert row["total_return"] != pytest.approx(report.metrics.loc["agent", "total_return"], rel=1e-3)


def test_nobody_follows_a_ruined_agent_a_bar_late():
    close = np.concatenate([random_walk(3, 340, volatility=0.001), [60.0], np.linspace(61.0, 90.0, 40)])
    bars = bars_of(close, freq="D")
    rules = simple_rules(execution=table_of([0.0, 1.0]), leverage=3.0)
    steps = len(backtest(scripted(np.zeros(1000, int), 2), bars, rules, costs=()).equity) - 1
    crash = steps - 41  # the decision that earns the fall to 60
    report = backtest(scripted((np.arange(steps) == crash).astype(int), 2), bars, rules)
    assert report.ruined is not None
    late = report.stress.loc["one bar late"]
    assert late[["total_return", "sharpe", "trades", "final_equity"]].isna().all()
    assert not report.stress.drop(index="one bar late").isna().any(axis=None)


def test_negative_costs_are_refused(bars):
    with pytest.raises(ValueError, match=r"costs hold -1; each must be a multiple"):
        backtest(scripted(ACTIONS, 3), bars, RULES, costs=(1, -1))


def test_rewards_are_the_environments_save_for_curiosity():
    config = PPOConfig(env=dataclasses.replace(PPOConfig().env, episode_length=60, barrier_profit_mult=1.005))
    track, actions = random_track(1, 61), np.random.default_rng(0).integers(0, 45, 60)
    found = rewards(replay(actions, track, config.env), config)
    market = {name: getattr(track, name) for name in ("features", "open", "high", "low", "close")}
    rules = presets.PLAN | {"episode_length": 60, "barrier_profit_mult": 1.005}
    steps, _ = reference.simulate(market, rules, 0, actions, np.zeros(60, int))
    assert np.count_nonzero(steps["barrier_label"]) > 3
    expected = steps["base"] * (1 + 0.5 * steps["barrier_label"]) + steps["diversity_penalty"] - 0.1 * steps["drawdown"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)  # the penalty is float32


def test_the_diversity_of_each_episode_begins_anew():
    config = PPOConfig(env=dataclasses.replace(PPOConfig().env, episode_length=10))
    actions = np.tile(np.random.default_rng(0).integers(0, 4, 10), 2)
    first, second = rewards(replay(actions, track_of(np.full(21, 100.0)), config.env), config).reshape(2, 10)
    assert first.min() < -0.01
    np.testing.assert_allclose(first, second, atol=1e-4)  # the fees of one unit are next to nothing of a million


def test_a_reward_of_the_users_own_is_not_computed():
    config = PPOConfig(reward_fn=lambda transitions, scales, market, env: transitions.base)
    trace = replay(np.full(20, NOTHING), track_of(np.full(21, 100.0)), config.env)
    assert rewards(trace, config) is None
    assert math.isnan(correlation(None, np.ones(10)))


def test_the_correlation_is_pearsons_of_rewards_and_equity_changes(bars, report):
    config = PPOConfig.net(env=dataclasses.replace(RULES, reward_base="equity"))
    found = backtest(scripted(ACTIONS, 3), bars, config)
    reward = found.curves["reward"].to_numpy()
    assert math.isnan(reward[0])
    change = found.equity.pct_change().to_numpy()[1:]
    assert found.reward_correlation == pytest.approx(np.corrcoef(reward[1:], change)[0, 1])
    assert found.reward_correlation > 0.99  # log returns of the equity, but for drawdown and diversity
    assert report.reward_correlation < found.reward_correlation  # the directional reward knows of no costs
    assert math.isnan(correlation(np.zeros(3), np.arange(1.0, 5.0)))
    # after ruin there is no relative change: only the first two steps count
    assert correlation(np.array([1.0, 2.0, 9.0]), np.array([1.0, 2.0, -1.0, -1.0])) == pytest.approx(-1)


def test_a_ruined_account_earns_no_reward_any_more():
    rules = simple_rules(execution=table_of([-1.0, 0.0, 1.0]), ruin_fraction=0.1)
    trace = replay(np.zeros(4, int), track_of([100.0, 150.0, 191.0, 100.0, 50.0]), rules)
    assert (trace.base != 0).tolist() == [True, True, False, False]
    assert trace.drawdown.tolist() == [0, 0.5, 0, 0]
