"""PPO solves the five probe environments, and an oracle's market."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade import networks
from jaxrl_trade.agents import actor_policy
from tests.learning import probes

GAMMA = 0.5
HYPERS = jt.PPOHypers(learning_rate=5e-3, max_grad_norm=10.0, gamma=GAMMA, entropy_coef=0.0)


@pytest.mark.parametrize("make", probes.ALL, ids=lambda f: f.__name__)
def test_ppo_solves_the_probe(make):
    probe = make()
    config = jt.PPOConfig(
        env=probe.env,
        reward_fn=probe.reward_fn,
        hypers=HYPERS,
        n_episodes=32,
        timesteps_per_episode=8,
        updates=150,
        minibatches=2,
        actor_hidden=(16,),
        critic_hidden=(16,),
        curiosity_hidden=(4,),
    )
    state, _ = jax.jit(jt.make_train_ppo(config, probe.market))(jax.random.key(0))
    obs = probe.observations()
    value = networks.critic(config).evaluate(state.params.critic, jnp.asarray(obs))[:, 0]
    # Adam at 5e-3 hovers around the minimum by a few steps' worth
    np.testing.assert_allclose(value, probe.value(obs, GAMMA), atol=0.05)
    if probe.best is not None:
        chance = jax.nn.softmax(actor_policy(state.params.actor, config)(jnp.asarray(obs)))
        assert np.asarray(chance)[np.arange(len(obs)), probe.best(obs)].min() > 0.95


def test_an_agent_that_sees_tomorrows_return_beats_buy_and_hold():
    train, test = jt.split(probes.oracle(), (0.6, 0.4), embargo=1)
    config = jt.PPOConfig.net(
        env=jt.EnvConfig.net(episode_length=100),
        n_episodes=32,
        timesteps_per_episode=100,
        updates=40,
        actor_hidden=(32,),
        critic_hidden=(32,),
        curiosity_hidden=(4,),
        hypers=jt.PPOHypers(reward=jt.RewardScales.net(), learning_rate=3e-3, gamma=0.9),
    )
    state, _ = jax.jit(jt.make_train_ppo(config, train))(jax.random.key(1))
    policy = actor_policy(state.params.actor, config)

    growth, hold = probes.growth(policy, test)
    # 800 bars of 1 % moves known a day ahead, at 0.05 % and half a basis point a trade: many times the money
    assert growth > 5 * hold
