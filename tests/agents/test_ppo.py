"""PPO's losses against their formulas in NumPy float64, and the update's promises."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxrl_trade as jt
import pallas_kernels as pk
from jaxrl_trade import networks
from jaxrl_trade.agents import ppo
from jaxrl_trade.train import ppo as train
from tests.rollout.markets import SMALL, random_market

M, D, A = 64, 6, 45
CONFIG = jt.PPOConfig(
    actor_hidden=(8,), critic_hidden=(8,), n_episodes=8, timesteps_per_episode=8, minibatches=4, epochs=2
)
HYPERS = jt.PPOHypers(entropy_coef=0.05)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    obs = jnp.asarray(rng.standard_normal((M, D)), float)
    actor = networks.actor(CONFIG).init(jax.random.key(0), obs)["params"]
    actor = jax.tree.map(lambda x: 20 * x, actor)  # away from uniform
    critic = networks.critic(CONFIG).init(jax.random.key(1), obs)["params"]
    rows = ppo.Rows(
        actions=jnp.asarray(rng.integers(0, A, M), jnp.int32),
        log_probs=jnp.asarray(rng.normal(-3, 0.5, M), float),
        values=jnp.asarray(rng.standard_normal(M), float),
        advantages=jnp.asarray(rng.standard_normal(M), float),
        returns=jnp.asarray(3 * rng.standard_normal(M), float),
    )
    return obs, actor, critic, rows


def test_the_actors_loss_is_the_clipped_surrogate_minus_entropy(problem):
    obs, actor, _, rows = problem
    logits = np.asarray(networks.actor(CONFIG).evaluate(actor, obs), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    old, adv = np.asarray(rows.log_probs, np.float64), np.asarray(rows.advantages, np.float64)
    ratio = np.exp(log_p[np.arange(M), rows.actions] - old)
    assert (ratio > 1.2).any()
    assert (ratio < 0.8).any()
    surrogate = np.minimum(ratio * adv, np.clip(ratio, 0.8, 1.2) * adv).mean()
    entropy = -(np.exp(log_p) * log_p).sum(-1).mean()
    loss, report = ppo.actor_loss(actor, obs, rows, HYPERS, CONFIG)
    np.testing.assert_allclose(loss, -surrogate - 0.05 * entropy, rtol=1e-5)
    np.testing.assert_allclose(report["entropy"], entropy, rtol=1e-5)
    np.testing.assert_allclose(report["kl"], (ratio - 1 - np.log(ratio)).mean(), rtol=1e-4)
    np.testing.assert_allclose(report["clip_fraction"], (np.abs(ratio - 1) > 0.2).mean(), rtol=1e-6)


@pytest.mark.parametrize("value_clip", [None, 0.5])
def test_the_value_loss_is_the_mean_square_or_the_worse_of_clipped_and_free(problem, value_clip):
    obs, _, critic, rows = problem
    config = dataclasses.replace(CONFIG, value_clip=value_clip)
    v = np.asarray(networks.critic(config).evaluate(critic, obs)[:, 0], np.float64)
    target, old = np.asarray(rows.returns, np.float64), np.asarray(rows.values, np.float64)
    square = (v - target) ** 2
    if value_clip is not None:
        square = np.maximum(square, (old + np.clip(v - old, -value_clip, value_clip) - target) ** 2)
    np.testing.assert_allclose(ppo.value_loss(critic, obs, rows, HYPERS, config), 0.5 * square.mean(), rtol=1e-5)


def test_advantages_are_normalised_by_the_population_deviation():
    a = np.array([1.0, 2.0, 4.0, 9.0])
    np.testing.assert_allclose(ppo.normalise(jnp.asarray(a)), (a - 4) / np.sqrt(9.5), rtol=1e-6)


def test_every_row_is_seen_once_an_epoch():
    order = ppo.shuffle(jax.random.key(0), 12, 3)
    assert order.shape == (3, 4)
    assert sorted(np.ravel(order)) == list(range(12))


def test_actor_and_critic_are_clipped_apart_and_stepped_by_adam(problem):
    obs, actor, critic, rows = problem
    config = dataclasses.replace(CONFIG, epochs=1, minibatches=1)
    learner, losses = _update(ppo.init(actor, critic), rows, obs, HYPERS, config)
    normalised = dataclasses.replace(rows, advantages=ppo.normalise(rows.advantages))
    for name, loss in (
        ("actor", lambda p: ppo.actor_loss(p, obs, normalised, HYPERS, config)[0]),
        ("critic", lambda p: ppo.value_loss(p, obs, rows, HYPERS, config)),
    ):
        before = {"actor": actor, "critic": critic}[name]
        gradient = jax.tree.map(lambda x: np.asarray(x, np.float64), jax.grad(loss)(before))
        norm = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient)))
        np.testing.assert_allclose(getattr(losses, f"{name}_grad_norm"), norm, rtol=1e-4)
        scale = min(1.0, 0.5 / norm)
        # Adam's first step is lr x g / (|g| + eps)
        expected = jax.tree.map(
            lambda p, g, s=scale: np.asarray(p) - 3e-4 * (g * s) / (np.abs(g * s) + 1e-5), before, gradient
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), getattr(learner, name), expected)


def test_a_kl_above_the_target_skips_the_rest_of_the_update(problem):
    obs, actor, critic, rows = problem
    start = ppo.init(actor, critic)
    on_policy = dataclasses.replace(rows, log_probs=_log_probs(actor, obs, rows))
    hypers = jt.PPOHypers(learning_rate=0.05)
    _, free = _update(start, on_policy, obs, hypers, CONFIG)
    stopped, losses = _update(start, on_policy, obs, hypers, dataclasses.replace(CONFIG, target_kl=1e-4))
    assert free.kl > 1e-4
    # the first minibatch is on policy, its step is taken; the second one's KL stops the rest
    assert int(stopped.actor_opt[1][0].count) == 1
    assert losses.kl < 1e-4


@pytest.mark.parametrize(("compute_dtype", "tolerance"), [("float32", 1e-5), ("tf32", 5e-3), ("bfloat16", 2e-2)])
def test_the_first_minibatch_is_on_policy(compute_dtype, tolerance):
    market = random_market(n_features=51)
    config = jt.PPOConfig.net(
        env=jt.EnvConfig.net(episode_length=16),
        n_episodes=4,
        timesteps_per_episode=32,
        compute_dtype=compute_dtype,
        **SMALL,
    )

    @jax.jit
    def first_minibatch():
        state = train.init_state(jax.random.key(0), market, config)
        experience, _ = jt.collect_ppo(state.params, market, state.env, jax.random.key(1), config)
        rows = train._rows(experience)

        def observe(seen):
            return pk.Gathered(market.features, *seen)

        return ppo.update(state.learner, rows, observe, jax.random.key(2), config.hypers, config)[1]

    assert first_minibatch().ratio_deviation < tolerance


def test_the_optimiser_is_optax_adam_with_ppos_epsilon():
    tree = {"w": jnp.array([0.3, -0.1])}
    ours, theirs = ppo.optimiser(1e-3, 1e9), optax.adam(1e-3, eps=1e-5)
    update, _ = ours.update(tree, ours.init(tree))
    expected, _ = theirs.update(tree, theirs.init(tree))
    np.testing.assert_allclose(update["w"], expected["w"], rtol=1e-6)


@functools.partial(jax.jit, static_argnames="config")
def _update(learner, rows, obs, hypers, config):
    rows = dataclasses.replace(rows, seen=obs)
    return ppo.update(learner, rows, lambda seen: seen, jax.random.key(0), hypers, config)


def _log_probs(actor, obs, rows):
    logits = networks.actor(CONFIG).evaluate(actor, obs)
    return jnp.take_along_axis(jax.nn.log_softmax(logits), rows.actions[:, None], 1)[:, 0]
