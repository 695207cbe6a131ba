"""Sizing by the equity: a full position is a multiple of what the account is worth now, in every place that looks at it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade import networks
from jaxrl_trade.agents import Origin, Policy
from jaxrl_trade.config import DQNConfig
from tests.train import tiny

TABLE = jt.ExecutionTable(
    exposure=(0.0, 0.5, 1.0, -1.0),
    fee_rate=(0.0,) * 4,
    fill_ratio=(1.0,) * 4,
    price_offset=(0.0,) * 4,
    is_maker=(False,) * 4,
)
FREE = jt.EnvConfig(
    execution=TABLE, sizing="equity", reserve_fraction=None, initial_capital=1000.0, spread=0.0, episode_length=64
)
EPISODES, LENGTH = tiny.EPISODES, tiny.LENGTH
NETWORKS = {"curiosity_hidden": (8,), "n_episodes": EPISODES, "timesteps_per_episode": LENGTH}


def test_half_of_the_equity_stays_half_as_the_price_moves() -> None:
    close = np.array([10.0, 20.0, 20.0, 5.0, 5.0])
    market = jt.Market.from_arrays(np.zeros((5, 1)), close)
    config = dataclasses.replace(FREE, episode_length=4)
    state = jt.env.reset(market, config, 0)
    trades, equities = [], []
    for _ in range(3):
        state, out = jt.env.step(state, 1, 0, market, config)
        trades.append(float(out.trade))
        equities.append(float(out.equity_after))
    # 1000 buys 50 at 10; at 20 the equity is 1500, half of it 37.5 units; at 5 the equity is 937.5, half of it 93.75
    np.testing.assert_allclose(trades, [50.0, -12.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(equities, [1500.0, 1500.0, 937.5], rtol=1e-6)
    assert float(state.account.max_position) == pytest.approx(937.5 / 5.0)
    obs = jt.env.observe(state, market, config)
    np.testing.assert_allclose(obs[1:], [0.9375, 37.5 * 5 / 937.5, 0.0], rtol=1e-6)
    state, out = jt.env.step(state, 1, 0, market, config)
    assert float(out.trade) == pytest.approx(93.75 - 37.5)


@pytest.fixture(scope="module")
def played() -> dict[str, Any]:
    """Forced actions through `env.step`, one bar after another."""
    market = tiny.market()
    actions = np.random.default_rng(0).integers(0, 4, (LENGTH, EPISODES)).astype(np.int32)
    state = jt.env.reset(market, FREE, jnp.zeros(EPISODES, jnp.int32))
    rows: dict[str, list[Any]] = {"obs": [], "next_obs": [], "max_position": [], "position": []}
    step = jax.jit(jt.env.step, static_argnames="config")
    for row in actions:
        rows["obs"].append(jt.env.observe(state, market, FREE))
        rows["max_position"].append(state.account.max_position)
        state, out = step(state, row, jnp.zeros(EPISODES, jnp.int32), market, config=FREE)
        rows["next_obs"].append(out.next_obs)
        rows["position"].append(out.position)
    return {"market": market, "actions": actions, **{name: np.stack(values) for name, values in rows.items()}}


@pytest.mark.parametrize("backend", ["xla", "interpret"])
def test_a_collection_of_ppo_sees_what_the_environment_shows(played: dict[str, Any], backend: Any) -> None:
    config = jt.PPOConfig(env=FREE, actor_hidden=(8,), critic_hidden=(8,), minibatches=2, **NETWORKS)
    params = jt.init_ppo(jax.random.key(0), config, tiny.FEATURES)
    state = jt.env.reset(played["market"], FREE, jnp.zeros(EPISODES, jnp.int32))
    experience, _ = jt.collect_ppo(
        params, played["market"], state, jax.random.key(1), config, actions=played["actions"], backend=backend
    )
    np.testing.assert_allclose(experience.observations(played["market"]), played["obs"], rtol=1e-5, atol=1e-6)
    for name in ("max_position", "position"):
        np.testing.assert_allclose(getattr(experience, name), played[name], rtol=1e-5, atol=1e-5)
    values = networks.critic(config).evaluate(params.critic, jnp.asarray(played["next_obs"]))[..., 0]
    np.testing.assert_allclose(experience.next_values, values, rtol=1e-4, atol=1e-4)


def test_dqn_remembers_what_the_environment_shows(played: dict[str, Any]) -> None:
    config = DQNConfig(env=FREE, shared_hidden=(8,), head_hidden=4, n_step=1, train_every=1, batch_size=8, **NETWORKS)
    params = jt.init_dqn(jax.random.key(0), config, tiny.FEATURES)
    state = jt.env.reset(played["market"], FREE, jnp.zeros(EPISODES, jnp.int32))
    experience, _ = jt.collect_dqn(
        params, played["market"], state, jax.random.key(1), config, actions=played["actions"]
    )
    for name, wanted in (("seen", "obs"), ("then", "next_obs")):
        found = getattr(experience.memory, name).observe(played["market"], FREE)
        np.testing.assert_allclose(found, played[wanted], rtol=1e-5, atol=1e-6)


def test_a_backtest_and_a_live_loop_size_alike() -> None:
    bars = jt.sample_bars()
    config = dataclasses.replace(FREE, episode_length=40)  # renewed in between, which changes nothing here
    half = Policy(
        params=jnp.zeros(1),
        apply=_half,
        origin=Origin.of_market(jt.Market.from_bars(bars), config),
    )
    curves = jt.backtest(half, bars, config, 5000, 5100).curves
    after = curves["units"].iloc[1:].to_numpy() * curves["close"].iloc[:-1].to_numpy()
    np.testing.assert_allclose(after / curves["equity"].iloc[:-1].to_numpy(), 0.5, rtol=1e-9)
    row = curves.iloc[60]
    decision = half.act(bars.head(5061), row.units, row.equity, capital=1000.0)
    assert decision.target == pytest.approx(curves["units"].iloc[61])


def _half(params: Any, obs: Any) -> Any:
    return jnp.zeros((len(obs), 4)).at[:, 1].set(1.0)
