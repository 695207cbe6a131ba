"""DQN solves the five probe environments, and an oracle's market."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.agents import q_policy
from jaxrl_trade.config import DQNConfig, DQNHypers
from jaxrl_trade.train.dqn import make_train_dqn
from tests.learning import probes

pytestmark = pytest.mark.slow  # PPO solves the same probes in the fast suite
GAMMA = 0.5
NETWORKS = {"shared_hidden": (16,), "head_hidden": 32, "curiosity_hidden": (4,)}


@pytest.mark.parametrize("make", probes.ALL, ids=lambda f: f.__name__)
def test_dqn_solves_the_probe(make):
    probe = make()
    config = DQNConfig(
        env=probe.env,
        reward_fn=probe.reward_fn,
        hypers=DQNHypers(learning_rate=5e-3, gamma=GAMMA, tau=0.05),
        n_episodes=16,
        timesteps_per_episode=8,
        updates=200,
        batch_size=64,
        replay_capacity=2_048,
        learning_starts=256,
        **NETWORKS,
    )
    state, _ = jax.jit(make_train_dqn(config, probe.market))(jax.random.key(0))
    obs = probe.observations()
    q = np.asarray(q_policy(state.params.dueling, config)(jnp.asarray(obs)))
    # Adam at 5e-3 hovers around the minimum by a few steps' worth
    np.testing.assert_allclose(q.max(axis=1), probe.value(obs, GAMMA), atol=0.05)
    if probe.best is not None:
        np.testing.assert_array_equal(q.argmax(axis=1), probe.best(obs))


def test_an_agent_that_sees_tomorrows_return_beats_buy_and_hold():
    train, test = jt.split(probes.oracle(), (0.6, 0.4), embargo=1)
    config = DQNConfig.net(
        env=jt.EnvConfig.net(episode_length=100),
        hypers=DQNHypers(reward=jt.RewardScales.net(), learning_rate=2e-3, gamma=0.9, tau=0.02),
        timesteps_per_episode=32,
        updates=120,
        replay_capacity=2**14,
        learning_starts=2_048,
        **NETWORKS,
    )
    state, _ = jax.jit(make_train_dqn(config, train))(jax.random.key(1))
    policy = q_policy(state.params.dueling, config)

    growth, hold = probes.growth(policy, test)
    # 800 bars of 1 % moves known a day ahead, at 0.05 % and half a basis point a trade: many times the money
    assert growth > 5 * hold
