import dataclasses

import numpy as np
import pytest

from jaxrl_trade.backtesting.baselines import hold, random_timing, shifted_equity
from jaxrl_trade.backtesting.ledger import book
from jaxrl_trade.backtesting.metrics import days_of
from jaxrl_trade.backtesting.orders import dearest_taker
from jaxrl_trade.config import EnvConfig, ExecutionTable
from tests.backtesting.test_ledger import fills_of
from tests.backtesting.tracks import random_track, simple_rules, table_of, track_of


def agent_of(actions, track, config):
    """Books of an agent that wants exposure x 10 units after each step and gets them, at the fee of the table's first action."""
    wanted = 10.0 * np.asarray(config.execution.exposure)[actions]
    units = np.diff(wanted, prepend=0.0)
    steps = np.flatnonzero(units)
    price = (track.close[:-1] if config.fill == "close" else track.open[1:])[steps]
    fee = np.abs(units[steps]) * price * config.execution.fee_rate[0]
    fills = fills_of(units[steps], price, fee, mark=steps + 1)
    return book(dataclasses.replace(fills, cost=fee), track.close, config.initial_capital)


def test_buy_and_hold_buys_all_on_the_first_bar_and_pays_the_fee():
    books = hold(1.0, track_of([100.0, 110.0, 90.0]), simple_rules())  # 10 units at 100, 1 % of 1,000
    np.testing.assert_allclose(books.equity, [1000, 1000 + 100 - 10, 1000 - 100 - 10])
    assert len(books.fills) == 1


def test_always_short_sells_once_and_always_flat_does_nothing():
    track, config = track_of([100.0, 110.0, 90.0]), simple_rules()
    np.testing.assert_allclose(hold(-1.0, track, config).equity, [1000, 1000 - 100 - 10, 1000 + 100 - 10])
    np.testing.assert_array_equal(hold(0.0, track, config).equity, [1000, 1000, 1000])


def test_buy_and_hold_pays_the_gap_and_half_the_spread_with_fills_at_the_next_open():
    config = EnvConfig.net()
    track = track_of([100.0, 104.0, 108.0], open=[100.0, 102.0, 104.0])
    units = 10_000 / 100
    price = 102 * (1 + 0.5 * 1e-4)
    cash = 10_000 - units * price * (1 + 0.0005)
    np.testing.assert_allclose(
        hold(1.0, track, config).equity, [10_000, cash + units * 104, cash + units * 108], rtol=1e-12
    )


def test_buy_and_hold_keeps_the_reserve():
    # a fifth of 1,000 stays in cash: 800 / (100 x 1.01) units instead of 10
    books = hold(1.0, track_of([100.0, 110.0]), simple_rules(reserve_fraction=0.2))
    assert books.units[-1] == pytest.approx(800 / 101)
    assert books.cash[-1] == pytest.approx(200)


def test_a_short_that_is_held_to_ruin_is_closed_there():
    config = simple_rules(ruin_fraction=0.1)
    books = hold(-1.0, track_of([100.0, 150.0, 191.0, 50.0]), config)  # 1,000 + 990 - 1,910 = 80 after the fee
    left = 1990.0 - 1910.0 - 19.1
    np.testing.assert_allclose(books.equity, [1000, 490, left, left])


def test_the_dearest_taker_is_no_maker_and_pays_the_highest_fee():
    assert dearest_taker(EnvConfig()) == (0.0015, 0.0)
    assert dearest_taker(EnvConfig.net()) == (0.0005, 0.5)
    makers = ExecutionTable(exposure=[1], fee_rate=[0.1], fill_ratio=[1], price_offset=[2], is_maker=[True])
    assert dearest_taker(EnvConfig(execution=makers)) == (0.1, 2.0)


@pytest.mark.parametrize("fill", ["close", "next_open"])
def test_an_agent_moved_by_nothing_is_the_agent(fill):
    # every order pays the same rate, so the mean rate is each order's own, and the moved copy is exact
    config = simple_rules(execution=table_of([-1.0, -0.5, 0.0, 0.5, 1.0], fee_rate=0.001), fill=fill)
    track = random_track(0, 200)
    agent = agent_of(np.random.default_rng(1).integers(0, 5, 199), track, config)
    moved = shifted_equity(agent, track, config, np.array([0, 199]), np.arange(200))
    # under next_open the fee is of the next open and the mean rate of the close: they differ by the gap's share of the fee
    np.testing.assert_allclose(moved, [agent.equity] * 2, rtol=1e-12 if fill == "close" else 1e-4)


