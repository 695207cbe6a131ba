"""The reward's formulas, worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.env import reward
from tests.env.harness import bars_from, play
from tests.reference import presets
from tests.reference.presets import MARKET, PATIENT, action_index

PLAN, NET = jt.EnvConfig(), jt.EnvConfig.net()
LONG, SHORT = action_index(1.0, MARKET, PATIENT), action_index(-1.0, MARKET, PATIENT)


def base(config, *, before=10_000.0, after=10_000.0, position=1.0, size=1.0, close=100.0, next_close=100.0, costs=0.0):
    arguments = (before, after, position, size, close, next_close, costs)
    return float(reward.base(*(jnp.asarray(x, jnp.float32) for x in arguments), config))


@pytest.mark.parametrize(
    ("position", "direction"), [(1.0, 1), (0.3, 1), (-0.5, -1), (0.0, 0), (0.009, 0), (-0.0099, 0), (0.011, 1)]
)
def test_the_directional_base_is_the_log_return_in_the_position_s_direction_whatever_its_size(position, direction):
    expected = direction * 1000 * math.log(102 / 100)
    assert base(PLAN, position=position, next_close=102.0) == pytest.approx(expected, abs=1e-4)


def test_the_equity_base_is_the_log_return_of_the_equity_costs_included():
    # 50 units gain 1 each, 20 of costs: 10,000 -> 10,030
    actual = base(NET, after=10_030.0, position=50.0, size=100.0, next_close=101.0, costs=20.0)
    assert actual == pytest.approx(1000 * math.log(10_030 / 10_000), rel=1e-5)


def test_the_equity_base_resolves_a_gain_that_float32_equity_does_not():
    # a gain of 0.0002 on 10,000 is below the spacing of float32 there, 0.00098
    before = after = 10_000.0
    actual = base(NET, before=before, after=after, position=0.0128, close=128.0, next_close=128.015625)
    assert actual == pytest.approx(1000 * 0.0128 * 0.015625 / 10_000, rel=1e-5)


@pytest.mark.parametrize(
    ("config", "before", "after", "expected"),
    [  # the floor is 0.1 of 10,000 under net, 0.001 of 10,000 where ruin_fraction is below that
        (NET, 2_000.0, 500.0, 1000 * math.log(1_000 / 2_000)),
        (NET, 800.0, 4_000.0, 1000 * math.log(4_000 / 1_000)),
        (NET, 800.0, 500.0, 0.0),
        (jt.EnvConfig.net(ruin_fraction=0.0), 100.0, -3_000.0, 1000 * math.log(10 / 100)),
        (jt.EnvConfig.net(ruin_fraction=0.0), -5.0, -3_000.0, 0.0),
    ],
)
def test_the_equity_base_stops_at_the_floor(config, before, after, expected):
    actual = base(config, before=before, after=after, next_close=100.0 + after - before)
    assert actual == pytest.approx(expected, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize(("equity", "expected"), [(10_000.0, 0.0), (12_000.0, 0.0), (9_000.0, 0.1), (-1_000.0, 1.1)])
def test_drawdown_is_measured_from_the_initial_capital_and_does_not_vanish_at_ruin(equity, expected):
    assert float(reward.drawdown(jnp.float32(equity), NET)) == pytest.approx(expected, abs=1e-6)


def test_the_total_adds_its_parts_with_their_scales():
    scales = jt.RewardScales(barrier_scale=0.5, diversity_scale=2.0, curiosity_scale=3.0, risk_weight=4.0)
    total = reward.total(10.0, jnp.array([1.0, 0.0, -1.0]), -0.25, 0.1, 0.2, scales)
    rest = 2.0 * -0.25 + 3.0 * 0.1 - 4.0 * 0.2
    np.testing.assert_allclose(total, [15 + rest, 10 + rest, 5 + rest], rtol=1e-6)


def test_plan_s_barrier_factor_halves_the_loss_of_the_bar_that_hits_the_stop():
    """plan multiplies the base by 1 + 0.5 x label: the loss that triggers the stop counts half. Odd, and its formula."""
    length = 6
    spec = {**presets.PLAN, "episode_length": length + 1}
    _, outcome = play(bars_from([100, 99, 97, 97] + [97] * 10), spec, [0, 0], np.tile([LONG, SHORT], (length, 1)))
    assert outcome.barrier_label[:2].tolist() == [[0, 0], [-1, 1]]
    scales = jt.PPOConfig().hypers.reward
    parts = jax.tree.map(lambda part: part[1], (outcome.base, outcome.barrier_label))
    total = reward.total(*parts, 0.0, 0.0, 0.0, scales)
    move = 1000 * math.log(97 / 99)
    np.testing.assert_allclose(total, [0.5 * move, -1.5 * move], rtol=1e-5)
    net = reward.total(*parts, 0.0, 0.0, 0.0, jt.PPOConfig.net().hypers.reward)
    np.testing.assert_allclose(net, [move, -move], rtol=1e-5)  # barrier_scale 0: no such thing
