"""DQN's loss, steps and schedules against formulas written out, and against rlax."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax

from jaxrl_trade import networks, replay
from jaxrl_trade.agents import dqn, q_policy
from jaxrl_trade.config import DQNConfig, DQNHypers, EnvConfig, ExecutionTable

ACTIONS, FEATURES, B = 5, 4, 32
TABLE = ExecutionTable(
    exposure=np.linspace(-1, 1, ACTIONS),
    fee_rate=[0] * ACTIONS,
    fill_ratio=[1] * ACTIONS,
    price_offset=[0] * ACTIONS,
    is_maker=[False] * ACTIONS,
)
CONFIG = DQNConfig(
    env=EnvConfig(execution=TABLE),
    shared_hidden=(8,),
    head_hidden=32,
    curiosity_hidden=(4,),
    batch_size=B,
    replay_capacity=64,
    learning_starts=0,
    n_episodes=2,
    timesteps_per_episode=8,
    updates=100,
)
HYPERS = DQNHypers(huber_delta=0.7)
DOUBLE = dataclasses.replace(CONFIG, double=True)


@pytest.fixture(scope="module")
def learner():
    online, target = (networks.init_dqn(jax.random.key(i), CONFIG, FEATURES).dueling for i in (1, 2))
    for weights in (online, target):
        weights["advantage_output"]["kernel"] *= 100.0  # lively: the initial advantages are nearly equal
    return dataclasses.replace(dqn.init(online), target=target)


def random_batch(seed: int = 3, size: int = B) -> dqn.Batch:
    rng = np.random.default_rng(seed)
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    return dqn.Batch(
        obs=f32(size, FEATURES + 3),
        actions=rng.integers(0, ACTIONS, size).astype(np.int32),
        rewards=f32(size),
        discounts=np.where(rng.random(size) < 0.3, 0, 0.97).astype(np.float32),
        next_obs=f32(size, FEATURES + 3),
    )


def q(weights, obs) -> jax.Array:
    return networks.dueling(CONFIG).apply({"params": weights}, obs)


def weights_of(seed: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).random(B).astype(np.float32)


@pytest.mark.parametrize(("compute_dtype", "precision"), [("float32", "HIGHEST"), ("tf32", "DEFAULT")])
def test_every_product_of_loss_and_gradient_has_the_precision_of_the_config(learner, compute_dtype, precision):
    config = dataclasses.replace(CONFIG, compute_dtype=compute_dtype, backend="xla")
    with jax.default_matmul_precision(None):  # as outside these tests, where a GPU takes TF32
        loss = lambda w: dqn.td_loss(w, learner.target, random_batch(), weights_of(), HYPERS, config)[0]  # noqa: E731
        program = str(jax.make_jaxpr(jax.grad(loss))(learner.dueling))
    products = program.split("dot_general[")[1:]
    assert len(products) > 10
    assert all(f"Precision.{precision}" in product.split("preferred")[0] for product in products)


@pytest.mark.parametrize("config", [CONFIG, DOUBLE], ids=["plain", "double"])
def test_the_loss_is_the_weighted_mean_of_huber_s_and_the_errors_are_rlax_s(learner, config):
    batch, weights = random_batch(), weights_of()
    loss, errors = dqn.td_loss(learner.dueling, learner.target, batch, weights, HYPERS, config)
    now, then, chooser = (
        q(learner.dueling, batch.obs),
        q(learner.target, batch.next_obs),
        q(learner.dueling, batch.next_obs),
    )
    if config.double:
        minus = jax.vmap(rlax.double_q_learning)(now, batch.actions, batch.rewards, batch.discounts, then, chooser)
    else:
        minus = jax.vmap(rlax.q_learning)(now, batch.actions, batch.rewards, batch.discounts, then)
    np.testing.assert_allclose(errors, -minus, rtol=1e-4, atol=1e-5)  # float32; rlax's is y - Q
    size = np.abs(np.asarray(errors, np.float64))
    huber = np.where(size <= 0.7, size**2 / 2, 0.7 * (size - 0.35))
    assert 0.2 < (size <= 0.7).mean() < 0.9  # both parts
    np.testing.assert_allclose(loss, np.mean(weights * huber), rtol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, DOUBLE], ids=["plain", "double"])
def test_the_gradient_is_the_plain_formula_s_and_none_flows_through_the_target(learner, config):
    batch, weights = random_batch(), weights_of()

    def plain(online):
        then, chooser = (
            q(learner.target, batch.next_obs),
            q(online if config.double else learner.target, batch.next_obs),
        )
        best = jnp.take_along_axis(then, chooser.argmax(-1)[:, None], -1)[:, 0]
        y = jax.lax.stop_gradient(batch.rewards + batch.discounts * best)
        taken = q(online, batch.obs)[np.arange(B), batch.actions]
        return jnp.mean(weights * optax.losses.huber_loss(taken, y, delta=0.7))

    actual = jax.grad(dqn.td_loss, has_aux=True)(learner.dueling, learner.target, batch, weights, HYPERS, config)[0]
    for ours, formula in zip(jax.tree.leaves(actual), jax.tree.leaves(jax.grad(plain)(learner.dueling)), strict=True):
        np.testing.assert_allclose(ours, formula, atol=1e-5 * float(jnp.abs(formula).max()))  # of the largest entry


@pytest.mark.parametrize("config", [CONFIG, DOUBLE], ids=["plain", "double"])
def test_the_kernels_and_xla_learn_the_same(learner, config):
    batch, weights = random_batch(), weights_of()
    grad = jax.value_and_grad(dqn.td_loss, has_aux=True)
    (loss, errors), expected = grad(learner.dueling, learner.target, batch, weights, HYPERS, config)
    kernels = dataclasses.replace(config, backend="interpret")
    (again, errors_again), actual = grad(learner.dueling, learner.target, batch, weights, HYPERS, kernels)
    np.testing.assert_allclose(again, loss, rtol=1e-5)
    np.testing.assert_allclose(errors_again, errors, rtol=1e-4, atol=1e-5)  # float32 from split products
    for ours, xla in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, xla, atol=1e-5 * float(jnp.abs(xla).max()))  # of the largest entry


def test_the_target_moves_tau_of_the_way(learner):
    moved = dqn.soft_update(learner.target, learner.dueling, 0.1)
    jax.tree.map(
        lambda new, old, online: np.testing.assert_allclose(new, 0.1 * online + 0.9 * old, rtol=1e-5, atol=1e-6),
        moved,
        learner.target,
        learner.dueling,
    )


def test_a_gradient_step_is_adam_s_on_the_clipped_gradient_and_moves_the_target_towards_the_new_weights(learner):
    batch, weights = random_batch(), weights_of()
    hypers = dataclasses.replace(HYPERS, learning_rate=0.01, max_grad_norm=1e-3, tau=0.25)
    after, errors, losses = dqn.gradient_step(learner, batch, weights, hypers, CONFIG)
    gradient = jax.grad(dqn.td_loss, has_aux=True)(learner.dueling, learner.target, batch, weights, hypers, CONFIG)[0]
    norm = np.sqrt(sum(float((np.asarray(x, np.float64) ** 2).sum()) for x in jax.tree.leaves(gradient)))
    assert norm > 1e-3  # so that it is clipped
    np.testing.assert_allclose(losses.grad_norm, norm, rtol=1e-5)
    np.testing.assert_allclose(losses.td_error, np.abs(errors).mean(), rtol=1e-6)

    def adam(weight, g):  # its first step: the bias corrections leave g / (|g| + eps)
        g = g * (1e-3 / norm)
        return weight - 0.01 * g / (np.abs(g) + 1e-5)

    expected = jax.tree.map(adam, learner.dueling, gradient)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # noqa: E731 float32
    jax.tree.map(close, after.dueling, expected)
    jax.tree.map(lambda a, t, e: close(a, 0.75 * t + 0.25 * e), after.target, learner.target, expected)


def test_an_update_takes_its_steps_from_the_replay_and_renews_the_priorities_of_what_it_drew(learner):
    config = dataclasses.replace(CONFIG, train_every=4)
    batch = random_batch(size=40)
    held = replay.add(replay.init(jax.tree.map(lambda x: x[0], batch), 64), batch, jnp.full(40, 9.0), 0.6)
    still = dataclasses.replace(HYPERS, learning_rate=0.0, tau=0.0)
    run = jax.jit(lambda net, r: dqn.update(net, r, lambda rows: rows, jax.random.key(5), 0.4, still, config))
    after, filled, losses = run(learner, held)
    assert config.gradient_steps == 2
    assert int(optax.tree.get(after.opt, "count")) == 2
    jax.tree.map(np.testing.assert_array_equal, after.dueling, learner.dueling)  # nothing is learnt at rate 0
    _, errors = dqn.td_loss(learner.dueling, learner.target, batch, jnp.ones(40), still, config)
    expected = (np.abs(errors) + 1e-6) ** 0.6
    actual = np.asarray(replay.priorities(filled))[:40]
    drawn = ~np.isclose(actual, 9.0**0.6, rtol=1e-5)
    assert 20 < drawn.sum() <= 40
    np.testing.assert_allclose(actual[drawn], expected[drawn], rtol=1e-3, atol=1e-4)  # float32 TD errors
    assert float(losses.loss) > 0


def test_epsilon_falls_on_a_line_over_the_first_fifth_of_the_run_and_beta_rises_over_all_of_it():
    hypers = DQNHypers()
    epsilon = [float(dqn.epsilon(jnp.int32(u), hypers, CONFIG)) for u in (0, 10, 20, 99)]
    np.testing.assert_allclose(epsilon, [1, 0.525, 0.05, 0.05], rtol=1e-6)
    beta = [float(dqn.importance(jnp.int32(u), hypers, CONFIG)) for u in (0, 50, 100, 200)]
    np.testing.assert_allclose(beta, [0.4, 0.7, 1, 1], rtol=1e-6)


def test_the_policy_s_logits_are_q(learner):
    obs = random_batch().obs
    np.testing.assert_allclose(q_policy(learner.dueling, CONFIG)(obs), q(learner.dueling, obs), rtol=1e-5, atol=1e-5)
