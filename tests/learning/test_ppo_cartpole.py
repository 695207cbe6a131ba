"""PPO's own loss solves CartPole, so that a failure on markets is the market's."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

import jaxrl_trade as jt
from jaxrl_trade import networks
from jaxrl_trade.agents import ppo
from pallas_kernels import sampling
from tests.learning import cartpole

N, L, UPDATES = 32, 128, 100
CONFIG = jt.PPOConfig(
    env=jt.EnvConfig(
        execution=jt.ExecutionTable(
            exposure=(-1, 1), fee_rate=(0, 0), fill_ratio=(1, 1), price_offset=(0, 0), is_maker=(False, False)
        )
    ),
    hypers=jt.PPOHypers(learning_rate=2e-3, entropy_coef=0.0),
    actor_hidden=(32, 32),
    critic_hidden=(32, 32),
    n_episodes=N,
    timesteps_per_episode=L,
    updates=UPDATES,
)


def test_ppo_solves_cartpole():
    length = jax.jit(_train)(jax.random.key(0))
    assert length[-10:].mean() > 400  # steps an episode lasts, of at most 500; a random policy lasts about 22
    assert length[0] < 60


def _train(key):
    actor, critic = networks.actor(CONFIG), networks.critic(CONFIG)
    key_actor, key_critic, key_reset, key = jax.random.split(key, 4)
    obs = jnp.zeros(4)
    learner = ppo.init(actor.init(key_actor, obs)["params"], critic.init(key_critic, obs)["params"])
    state, steps = cartpole.reset(key_reset, N)

    def act(carry, key):
        learner, state, steps = carry
        key_sample, key_reset = jax.random.split(key)
        logits = actor.evaluate(learner.actor, state)
        action = sampling.sample(logits, jax.random.uniform(key_sample, (N,)))
        after, stepped, terminated, truncated = cartpole.step(state, steps, action)
        done = terminated | truncated
        record = (state, after, action, sampling.log_prob(logits, action), terminated, truncated)
        fresh, zero = cartpole.reset(key_reset, N)
        state, steps = jnp.where(done[:, None], fresh, after), jnp.where(done, zero, stepped)
        return (learner, state, steps), (record, jnp.where(done, stepped, 0))

    def update(carry, key):
        learner, state, steps = carry
        key_collect, key_update = jax.random.split(key)
        (_, state, steps), (record, lengths) = jax.lax.scan(act, carry, jax.random.split(key_collect, L))
        obs, next_obs, actions, log_probs, terminated, truncated = record
        values = critic.evaluate(learner.critic, obs)[..., 0]
        next_values = critic.evaluate(learner.critic, next_obs)[..., 0]
        advantages, returns = jt.gae(jnp.ones((L, N)), values, next_values, terminated, truncated, 0.99, 0.95)
        rows = ppo.Rows(actions=actions, log_probs=log_probs, values=values, advantages=advantages, returns=returns)
        rows = jax.tree.map(lambda x: x.reshape(-1), rows)
        rows = dataclasses.replace(rows, seen=obs.reshape(-1, 4))
        learner, _ = ppo.update(learner, rows, lambda seen: seen, key_update, CONFIG.hypers, CONFIG)
        ended = (lengths > 0).sum()
        return (learner, state, steps), jnp.where(ended > 0, lengths.sum() / jnp.maximum(ended, 1), jnp.nan)

    _, length = jax.lax.scan(update, (learner, state, steps), jax.random.split(key, UPDATES))
    # an update in which no episode ends has none to measure: it stands for at least one full collection
    return jnp.where(jnp.isnan(length), L, length)
