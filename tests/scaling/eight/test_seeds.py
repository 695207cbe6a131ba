"""Many runs on eight devices: each is what it would be alone, and nothing passes between them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade import scale
from jaxrl_trade.train.agent import agent_of
from jaxrl_trade.train.pure import run_updates
from tests.rollout.markets import SMALL, random_market
from tests.scaling.eight.runs import DEVICES, EXECUTORS, FIRST_QUICKLY, RULES, assert_same, data, forced

RUNS, OWN, LENGTH, UPDATES = 16, 2, 12, 2
SIZES = {"env": RULES, "n_episodes": OWN, "timesteps_per_episode": LENGTH, "updates": UPDATES}
PPO = jt.PPOConfig.net(epochs=1, minibatches=2, **SIZES, **SMALL)
DQN = jt.DQNConfig.net(
    batch_size=8,
    replay_capacity=40,
    learning_starts=20,
    shared_hidden=(8,),
    head_hidden=8,
    curiosity_hidden=(4,),
    **SIZES,
)


@pytest.mark.parametrize("executor", FIRST_QUICKLY)
def test_each_run_of_ppo_is_the_run_alone(executor):
    _check(PPO, executor)


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_run_of_dqn_is_the_run_alone(executor):
    _check(DQN, executor)


@pytest.mark.slow
def test_a_whole_run_from_keys():
    """Sampled actions, `config.updates` of them, one learning rate for all."""
    state, metrics = scale.seeds(PPO, random_market()).train(_keys())
    assert metrics.reward.shape == (RUNS, UPDATES)
    assert len({x.tobytes() for x in np.asarray(state.params.actor["policy_output"]["kernel"])}) == RUNS


def test_hypers_of_another_number_of_runs_are_an_error():
    hypers = dataclasses.replace(PPO.hypers, learning_rate=jnp.ones(3))
    program = scale.seeds(PPO, random_market())
    states = jax.eval_shape(program.init, _keys())
    with pytest.raises(
        ValueError, match=r"hypers.learning_rate has shape \(3,\); give a number, or one for each of 16"
    ):
        program.advance(states, hypers, 1)


def _check(config, executor):
    """Under x64 and with forced actions, so that rounding can neither flip an action nor grow into an Adam step."""
    with jax.enable_x64(True):
        market, actions, agent = random_market(), forced(RUNS, UPDATES, LENGTH, OWN), agent_of(config)
        rates = jnp.linspace(1e-4, 1e-2, RUNS)
        program = scale.seeds(config, market, DEVICES, executor)
        hypers = dataclasses.replace(config.hypers, learning_rate=rates)
        together = program.advance(program.init(_keys()), hypers, UPDATES, actions)

        def run(key, rate, actions):
            hypers = jax.tree.map(jnp.float64, dataclasses.replace(config.hypers, learning_rate=rate))
            state = agent.init_state(key, market, config)
            return run_updates(agent.update_step, state, hypers, market, config, UPDATES, actions)

        alone = jax.jit(run)
        for r in (0, 5, RUNS - 1):
            expected = alone(_keys()[r], rates[r], actions[r])
            assert_same(jax.tree.map(lambda x, r=r: x[r], data(together)), expected)


def _keys():
    return jax.random.split(jax.random.key(0), RUNS)