def test_moving_an_agent_moves_its_exposures_around_the_range():
    # 10 units for the first of four steps only: exposure 1, then flat; 1 % a trade
    track, config = track_of([100.0, 110.0, 121.0, 121.0, 242.0]), simple_rules()
    agent = agent_of([2, 1, 1, 1], track, config)
    cost = np.array([1000 * 0.01, 1100 * 0.01])
    sold = 1100 / 1090  # of the equity after the first step
    rate = cost.sum() / 2100
    moved = shifted_equity(agent, track, config, np.array([3]), np.arange(5))[0]
    first = 1 - sold * rate  # the sale comes around to the first step
    # the purchase falls on the last step, which doubles the price
    np.testing.assert_allclose(moved, [1000, 1000 * first, 1000 * first, 1000 * first, 1000 * first * (1 + 1 - rate)])


def test_the_moved_copies_trade_as_much_as_the_agent():
    track = random_track(2, 300)
    config = simple_rules(execution=table_of([-1.0, 0.0, 1.0], fee_rate=0.002))
    agent = agent_of(np.random.default_rng(3).integers(0, 3, 299), track, config)
    flat = track._replace(close=np.full(300, 100.0), open=np.full(300, 100.0))  # where only costs move the equity
    moved = shifted_equity(agent, flat, config, np.arange(1, 299), np.array([0, 299]))[:, -1]
    np.testing.assert_allclose(moved, moved[0], rtol=1e-12)
    assert moved[0] < 900


def test_an_oracle_is_above_its_random_timing_and_its_opposite_below():
    track, config = random_track(4, 400), simple_rules(execution=table_of([-1.0, 0.0, 1.0], fee_rate=1e-4))
    rises = np.diff(track.close) > 0
    percentiles = []
    for actions in (np.where(rises, 2, 0), np.where(rises, 0, 2)):
        agent = agent_of(actions, track, config)
        percentiles.append(random_timing(agent, track, days_of(track.minutes), config, 100).percentile)
    assert percentiles == [100.0, 0.0]


def test_an_agent_that_never_trades_is_in_the_middle_of_its_copies():
    track, config = random_track(5, 50), simple_rules()
    timing = random_timing(agent_of([1] * 49, track, config), track, days_of(track.minutes), config)
    assert timing.percentile == 50.0
    assert timing.figures["total_return"] == 0.0


def test_shifts_are_distinct_follow_the_seed_and_never_stay_in_place():
    track, config = random_track(6, 400), simple_rules()
    agent, days = agent_of([2] * 399, track, config), days_of(track.minutes)
    one, same, other = (random_timing(agent, track, days, config, 150, seed).shifts for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert sorted(set(one.tolist())) == sorted(one.tolist())
    assert min(one) >= 1
    assert max(one) <= 398
    assert set(one) != set(other)


def test_medians_and_the_band_are_of_the_copies():
    track, config = random_track(7, 200), simple_rules()
    agent, days = agent_of(np.random.default_rng(8).integers(0, 3, 199), track, config), days_of(track.minutes)
    timing = random_timing(agent, track, days, config, 100)
    equity = shifted_equity(agent, track, config, timing.shifts, np.arange(200))
    assert timing.figures["total_return"] == pytest.approx(np.median(equity[:, -1]) / 1000 - 1)
    np.testing.assert_allclose(timing.band[:, -1], np.quantile(equity[:, -1], [0.05, 0.5, 0.95]))
    np.testing.assert_allclose(timing.total_returns, equity[:, -1] / 1000 - 1)
    assert timing.percentile == 100 * (equity[:, -1] < agent.equity[-1]).mean()


def test_fewer_than_100_shifts_are_refused():
    track, config = random_track(6, 50), simple_rules()
    with pytest.raises(ValueError, match="n_shifts = 99; random timing needs at least 100"):
        random_timing(hold(1.0, track, config), track, days_of(track.minutes), config, 99)


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_a_seed_that_is_none_is_refused(seed):
    track, config = random_track(6, 50), simple_rules()
    with pytest.raises(ValueError, match=rf"seed = {seed!r} must be a whole number of at least 0"):
        random_timing(hold(1.0, track, config), track, days_of(track.minutes), config, seed=seed)


def test_two_bars_leave_nothing_to_move():
    track, config = track_of([100.0, 101.0]), simple_rules()
    timing = random_timing(hold(1.0, track, config), track, days_of(track.minutes), config)
    assert np.isnan(timing.percentile)
    assert len(timing.total_returns) == 0
