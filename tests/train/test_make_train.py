"""The pure training function: deterministic, one trace, vmappable over keys and hyperparameters."""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.train import ppo as train
from tests.rollout.markets import SMALL, random_market

CONFIG = jt.PPOConfig.net(
    env=jt.EnvConfig.net(episode_length=16, diversity_window=8),
    n_episodes=4,
    timesteps_per_episode=20,
    minibatches=2,
    epochs=2,
    updates=3,
    schedule="linear",
    **SMALL,
)


@pytest.fixture(scope="module")
def market():
    return random_market()


@pytest.fixture(scope="module")
def run(market):
    """The whole run; a second trace would be an error."""
    chex.clear_trace_counter()
    return jax.jit(chex.assert_max_traces(jt.make_train_ppo(CONFIG, market), n=1))


@pytest.fixture(scope="module")
def step(market):
    """One update; a second trace would be an error."""
    chex.clear_trace_counter()
    return jax.jit(chex.assert_max_traces(lambda s, h: train.update_step(s, h, market, CONFIG), n=1))


@pytest.fixture(scope="module")
def start(market):
    return jax.jit(lambda: train.init_state(jax.random.key(5), market, CONFIG))()


def test_the_same_seed_gives_the_same_curve_bit_for_bit_from_one_trace(run):
    first, second = run(jax.random.key(5), CONFIG.hypers), run(jax.random.key(5), CONFIG.hypers)
    jax.tree.map(np.testing.assert_array_equal, _data(first), _data(second))
    other, _ = run(jax.random.key(6), CONFIG.hypers)
    assert not np.array_equal(_output(other), _output(first[0]))


def test_a_hundred_times_the_updates_take_no_more_memory_but_for_their_metrics(market):
    def memory(updates):
        run = jax.jit(jt.make_train_ppo(dataclasses.replace(CONFIG, updates=updates), market))
        return run.lower(jax.random.key(5), CONFIG.hypers).compile().memory_analysis()

    few, many = memory(3), memory(300)
    assert many.temp_size_in_bytes == few.temp_size_in_bytes
    assert many.output_size_in_bytes - few.output_size_in_bytes == 297 * 4 * len(dataclasses.fields(train.PPOMetrics))


def test_the_host_loops_steps_are_the_pure_functions(run, step, start):
    whole, metrics = run(jax.random.key(5), CONFIG.hypers)
    state = start
    for i in range(CONFIG.updates):
        state, one = step(state, CONFIG.hypers)
        np.testing.assert_allclose(one.value_loss, metrics.value_loss[i], rtol=1e-4)
    # Adam turns rounding into steps, and two programs round differently: 3 updates of 4 steps at 3e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), whole.learner.actor, state.learner.actor)
    assert int(state.update) == CONFIG.updates


def test_at_most_16_scalars_an_update_are_kept(market):
    _, metrics = jax.eval_shape(jt.make_train_ppo(CONFIG, market), jax.random.key(0))
    leaves = jax.tree.leaves(metrics)
    assert len(leaves) <= 16
    assert {x.shape for x in leaves} == {(CONFIG.updates,)}


def test_hyperparameters_are_traced_and_matter(run, start):
    slow, _ = run(jax.random.key(5), dataclasses.replace(CONFIG.hypers, learning_rate=0.0))
    fast, _ = run(jax.random.key(5), dataclasses.replace(CONFIG.hypers, learning_rate=1e-2))
    np.testing.assert_allclose(_output(slow), _output(start), atol=1e-7)
    assert np.abs(_output(fast) - _output(start)).max() > 1e-3


@pytest.mark.slow
def test_eight_seeds_under_vmap_are_eight_single_runs(market):
    """Under x64 and with forced actions, so that rounding can neither flip an action nor grow into an Adam step."""
    with jax.enable_x64(True):
        double = random_market()
        actions = np.random.default_rng(0).integers(0, 45, (3, 20, 4))

        def run(key):
            state = train.init_state(key, double, CONFIG)
            return jax.lax.scan(
                lambda s, a: train.update_step(s, CONFIG.hypers, double, CONFIG, actions=a), state, jnp.asarray(actions)
            )

        keys = jax.random.split(jax.random.key(0), 8)
        together = _data(jax.jit(jax.vmap(run))(keys))
        single = jax.jit(run)
        for i in range(8):
            jax.tree.map(
                lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-10, atol=1e-10),
                together,
                _data(single(keys[i])),
            )


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [1, 1, 1]), ("linear", [1, 0.5, 0]), ("cosine", [1, 0.5, 0])],
)
def test_the_learning_rates_factor_follows_the_schedule(schedule, expected):
    config = dataclasses.replace(CONFIG, schedule=schedule, updates=10)
    np.testing.assert_allclose([train.scheduled(jnp.int32(u), config) for u in (0, 5, 10)], expected, atol=1e-6)


def test_a_nan_is_traced_to_the_term_it_came_from(step, start):
    spoil = lambda tree: jax.tree.map(lambda x: x * jnp.nan, tree)  # noqa: E731
    term = lambda state, hypers: int(step(state, hypers)[1].nonfinite)  # noqa: E731
    hypers, learner = CONFIG.hypers, start.learner
    no_reward = dataclasses.replace(hypers, reward=dataclasses.replace(hypers.reward, risk_weight=jnp.nan))
    no_actor = dataclasses.replace(start, learner=dataclasses.replace(learner, actor=spoil(learner.actor)))
    assert term(start, hypers) == -1
    assert train.TERMS[term(start, no_reward)] == "rewards"
    assert train.TERMS[term(no_actor, hypers)] == "log_probs of the actor"
    no_curiosity = dataclasses.replace(start, curiosity=spoil(start.curiosity))
    assert train.TERMS[term(no_curiosity, hypers)] == "curiosity bonus"


def test_a_market_without_a_valid_start_is_refused():
    with pytest.raises(
        ValueError, match=r"instrument 'instrument' has 10 bars in this split, too few for one episode of 16 bars"
    ):
        jt.make_train_ppo(CONFIG, random_market(n_bars=10))


def _output(state):
    return np.asarray(state.params.actor["policy_output"]["kernel"])


def _data(tree):
    """Typed keys as their data, which NumPy can compare."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)
