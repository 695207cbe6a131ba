"""PPO on eight devices: what one device does with all episodes, whatever maps the step over the eight."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxrl_trade as jt
from jaxrl_trade import scale
from jaxrl_trade.agents import ppo
from jaxrl_trade.train import ppo as train
from tests.rollout.markets import SMALL, random_market
from tests.scaling.eight.runs import (
    DEVICES,
    EPISODES,
    LENGTH,
    RULES,
    UPDATES,
    assert_same,
    data,
    forced,
    random_weights,
    union_of_shuffles,
)

CONFIG = jt.PPOConfig.net(
    env=RULES,
    hypers=jt.PPOHypers(learning_rate=3e-2, max_grad_norm=0.1),
    n_episodes=EPISODES,
    timesteps_per_episode=LENGTH,
    updates=UPDATES,
    epochs=2,
    minibatches=3,
    target_kl=0.02,
    **SMALL,
)


@pytest.fixture(scope="module")
def start():
    with jax.enable_x64(True):
        return jax.jit(lambda: train.init_state(jax.random.key(5), random_market(), CONFIG))()


@pytest.fixture(scope="module")
def alone(start):
    """State and metrics of one device that has every episode, and the minibatches of eight."""
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "shuffle", union_of_shuffles)
        patch.setattr(train, "shuffle", union_of_shuffles)
        run = functools.partial(
            train.run_updates, market=random_market(), config=CONFIG, updates=UPDATES, actions=_actions()
        )
        return data(jax.jit(run)(start, CONFIG.hypers))


@pytest.mark.parametrize("executor", ["shard_map", "pmap", pytest.param("vmap", marks=pytest.mark.slow)])
def test_eight_devices_take_the_steps_of_one(executor, start, alone):
    with jax.enable_x64(True):
        program = scale.data_parallel(CONFIG, random_market(), DEVICES, executor)
        state, metrics = program.advance(jax.tree.map(jnp.copy, start), None, UPDATES, _actions())
        assert_same((state, metrics), alone)
        scale.check_replicas((state, metrics))
        if executor != "vmap":
            assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(metrics))
            assert state.env.account.cash.sharding.spec == P(scale.AXIS)


def test_the_runs_compared_are_no_trivial_ones(start, alone):
    """KL stops an update before its last step, gradients are clipped, episodes end."""
    state, metrics = alone
    steps = state.learner.actor_opt[1][0].count
    assert UPDATES <= steps < UPDATES * CONFIG.epochs * CONFIG.minibatches
    assert metrics.actor_grad_norm.max() > CONFIG.hypers.max_grad_norm
    assert metrics.episodes.min() >= EPISODES
    assert np.abs(state.learner.actor["policy_output"]["bias"]).max() > 1e-2


def test_a_run_begins_with_the_weights_and_episodes_of_one_device(start):
    with jax.enable_x64(True):
        program = scale.data_parallel(CONFIG, random_market(), DEVICES)
        assert_same(program.init(jax.random.key(5)), start)


def test_nothing_is_gathered(start):
    """Metrics leave as what every device has after a reduction."""
    with jax.enable_x64(True):
        program = scale.data_parallel(CONFIG, random_market(), DEVICES)
        jaxpr = str(jax.make_jaxpr(lambda state: program.advance(state, None, UPDATES, _actions()))(start))
    assert "psum" in jaxpr
    assert "all_gather" not in jaxpr


@pytest.mark.parametrize("max_grad_norm", [1e6, 1e-3])
def test_the_first_gradient_is_that_of_all_rows_and_clipped_as_such(gradients, max_grad_norm):
    """In float32: Adam turns rounding into whole steps, so only the gradient before it can agree. At 1e6 nothing is clipped."""
    mapped, alone = gradients
    for actual, expected in zip(mapped(max_grad_norm), alone(max_grad_norm), strict=True):
        assert actual.dtype == jnp.float32
        np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())
        assert np.linalg.norm(expected) <= 1.0001 * max_grad_norm


@pytest.fixture(scope="module")
def gradients():
    """The gradients `[P]` of actor and critic in the one step of an update: on eight devices, and on one with all rows."""
    config = dataclasses.replace(CONFIG, epochs=1, minibatches=1, target_kl=None)
    market, n_rows = random_market(), EPISODES * LENGTH
    rng = np.random.default_rng(0)
    rows = ppo.Rows(
        actions=forced(n_rows),
        log_probs=jnp.asarray(rng.normal(-3.8, 0.1, n_rows), jnp.float32),
        values=jnp.zeros(n_rows),
        advantages=jnp.asarray(rng.normal(0.3, 2.0, n_rows) * np.repeat(1.0 + np.arange(DEVICES), 2 * LENGTH), float),
        returns=jnp.asarray(rng.normal(1.0, 2.0, n_rows), jnp.float32),
    )
    obs = jnp.asarray(rng.normal(size=(n_rows, market.n_features + 3)), jnp.float32)
    params = random_weights(lambda: jt.init_ppo(jax.random.key(0), config, market.n_features), seed=1)
    learner = ppo.init(params.actor, params.critic)

    def update(rows, obs, hypers, axis=None):
        rows = dataclasses.replace(rows, seen=obs)
        moved, _ = ppo.update(learner, rows, lambda seen: seen, jax.random.key(1), hypers, config, axis)
        first_moments = moved.actor_opt[1][0].mu, moved.critic_opt[1][0].mu
        return [jax.flatten_util.ravel_pytree(m)[0] / 0.1 for m in first_moments]  # 1 - b1 of the gradient

    team = scale.Team.of("shard_map", DEVICES)
    mapped = team.map(functools.partial(update, axis=scale.AXIS), (scale.SHARE, scale.SHARE, scale.WHOLE), scale.WHOLE)
    hypers = lambda norm: dataclasses.replace(config.hypers, max_grad_norm=jnp.float32(norm))  # noqa: E731
    alone = jax.jit(update)
    return lambda norm: mapped(rows, obs, hypers(norm)), lambda norm: alone(rows, obs, hypers(norm))


def _actions():
    return forced(UPDATES, LENGTH, EPISODES)
