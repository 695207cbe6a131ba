"""The account's rules, one by one, on prices short enough to work out by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from tests.env.harness import bars_from, play, random_bars, to_config, to_market
from tests.reference import presets
from tests.reference.presets import IOC, LIMIT, MARKET, NORMAL, PATIENT, action_index

LENGTH, BARS = 8, 40
LONG, HALF, FLAT, SHORT = (action_index(exposure, MARKET, PATIENT) for exposure in (1.0, 0.5, 0.0, -1.0))
LIMIT_LONG, LIMIT_SHORT = (action_index(exposure, LIMIT, PATIENT) for exposure in (1.0, -1.0))
FEE = 0.0015  # of plan's market orders

step = jax.jit(jt.env.step, static_argnames="config")

# 10 units of something that costs about 100, from a capital of 10,000; ruin at half of it
SMALL = {
    **presets.PLAN,
    "max_position": 10.0,
    "initial_capital": 10_000.0,
    "reserve_fraction": None,
    "ruin_fraction": 0.5,
    "episode_length": LENGTH,
}
BIG = {**SMALL, "max_position": 150.0}
RESERVE = {**BIG, "reserve_fraction": 0.2, "ruin_fraction": 0.0}
# a spread of 2^-10 keeps every price of a 128-unit close exact in binary
MAKER = {**SMALL, "execution": presets.NET_TABLE, "fill": "next_open", "spread": 2.0**-10}


def padded(values, length):
    return np.append(values, np.repeat(values[-1:], length - len(values)))


def one_lane(close, spec, actions, **prices):
    """States and outcomes of one lane from bar 0; the last action and the last price are repeated to a fixed length."""
    bars = bars_from(padded(close, BARS), **{name: padded(price, BARS) for name, price in prices.items()})
    states, outcome = play(bars, spec, [0], padded(actions, LENGTH)[:, None])
    return jax.tree.map(lambda leaf: leaf[:, 0], (states.account, outcome))


def test_a_round_trip_earns_the_move_and_pays_both_fees():
    account, outcome = one_lane([100, 110, 105], SMALL, [LONG, FLAT])
    fees = np.array([10 * 100 * FEE, 10 * 110 * FEE])
    np.testing.assert_allclose(outcome.cost[:2], fees, rtol=1e-6)
    np.testing.assert_allclose(outcome.trade[:2], [10, -10])
    assert account.cash[1] == pytest.approx(10_000 - 1_000 - fees[0], rel=1e-7)
    assert outcome.equity_after[0] == pytest.approx(10_000 + 100 - fees[0], rel=1e-7)
    # flat at 110: the fall to 105 is nobody's loss
    np.testing.assert_allclose(outcome.equity_after[1:], 10_000 + 100 - fees.sum(), rtol=1e-7)
    assert account.cumulative_costs[LENGTH - 1] == pytest.approx(fees.sum(), rel=1e-6)


def test_holding_changes_equity_through_the_price_alone_and_leaves_cash():
    account, outcome = one_lane([100, 104, 99, 101], SMALL, [LONG])
    assert len(set(account.cash[1:LENGTH].tolist())) == 1
    np.testing.assert_allclose(np.diff(outcome.equity_after[:3]), [10 * -5, 10 * 2], atol=2e-3)  # two ulps of 10,000


def test_a_repeated_target_costs_nothing_once_it_is_reached():
    bars = bars_from(np.linspace(100, 103, BARS), low=np.full(BARS, 90.0), high=np.full(BARS, 120.0))
    spec = {**presets.NET, "episode_length": 39}
    actions = np.broadcast_to(np.arange(45), (39, 45))
    states, outcome = play(bars, spec, np.zeros(45, int), actions)
    position, size = states.account.position[:-1], states.account.max_position[:-1]
    target = np.array(presets.NET_TABLE["exposure"]) * size
    reached = np.abs(target - position) < 0.999e-6 * size
    assert (outcome.trade[reached] == 0).all()
    assert (outcome.cost[reached] == 0).all()
    assert (outcome.slippage[reached] == 0).all()
    assert reached[-1].all()  # half of the rest at a time gets below 1e-6 of the largest position after 20 bars
    full = np.array(presets.NET_TABLE["fill_ratio"]) == 1.0
    assert reached[1:, full].all()
    assert (position[1:, full] == target[1:, full]).all()  # a full fill lands on the target exactly


def test_entry_price_follows_adding_reducing_flipping_and_closing():
    account, _ = one_lane([100, 110, 120, 90, 95, 80], SMALL, [HALF, LONG, HALF, SHORT, FLAT])
    expected = [0, 100, (5 * 100 + 5 * 110) / 10, 105, 90, 0]
    np.testing.assert_allclose(account.entry_price[: len(expected)], expected, rtol=1e-6)
    np.testing.assert_allclose(account.position[: len(expected)], [0, 5, 10, 5, -10, 0])


def test_a_flip_pays_for_both_halves_and_ends_on_the_other_side():
    account, outcome = one_lane([100, 110, 100], SMALL, [LONG, SHORT])
    assert outcome.trade[1] == -20
    assert outcome.cost[1] == pytest.approx(20 * 110 * FEE, rel=1e-6)
    assert account.position[2] == -10
    assert account.entry_price[2] == pytest.approx(110)
    paid = (10 * 100 + 20 * 110) * FEE
    assert outcome.equity_after[1] == pytest.approx(10_000 + 100 + 100 - paid, rel=1e-7)


def test_ruin_ends_the_episode_and_starts_a_fresh_account_elsewhere():
    account, outcome = one_lane([100, 49], BIG, [LONG])
    left = 10_000 - 150 * 51 - 150 * 100 * FEE
    assert outcome.equity_after[0] == pytest.approx(left, rel=1e-6)
    assert bool(outcome.terminated[0])
    assert not outcome.truncated[0]
    np.testing.assert_allclose(outcome.next_obs[0, -3:], [left / 10_000, 1.0, 1e-4], rtol=1e-5)  # before the reset
    fresh = dataclasses.asdict(jt.env.reset(to_market(bars_from(np.full(BARS, 100.0))), to_config(BIG), np.int32(0)))
    for name, expected in fresh["account"]._asdict().items():
        after = getattr(account, name)
        np.testing.assert_array_equal(jax.tree.map(lambda leaf: leaf[1], after), expected, err_msg=name)


def test_a_short_is_ruined_by_a_rise():
    _, outcome = one_lane([100, 120, 134], BIG, [SHORT])
    assert outcome.terminated[:2].tolist() == [False, True]
    assert outcome.equity_after[1] == pytest.approx(10_000 - 150 * 34 - 150 * 100 * FEE, rel=1e-6)


def test_an_episode_is_truncated_after_episode_length_steps_and_ruin_wins_over_it():
    _, quiet = one_lane([100], BIG, [LONG])
    assert quiet.truncated.tolist() == [False] * (LENGTH - 1) + [True]
    assert not quiet.terminated.any()
    _, late_crash = one_lane([100] * LENGTH + [40], BIG, [LONG])
    assert late_crash.terminated.tolist() == [False] * (LENGTH - 1) + [True]
    assert not late_crash.truncated.any()


def test_the_reserve_cuts_a_buy_to_what_leaves_a_fifth_of_the_capital_in_cash():
    account, outcome = one_lane([100, 101], RESERVE, [LONG])
    assert outcome.trade[0] == pytest.approx((10_000 - 2_000) / (100 * (1 + FEE)), rel=1e-6)
    assert account.cash[1] == pytest.approx(2_000, abs=2e-3)  # two ulps of 10,000
    assert np.abs(outcome.trade[1:]).max() < 1e-4  # nothing left to buy with
    assert account.cash.min() >= 2_000 - 2e-3


def test_the_reserve_never_cuts_a_sale_or_the_covering_of_a_short():
    account, outcome = one_lane([100, 160, 160, 160], RESERVE, [SHORT, LONG, FLAT])
    assert outcome.trade[0] == -150
    # 25,000 less the fee in cash, 24,000 to cover: below the reserve afterwards, so the flip stops at flat
    assert outcome.trade[1] == 150
    assert account.position[2] == 0
    assert account.cash[2] == pytest.approx(10_000 - 150 * 60 - 150 * 260 * FEE, abs=1e-2)
    assert outcome.trade[2] == 0


def test_the_reserve_leaves_a_buyer_below_it_without_a_trade():
    account, outcome = one_lane([100, 160, 160], RESERVE, [SHORT, FLAT, LONG])
    assert 0 < account.cash[2] < 2_000
    assert outcome.trade[2] == 0
    assert outcome.cost[2] == 0


@pytest.mark.parametrize(("low", "fills"), [(127.875, False), (127.75, True)])
def test_a_maker_buys_only_when_the_next_bar_trades_below_its_price(low, fills):
    # limit: 128 (1 - 2^-10) = 127.875; to touch it is not to trade through it
    account, outcome = one_lane([128, 128], MAKER, [LIMIT_LONG], low=[128, low, 128], high=[130], open=[128])
    if fills:
        assert outcome.trade[0] == 10
        assert account.entry_price[1] == 127.875
        assert outcome.cost[0] == pytest.approx(10 * (-0.125 + 127.875 * 0.0001), rel=1e-6)  # a price improvement
        assert outcome.slippage[0] == 0
    else:
        assert outcome.trade[0] == outcome.cost[0] == outcome.slippage[0] == 0
        assert account.cash[1] == 10_000


@pytest.mark.parametrize(("high", "fills"), [(128.125, False), (128.25, True)])
def test_a_maker_sells_only_when_the_next_bar_trades_above_its_price(high, fills):
    account, outcome = one_lane([128, 128], MAKER, [LIMIT_SHORT], high=[128, high, 128], low=[126], open=[128])
    assert outcome.trade[0] == (-10 if fills else 0)
    assert account.cash[1] == pytest.approx(10_000 + fills * 10 * 128.125 * (1 - 0.0001), rel=1e-6)


def test_a_taker_pays_the_next_open_and_half_the_spread():
    prices = {"open": [128, 132, 140], "high": [150], "low": [120]}
    account, outcome = one_lane([128, 136, 140], MAKER, [LONG], **prices)
    price = 132 * (1 + 2.0**-11)
    assert account.entry_price[1] == pytest.approx(price, rel=1e-6)
    assert outcome.cost[0] == pytest.approx(10 * (price - 132) + 10 * price * 0.0005, rel=1e-5)
    assert outcome.slippage[0] == 10 * (132 - 128)
    assert outcome.equity_after[0] == pytest.approx(10_000 + 10 * (136 - price * 1.0005), rel=1e-6)


def test_an_immediate_or_cancel_order_fills_its_share_of_what_is_missing():
    patient, normal = (action_index(1.0, IOC, urgency) for urgency in (PATIENT, NORMAL))
    account, _ = one_lane([128, 128], MAKER, [patient, patient, normal])
    np.testing.assert_allclose(account.position[:4], [0, 5, 7.5, 7.5 + 0.75 * 2.5])


def test_leverage_sizes_each_episode_by_its_first_close():
    bars = random_bars(seed=8, length=80, volatility=0.02)
    spec = {**presets.NET, "leverage": 2.0, "episode_length": 5, "ruin_fraction": 0.0, "initial_capital": 9_000.0}
    states, _ = play(bars, spec, [0, 30], np.full((12, 2), LONG))
    size = 2.0 * 9_000 / bars["close"][[0, 30]]
    np.testing.assert_allclose(states.account.max_position, np.broadcast_to(size, (13, 2)), rtol=1e-6)
    np.testing.assert_allclose(states.account.position[1], size, rtol=1e-6)


def with_costs(spec, fee_factor=1.0, more_offset=0.0):
    """The same table with higher fees, or a worse price for takers; makers keep theirs, which decides whether they fill."""
    table = spec["execution"]
    worse = [x if maker else x + more_offset for x, maker in zip(table["price_offset"], table["is_maker"], strict=True)]
    fees = [fee_factor * x for x in table["fee_rate"]]
    return {**spec, "execution": {**table, "fee_rate": fees, "price_offset": worse}}


@pytest.mark.parametrize("change", [{"fee_factor": 1.5}, {"more_offset": 2.0}])
def test_raising_a_cost_never_raises_equity(change):
    bars = random_bars(seed=9, length=70, volatility=0.01)
    spec = {**presets.NET, "episode_length": 41, "ruin_fraction": 0.0}
    actions = np.random.default_rng(9).integers(0, 45, (40, 16))
    starts = np.arange(16)
    _, cheap = play(bars, spec, starts, actions)
    _, dear = play(bars, with_costs(spec, **change), starts, actions)
    np.testing.assert_array_equal(dear.position, cheap.position)
    rounding = 1e-6 * spec["initial_capital"]  # ten roundings of a cash of up to 20,000
    assert (dear.equity_after <= cheap.equity_after + rounding).all()
    assert (dear.equity_after[-1] < cheap.equity_after[-1] - 10 * rounding).all()


def test_a_long_and_a_short_in_a_mirrored_market_earn_the_same():
    rng = np.random.default_rng(10)
    close = 128 + np.cumsum(rng.integers(-64, 65, 70)) / 64  # multiples of 1/64: the mirror image is exact
    open_, wick = close + rng.integers(-16, 17, 70) / 64, rng.integers(0, 32, (2, 70)) / 64
    bars = bars_from(close, open=open_, low=np.minimum(open_, close) - wick[0], high=np.maximum(open_, close) + wick[1])
    mirrored = {
        "features": bars["features"],
        **{name: 256 - bars[name] for name in ("open", "close")},
        "low": 256 - bars["high"],
        "high": 256 - bars["low"],
    }
    free = {**presets.NET_TABLE, "fee_rate": [0.0] * 45, "price_offset": [0.0] * 45}
    spec = {**MAKER, "execution": free, "episode_length": 41}
    actions = rng.integers(0, 45, (40, 8))
    opposite = np.array([(4 - a // 9) * 9 + a % 9 for a in range(45)])[actions]
    _, outcome = play(bars, spec, np.arange(8), actions)
    _, mirror = play(mirrored, spec, np.arange(8), opposite)
    np.testing.assert_array_equal(mirror.position, -outcome.position)
    np.testing.assert_array_equal(mirror.trade, -outcome.trade)
    np.testing.assert_allclose(mirror.equity_after, outcome.equity_after, rtol=1e-6)
    np.testing.assert_allclose(mirror.slippage, outcome.slippage, atol=1e-5)
    assert (outcome.trade != 0).sum() > 100


def test_observation_is_the_features_and_three_relative_account_values():
    close = np.linspace(100, 120, 60)
    features = np.random.default_rng(0).normal(size=(60, 51))
    market, config = jt.Market.from_arrays(features, close), to_config(SMALL)
    state = jt.env.reset(market, config, np.array([3, 7]))
    observed = jt.env.observe(state, market, config)
    assert observed.shape == (2, 54)
    np.testing.assert_allclose(observed[:, :51], features[[3, 7]], rtol=1e-6)
    np.testing.assert_allclose(observed[:, 51:], [[1, 0, 1e-4]] * 2, rtol=1e-6)
    state, outcome = step(state, np.array([LONG, HALF]), np.array([0, 0]), market, config)
    gain = np.array([10, 5]) * (close[[4, 8]] - close[[3, 7]] * (1 + FEE))
    expected = np.stack([1 + gain / 10_000, [1, 0.5], [1e-4] * 2], axis=1)
    np.testing.assert_allclose(jt.env.observe(state, market, config)[:, 51:], expected, rtol=1e-5)
    # 1 ulp: on a GPU one of the two programs fuses cash + position x close
    np.testing.assert_allclose(outcome.next_obs, jt.env.observe(state, market, config), rtol=2.5e-7)


def test_next_observation_is_the_next_steps_observation_unless_the_episode_ended():
    market, config = to_market(random_bars(seed=11, length=40)), to_config({**SMALL, "episode_length": 3})
    state = jt.env.reset(market, config, np.array([0, 1]))
    for index in range(4):
        state, outcome = step(state, np.array([LONG, SHORT]), np.array([20, 21]), market, config)
        observed = jt.env.observe(state, market, config)
        if index == 2:
            assert outcome.truncated.all()
            np.testing.assert_allclose(observed[:, -3:-1], [[1, 0]] * 2)
            np.testing.assert_array_equal(observed[:, :-3], np.asarray(market.features)[[20, 21]])
        else:
            np.testing.assert_allclose(outcome.next_obs, observed, rtol=2.5e-7)  # 1 ulp, as above


def test_traced_actions_and_bars_are_clipped_never_wrapped():
    market, config = to_market(random_bars(seed=12, length=30)), to_config({**SMALL, "episode_length": 2})

    @jax.jit
    def play_three(start, action, restart):
        """The wild action, one that shares the window with it, and again the wild one after a restart."""
        state, outcomes = jt.env.reset(market, config, start), []
        for each in (action, jnp.full_like(action, 7), action):
            state, outcome = jt.env.step(state, each, restart, market, config)
            outcomes.append(outcome)
        return state, outcomes

    def run(start, action, restart):
        return jax.tree.leaves(play_three(np.array(start), np.array(action), np.array(restart)))

    wild = run([-1, -7, 5, 99], [-1, 45, 999, -45], [-1, -30, 30, 1_000])
    clipped = run([0, 0, 5, 29], [0, 44, 44, 0], [0, 0, 29, 29])
    for one, other in zip(wild, clipped, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 31], r"starts\[1\] = 31 leaves 8 bars of its instrument, but episode_length is 9.*valid_starts\(9\)"),
        ([-1, 0], r"starts\[0\] = -1 is outside"),
        ([0, 40], r"starts\[1\] = 40 is outside"),
    ],
)
def test_a_start_without_room_for_an_episode_is_refused_by_name(starts, message):
    market, config = to_market(random_bars(seed=13, length=40)), to_config({**SMALL, "episode_length": 9})
    with pytest.raises(ValueError, match=message):
        jt.env.reset(market, config, np.array(starts))


def test_a_concrete_action_or_restart_bar_that_is_impossible_is_refused():
    market, config = to_market(random_bars(seed=13, length=40)), to_config({**SMALL, "episode_length": 9})
    state = jt.env.reset(market, config, np.array([0, 1]))
    with pytest.raises(ValueError, match=r"action\[1\] = 45 is not in \[0, 45\)"):
        jt.env.step(state, np.array([0, 45]), np.array([0, 0]), market, config)
    with pytest.raises(ValueError, match=r"action\[0\] = -1"):
        jt.env.step(state, np.array([-1, 0]), np.array([0, 0]), market, config)
    with pytest.raises(ValueError, match=r"35.*episode_length is 9"):
        jt.env.step(state, np.array([0, 0]), np.array([0, 35]), market, config)


@pytest.mark.parametrize(
    ("action", "restart", "message"),
    [
        ([0.5, 1.2], [0, 0], r"action holds float64; actions are whole numbers in \[0, 45\)"),
        ([True, False], [0, 0], r"action holds bool"),
        (None, [0, 0], r"action holds object"),
        ([0], [0, 0], r"action has shape \(1,\), the episodes \(2,\)"),
        ([[0, 1]], [0, 0], r"action has shape \(1, 2\), the episodes \(2,\)"),
        ([0, 0], [0, 0, 0], r"restart_bars has shape \(3,\), the episodes \(2,\)"),
    ],
)
def test_actions_of_another_type_or_number_are_refused(action, restart, message):
    close = np.linspace(100.0, 110.0, 40)
    market, config = jt.Market.from_arrays(np.zeros((40, 1)), close), jt.EnvConfig(episode_length=5)
    state = jt.env.reset(market, config, np.array([0, 1]))
    with pytest.raises(ValueError, match=message):
        jt.env.step(state, action, restart, market, config)
