"""A mask of the user's own: a forbidden order is not placed, in the environment, in every collection, in the backtest and live."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.agents import Origin, Policy
from jaxrl_trade.rollout import sequential
from tests.train import tiny

LONG, FLAT, SHORT = 0, 1, 2
TABLE = jt.ExecutionTable(
    exposure=(1.0, 0.0, -1.0),
    fee_rate=(0.0,) * 3,
    fill_ratio=(1.0,) * 3,
    price_offset=(0.0,) * 3,
    is_maker=(False,) * 3,
)


def no_flips(account: Any, execution: Any, close: Any) -> Any:
    """From long to short, or back, only over flat."""
    del close
    return account.position * execution.exposure >= 0


RULES = jt.EnvConfig.net(execution=TABLE, episode_length=64, mask=no_flips)


def test_a_forbidden_order_is_not_placed_and_costs_nothing() -> None:
    market = jt.Market.from_arrays(np.zeros((7, 1)), np.full(7, 10.0))
    config = dataclasses.replace(RULES, episode_length=6)
    state, trades = jt.env.reset(market, config, 0), []
    for action in (LONG, SHORT, FLAT, SHORT, LONG, FLAT):
        state, out = jt.env.step(state, action, 0, market, config)
        trades.append(float(out.trade))
    np.testing.assert_allclose(trades, [1000.0, 0.0, -1000.0, -1000.0, 0.0, 1000.0], rtol=1e-6)


def test_collections_backtest_and_live_loop_obey_it(caplog: pytest.LogCaptureFixture) -> None:
    config = jt.PPOConfig.net(
        env=RULES, n_episodes=4, timesteps_per_episode=16, minibatches=2, actor_hidden=(8,), critic_hidden=(8,)
    )
    market = tiny.market()
    params = jt.init_ppo(jax.random.key(0), config, tiny.FEATURES)
    state = jt.env.reset(market, RULES, jnp.zeros(4, jnp.int32))
    actions = np.random.default_rng(0).integers(0, 3, (16, 4)).astype(np.int32)
    experience, _ = jt.collect_ppo(params, market, state, jax.random.key(1), config, actions=actions)
    before = np.sign(np.asarray(experience.position_before))
    wanted = np.array([1, 0, -1])[actions]
    expected = np.where(before * wanted >= 0, wanted, before)
    assert np.array_equal(np.sign(np.asarray(experience.position)), expected)
    assert (expected != wanted).any()
    sequential._log_once.cache_clear()
    with caplog.at_level(logging.INFO):
        jax.eval_shape(lambda: jt.collect_ppo(params, market, state, jax.random.key(1), config, backend="interpret"))
    assert "episodes are collected by a scan, not by the fused kernel: the mask is the user's own" in caplog.messages


def test_a_backtest_and_a_live_loop_obey_it() -> None:
    bars = jt.sample_bars()
    policy = Policy(params=jnp.zeros(1), apply=_short_by_day, origin=Origin.of_market(jt.Market.from_bars(bars), RULES))
    report = jt.backtest(policy, bars, RULES, 5000, 5060)
    assert set(np.sign(report.trades["exposure"])) == {report.trades["exposure"].iloc[0]}  # it never gets over flat
    held = 10_000.0 / bars.frame["close"].iloc[-1]
    wants = int(np.argmax(policy(policy.act(bars).obs[None])))
    against = -held if wants == LONG else held
    assert policy.act(bars, against).trade == 0.0
    assert policy.act(bars, 0.0).trade != 0.0
    assert report.metrics["total_return"]["always short"] != 0.0  # the baselines may do what the agent may not


def _short_by_day(params: Any, obs: Any) -> Any:
    """Short while the day's cosine is negative, else long."""
    is_short = obs[:, 48] < 0
    return jnp.stack([~is_short, jnp.zeros(len(obs), bool), is_short], axis=1).astype(jnp.float32)


def test_a_mask_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"mask = 3 must be a function \(account, execution, close\) -> bool, or None"):
        jt.EnvConfig(mask=3)  # type: ignore[arg-type]
    market = jt.Market.from_arrays(np.zeros((3, 1)), np.full(3, 10.0))
    wrong = dataclasses.replace(RULES, episode_length=2, mask=lambda account, execution, close: close)
    with pytest.raises(ValueError, match=r"mask gives float32 of shape \(\); it must give a bool for each episode"):
        jt.env.step(jt.env.reset(market, wrong, 0), LONG, 0, market, wrong)
