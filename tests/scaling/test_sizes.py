"""Sizes that the devices do not divide are refused, in words; a share of those that they divide."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import jaxrl_trade as jt
from jaxrl_trade import scale
from tests.rollout.markets import SMALL, random_market

PPO = jt.PPOConfig(n_episodes=16, timesteps_per_episode=10, minibatches=4, **SMALL)
DQN = jt.DQNConfig(n_episodes=16, timesteps_per_episode=8, batch_size=32, replay_capacity=1600, learning_starts=130)


def test_a_share_is_the_runs_sizes_over_the_devices():
    assert scale.share_of(PPO, 8).n_episodes == 2
    assert scale.share_of(PPO, 1) == PPO
    own = scale.share_of(DQN, 8)
    assert (own.n_episodes, own.batch_size, own.replay_capacity, own.learning_starts) == (2, 4, 200, 17)
    assert (own.gradient_steps, own.updates, own.hypers) == (DQN.gradient_steps, DQN.updates, DQN.hypers)


@pytest.mark.parametrize(
    ("config", "devices", "message"),
    [
        (PPO, 3, r"n_episodes = 16 cannot be divided over 3 devices; take a multiple of 3, such as 18"),
        (PPO, 16, r"minibatches = 4 does not divide the 10 experiences that each of 16 devices collects"),
        (DQN, 32, r"n_episodes = 16 cannot be divided over 32 devices; take a multiple of 32, such as 32"),
        (jt.DQNConfig(n_episodes=12, batch_size=256), 3, r"batch_size = 256 cannot be divided over 3 devices"),
        (jt.DQNConfig(n_episodes=12, batch_size=255), 3, r"replay_capacity = 131072 cannot be divided over 3 devices"),
    ],
)
def test_sizes_that_the_devices_do_not_divide_are_an_error(config, devices, message):
    market = random_market(n_bars=600)
    with pytest.raises(ValueError, match=message):
        scale.data_parallel(config, market, devices, "vmap")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"executor": "xmap"}, r"executor = 'xmap' must be one of 'shard_map', 'pmap', 'vmap'"),
        ({"devices": 0}, r"devices = 0 must be at least 1"),
        ({"devices": "all"}, r"devices = 'all' must be a whole number, or None for all"),
        ({"config": "ppo"}, r"config is a str; give a PPOConfig or DQNConfig"),
        ({"market": 3}, r"market is 3; give a Market"),
        ({"market": random_market()}, r"has 120 bars in this split, too few for one episode of 500"),
    ],
)
@pytest.mark.parametrize("mode", [scale.data_parallel, scale.seeds])
def test_wrong_arguments_are_told_before_anything_is_computed(mode, arguments, message):
    with pytest.raises(ValueError, match=message):
        mode(**{"config": PPO, "market": random_market(n_bars=600), **arguments})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            lambda: jax.random.split(jax.random.key(0), 6),
            r"6 runs cannot be divided over 4 devices; give a multiple of 4",
        ),
        (lambda: jax.random.key(0), r"keys has key<fry> of shape \(\); give one typed key for each run"),
        (lambda: jnp.zeros(4, int), r"keys has int32 of shape \(4,\); give one typed key"),
        (lambda: 7, r"keys has int of shape \(\); give one typed key"),
    ],
)
def test_seeds_take_a_key_for_each_run(keys, message):
    with pytest.raises(ValueError, match=message):
        scale.seeds(PPO, random_market(n_bars=600), 4, "vmap").init(keys())


def test_data_parallel_takes_one_key():
    with pytest.raises(ValueError, match=r"key holds keys of shape \(4,\), a run takes one"):
        scale.data_parallel(PPO, random_market(n_bars=600), 4, "vmap").init(jax.random.split(jax.random.key(0), 4))


@pytest.mark.parametrize(
    ("mode", "key"),
    [(scale.data_parallel, jax.random.key(0)), (scale.seeds, jax.random.split(jax.random.key(0), 2))],
)
def test_hypers_are_the_agents_own_and_a_state_is_used_once(mode, key):
    program = mode(dataclasses.replace(PPO, updates=1), random_market(n_bars=600), 2, "vmap")
    state = program.init(key)
    with pytest.raises(ValueError, match=r"^hypers is a DQNHypers; give a PPOHypers"):
        program.advance(state, DQN.hypers, 1)
    with pytest.raises(ValueError, match=r"^hypers\.learning_rate has shape \(3,\)"):
        program.advance(state, dataclasses.replace(PPO.hypers, learning_rate=jnp.full(3, 1e-3)), 1)
    traced, _ = jax.eval_shape(lambda state: program.advance(state, None, 1), state)
    after, _ = program.advance(state, None, 1)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, traced)
    with pytest.raises(ValueError, match="donated to an earlier call of advance; go on from the one that it returned"):
        program.advance(state, None, 1)
    program.advance(after, None, 1)
