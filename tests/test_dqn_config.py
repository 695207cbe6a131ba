"""DQN's defaults are the specification's, written out by hand; mistakes are named."""

from __future__ import annotations

import dataclasses

import jax
import pytest

import jaxrl_trade as jt
from jaxrl_trade.train.config_json import config_from_dict, config_to_dict

HYPERS = {
    "learning_rate": 2.5e-4,
    "curiosity_learning_rate": 1e-3,
    "gamma": 0.99,
    "tau": 0.005,
    "priority_exponent": 0.6,
    "importance_start": 0.4,
    "importance_end": 1.0,
    "epsilon_start": 1.0,
    "epsilon_end": 0.05,
    "epsilon_fraction": 0.2,
    "huber_delta": 1.0,
    "max_grad_norm": 10.0,
}


@pytest.mark.parametrize(
    ("config", "env", "reward"),
    [
        (jt.DQNConfig(), jt.EnvConfig(), jt.RewardScales()),
        (jt.DQNConfig.net(), jt.EnvConfig.net(), jt.RewardScales.net()),
    ],
)
def test_the_defaults_are_the_specification_s(config, env, reward):
    hypers = {field.name: getattr(config.hypers, field.name) for field in dataclasses.fields(config.hypers)}
    assert hypers.pop("reward") == reward
    assert hypers == HYPERS
    assert config.env == env
    assert (config.n_episodes, config.train_every, config.batch_size, config.replay_capacity) == (32, 4, 256, 2**17)
    assert (config.n_step, config.double, config.backend, config.compute_dtype) == (3, False, "auto", "float32")
    assert (config.shared_hidden, config.head_hidden, config.curiosity_hidden) == ((256, 256), 128, (64,))


def test_a_gradient_step_comes_every_four_steps_of_the_32_episodes():
    config = jt.DQNConfig(timesteps_per_episode=100)
    assert (config.total_experiences, config.gradient_steps) == (3_200, 25)


def test_a_sweep_changes_values_not_programs():
    leaves, tree = jax.tree.flatten(jt.DQNHypers())
    assert len(leaves) == len(HYPERS) - 1 + 5  # all but huber_delta, which is compiled in, and the reward's scales
    assert jax.tree.structure(dataclasses.replace(jt.DQNHypers(), tau=0.1)) == tree
    assert jax.tree.structure(dataclasses.replace(jt.DQNHypers(), huber_delta=0.1)) != tree
    assert hash(jt.DQNConfig()) == hash(jt.DQNConfig())


def test_a_config_comes_back_from_json():
    config = jt.DQNConfig.net(double=True, shared_hidden=[32], hypers=jt.DQNHypers(huber_delta=0.5))
    assert config_from_dict(jt.DQNConfig, config_to_dict(config)) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0 must be a whole number of at least 1"),
        ({"learning_starts": -1}, "learning_starts = -1 must be a number at least 0"),
        ({"train_every": 5}, "train_every = 5 does not divide timesteps_per_episode = 64; choose a divisor"),
        ({"replay_capacity": 2_000}, "replay_capacity = 2000 is below total_experiences = 2048; raise it"),
        ({"learning_starts": 2**18}, "replay_capacity = 131072 is below learning_starts = 262144; raise it"),
        ({"shared_hidden": ()}, "shared_hidden = \\(\\) leaves the streams"),
        ({"shared_hidden": (8, 0)}, r"shared_hidden\[1\] = 0 must be at least 1"),
        ({"backend": "cuda"}, "backend = 'cuda' must be one of 'auto', 'pallas', 'interpret', 'xla'"),
        ({"hypers": jt.DQNHypers(huber_delta=0.0)}, "hypers.huber_delta = 0.0 must be a number above 0"),
    ],
)
def test_a_mistake_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        jt.DQNConfig(**changes)
