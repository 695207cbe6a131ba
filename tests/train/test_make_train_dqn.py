"""DQN's pure training function: deterministic, one trace, vmappable over keys and hyperparameters."""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.config import DQNConfig
from jaxrl_trade.train import dqn as train
from tests.rollout.markets import random_market

CONFIG = DQNConfig.net(
    env=jt.EnvConfig.net(episode_length=16, diversity_window=8),
    n_episodes=4,
    timesteps_per_episode=8,
    updates=4,
    batch_size=16,
    replay_capacity=100,
    learning_starts=50,
    shared_hidden=(8,),
    head_hidden=32,
    curiosity_hidden=(4,),
)
# strong types throughout, so that one trace serves every value
FAST = jax.tree.map(jnp.float32, dataclasses.replace(CONFIG.hypers, learning_rate=1e-2))


@pytest.fixture(scope="module")
def market():
    return random_market()


@pytest.fixture(scope="module")
def run(market):
    chex.clear_trace_counter()
    return jax.jit(chex.assert_max_traces(train.make_train_dqn(CONFIG, market), n=1))


def test_the_same_seed_gives_the_same_curve_bit_for_bit(run):
    first, second = run(jax.random.key(5), FAST), run(jax.random.key(5), FAST)
    jax.tree.map(np.testing.assert_array_equal, _data(first), _data(second))
    other, _ = run(jax.random.key(6), FAST)
    assert not np.array_equal(other.replay.rows.action, first[0].replay.rows.action)


def test_learning_starts_once_the_replay_holds_enough(run):
    state, metrics = run(jax.random.key(5), FAST)
    np.testing.assert_allclose(metrics.replay, [0.32, 0.64, 0.96, 1.0])  # 32 rows a collection, places for 100
    np.testing.assert_array_equal(np.asarray(metrics.loss) > 0, [False, True, True, True])
    assert int(state.update) == 4
    assert int(state.replay.next) == 4 * 32 - 100
    assert np.asarray(metrics.nonfinite).max() == -1


def test_hyperparameters_are_traced_and_matter(run):
    still, _ = run(jax.random.key(5), dataclasses.replace(FAST, learning_rate=jnp.float32(0.0)))
    moved, _ = run(jax.random.key(5), FAST)
    kernel = lambda state: np.asarray(state.params.dueling["value_output"]["kernel"])  # noqa: E731
    # at rate 0 the target has nowhere to go, up to the rounding of tau x + (1 - tau) x
    np.testing.assert_allclose(kernel(still), still.learner.target["value_output"]["kernel"], rtol=1e-5)
    assert np.abs(kernel(moved) - kernel(still)).max() > 1e-3


def test_at_most_16_scalars_an_update_are_kept(run):
    _, metrics = jax.eval_shape(run, jax.random.key(0), FAST)
    leaves = jax.tree.leaves(metrics)
    assert len(leaves) <= 16
    assert {x.shape for x in leaves} == {(CONFIG.updates,)}


@pytest.mark.slow
def test_seeds_under_vmap_are_single_runs():
    """Under x64 and with forced actions, so that rounding can neither flip an action nor grow into an Adam step."""
    with jax.enable_x64(True):
        double = random_market()
        actions = jnp.asarray(np.random.default_rng(0).integers(0, 45, (3, 8, 4)))

        def run(key):
            state = train.init_state(key, double, CONFIG)
            return jax.lax.scan(
                lambda s, a: train.update_step(s, CONFIG.hypers, double, CONFIG, actions=a), state, actions
            )

        keys = jax.random.split(jax.random.key(0), 8)
        together, single = _data(jax.jit(jax.vmap(run))(keys)), jax.jit(run)
        for i in range(8):
            close = lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-10, atol=1e-10)  # noqa: E731
            jax.tree.map(close, together, _data(single(keys[i])))


@pytest.mark.parametrize(
    ("field", "term"),
    [
        ("curiosity_max_reward", "curiosity bonus"),
        ("risk_weight", "rewards"),
        ("gamma", "TD errors of the dueling network"),
        ("importance_start", "loss of the dueling network"),
        ("curiosity_learning_rate", "loss of the curiosity model"),
    ],
)
def test_a_nan_is_traced_to_the_term_it_came_from(run, field, term):
    nan = jnp.float32(jnp.nan)
    if hasattr(FAST, field):
        hypers = dataclasses.replace(FAST, **{field: nan})
    else:
        hypers = dataclasses.replace(FAST, reward=dataclasses.replace(FAST.reward, **{field: nan}))
    _, metrics = run(jax.random.key(5), hypers)
    first = next(int(i) for i in metrics.nonfinite if i >= 0)
    assert train.TERMS[first] == term


def test_a_market_without_a_valid_start_is_refused():
    with pytest.raises(ValueError, match="has 10 bars in this split, too few for one episode of 16 bars"):
        train.make_train_dqn(CONFIG, random_market(n_bars=10))


def _data(tree):
    """Typed keys as their data, which NumPy can compare."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)
