"""DQN on eight devices: what one device does that has all episodes and the eight replays, whatever maps the step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import jaxrl_trade as jt
from jaxrl_trade import replay, scale
from jaxrl_trade.agents import dqn
from jaxrl_trade.train import dqn as train
from jaxrl_trade.train.pure import run_updates
from tests.rollout.markets import random_market
from tests.scaling.eight.runs import (
    DEVICES,
    EPISODES,
    FIRST_QUICKLY,
    LENGTH,
    OWN,
    RULES,
    UPDATES,
    assert_same,
    data,
    forced,
    random_weights,
    union_of_shuffles,
)

CONFIG = jt.DQNConfig.net(
    env=RULES,
    hypers=jt.DQNHypers(learning_rate=1e-2, max_grad_norm=0.5, tau=0.1),
    n_episodes=EPISODES,
    timesteps_per_episode=LENGTH,
    updates=UPDATES,
    train_every=4,
    batch_size=2 * DEVICES,
    replay_capacity=DEVICES * 40,  # LENGTH OWN = 24 rows a device and an update: full in the second
    learning_starts=DEVICES * 24 + 1,  # so the first update learns nothing
    shared_hidden=(8,),
    head_hidden=8,
    curiosity_hidden=(4,),
)


@struct.dataclass
class EightReplays:
    """One device's replay in the parts of eight, with the functions of `jaxrl_trade.replay` that DQN uses."""

    parts: Any  # Replay, every leaf [DEVICES, ...]

    @property
    def size(self):
        return self.parts.size.sum(dtype=jnp.int32)

    @property
    def sums(self):
        return self.parts.sums

    @classmethod
    def add(cls, held, rows, td_errors, exponent):
        own = lambda x: x.reshape(LENGTH, DEVICES, OWN).swapaxes(0, 1).reshape(DEVICES, -1)  # noqa: E731
        rows, td_errors = jax.tree.map(own, (rows, td_errors))
        return cls(jax.vmap(replay.add, (0, 0, 0, None))(held.parts, rows, td_errors, exponent))

    @staticmethod
    def sample(held, key, batch_size, beta, axis):
        assert axis is None
        keys = jax.vmap(lambda device: jax.random.fold_in(key, device))(jnp.arange(DEVICES))
        drawn = jax.vmap(lambda part, key: replay.sample(part, key, batch_size // DEVICES, 1.0))(held.parts, keys)
        # a row's probability: its device is one of eight, and there its priority decides
        priorities = jax.vmap(replay.priorities)(held.parts)
        chance = jnp.take_along_axis(priorities / priorities.sum(1, keepdims=True), drawn.index, 1) / DEVICES
        weights = ((held.size * chance) ** -beta).reshape(-1)
        rows = jax.tree.map(jnp.ravel, drawn.rows)
        return replay.Sample(rows=rows, index=drawn.index, weights=weights / weights.max())

    @classmethod
    def set_priorities(cls, held, index, td_errors, exponent):
        errors = td_errors.reshape(DEVICES, -1)
        return cls(jax.vmap(replay.set_priorities, (0, 0, 0, None))(held.parts, index, errors, exponent))


@pytest.fixture(scope="module")
def start():
    with jax.enable_x64(True):
        return scale.data_parallel(CONFIG, random_market(), DEVICES, "vmap").init(jax.random.key(5))


@pytest.fixture(scope="module")
def alone(start):
    """State and metrics of one device that has every episode, eight replays, and the minibatches of eight devices."""
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dqn, "replays", EightReplays)
        patch.setattr(train, "replay", EightReplays)
        patch.setattr(train, "shuffle", union_of_shuffles)
        hypers = jax.tree.map(jnp.float64, CONFIG.hypers)  # beta of a Python float is float32 even here
        run = lambda state: run_updates(  # noqa: E731
            train.update_step, state, hypers, random_market(), CONFIG, UPDATES, _actions()
        )
        parts = jax.tree.map(lambda x: x.reshape(DEVICES, -1, *x.shape[1:]), (start.replay.rows, start.replay.sums))
        zeros = jnp.zeros(DEVICES, jnp.int32)
        held = EightReplays(replay.Replay(*parts, next=zeros, size=zeros))
        state, metrics = data(jax.jit(run)(start.replace(replay=held)))
    rows, sums = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (state.replay.parts.rows, state.replay.parts.sums))
    (next_,), (size,) = set(state.replay.parts.next.tolist()), set(state.replay.parts.size.tolist())
    return state.replace(replay=replay.Replay(rows, sums, np.int32(next_), np.int32(size))), metrics


@pytest.mark.parametrize("executor", FIRST_QUICKLY)
def test_eight_devices_take_the_steps_of_one(executor, start, alone):
    with jax.enable_x64(True):
        program = scale.data_parallel(CONFIG, random_market(), DEVICES, executor)
        state, metrics = program.advance(jax.tree.map(jnp.copy, start), None, UPDATES, _actions())
        assert_same((state, metrics), alone)
        scale.check_replicas((state, metrics))


def test_the_runs_compared_are_no_trivial_ones(start, alone):
    """Learning starts in the second update, the replays overflow, gradients are clipped."""
    state, metrics = alone
    assert [loss > 0 for loss in metrics.loss] == [False, True, True]
    np.testing.assert_allclose(metrics.replay, [0.6, 1.0, 1.0])
    assert metrics.grad_norm.max() > CONFIG.hypers.max_grad_norm
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), state.learner.dueling, data(start.learner.dueling))
    assert max(jax.tree.leaves(moved)) > 1e-2


def test_the_first_gradient_is_that_of_all_rows():
    """In float32: Adam turns rounding into whole steps, so only the gradient before it can agree."""
    market, n_rows = random_market(), CONFIG.batch_size
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    batch = dqn.Batch(
        obs=normal(n_rows, market.n_features + 3),
        actions=forced(n_rows),
        rewards=normal(n_rows) * np.repeat(1.0 + np.arange(DEVICES), 2),
        discounts=jnp.full(n_rows, 0.9),
        next_obs=normal(n_rows, market.n_features + 3),
    )
    weights = jnp.asarray(rng.random(n_rows), jnp.float32)
    params = random_weights(lambda: jt.init_dqn(jax.random.key(0), CONFIG, market.n_features), seed=1)
    learner = dqn.init(params.dueling)

    def gradient(batch, weights, axis=None):
        moved, _, losses = dqn.gradient_step(learner, batch, weights, CONFIG.hypers, CONFIG, axis)
        return jax.flatten_util.ravel_pytree(moved.opt[1][0].mu)[0] / 0.1, losses  # 1 - b1 of the gradient, clipped

    team = scale.Team.of("shard_map", DEVICES)
    mapped = team.map(lambda *xs: gradient(*xs, axis=scale.AXIS), (scale.SHARE, scale.SHARE), scale.WHOLE)
    (actual, losses), (expected, wanted) = mapped(batch, weights), jax.jit(gradient)(batch, weights)
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())
    assert wanted.grad_norm > CONFIG.hypers.max_grad_norm
    assert_same(losses, wanted, 1e-5)


def _actions():
    return forced(UPDATES, LENGTH, EPISODES)
