"""The fused kernels, interpreted, under every executor: what they give on eight devices is what XLA gives on one, in float32."""

from __future__ import annotations

import dataclasses
import pkgutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jaxrl_trade as jt
import pallas_kernels as pk
from jaxrl_trade import scale
from jaxrl_trade.agents import dqn
from jaxrl_trade.train import ppo as train
from tests.rollout.markets import SMALL, random_market
from tests.scaling.eight.runs import DEVICES, EPISODES, EXECUTORS, LENGTH, RULES, forced, random_weights

CONFIG = jt.PPOConfig.net(
    env=RULES, n_episodes=EPISODES, timesteps_per_episode=LENGTH, updates=1, epochs=1, minibatches=1, **SMALL
)


@pytest.fixture(scope="module")
def start():
    return jax.jit(lambda: train.init_state(jax.random.key(5), random_market(), CONFIG))()


@pytest.fixture(scope="module")
def alone(start):
    """By XLA on one device; one minibatch holds every row, whatever the order."""
    run = jax.jit(lambda state: train.run_updates(state, CONFIG.hypers, random_market(), CONFIG, 1, _actions()))
    return run(start)


@pytest.fixture
def interpreted(monkeypatch):
    """Where backend="auto" would take a compiled kernel on a GPU it takes the interpreted one; the modules that asked for one."""
    original, modules = pk.resolve, set()

    def resolve(backend, *, faster, obstacle=None):
        if backend != "auto" or not faster or obstacle:
            return original(backend, faster=faster, obstacle=obstacle)
        modules.add(sys._getframe(1).f_globals["__name__"].rsplit(".", 1)[-1])
        return "interpret"

    for module in [pk, *(sys.modules[f"pallas_kernels.{m.name}"] for m in pkgutil.iter_modules(pk.__path__))]:
        if hasattr(module, "resolve"):
            monkeypatch.setattr(module, "resolve", resolve)
    jax.clear_caches()  # what was traced before, and afterwards what is traced now
    yield modules
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_ppo_learns_alike_from_interpreted_kernels(executor, start, alone, interpreted):
    program = scale.data_parallel(CONFIG, random_market(), DEVICES, executor)
    state, metrics = program.advance(jax.tree.map(jnp.copy, start), None, 1, _actions())
    assert {"sequential", "recurrence", "entropy", "policy_loss"} <= interpreted
    expected, wanted = alone
    for name in (
        "actor_opt",
        "critic_opt",
    ):  # their first moments are the gradient: Adam turns rounding into whole steps
        gradient, other = (ravel_pytree(getattr(s.learner, name)[1][0].mu)[0] for s in (state, expected))
        np.testing.assert_allclose(gradient, other, atol=1e-4 * np.abs(other).max())
    for name in ("reward", "equity", "cost", "exposure", "entropy", "value_loss", "episodes"):
        np.testing.assert_allclose(getattr(metrics, name), getattr(wanted, name), rtol=1e-4)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_perceptrons_gradient(executor):
    """In bfloat16, whose gradients agree within 2e-2 of an array's largest entry."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    layers = [(normal(6, 16) / 3, normal(16)), (normal(16, 2) / 4, normal(2))]
    inputs, targets = normal(64, 6), normal(64, 2)

    def gradient(layers, inputs, targets, backend):
        loss = lambda layers: jnp.mean((pk.mlp(layers, inputs, backend=backend) - targets) ** 2)  # noqa: E731
        return jax.grad(loss)(layers)

    _compare(executor, gradient, (layers, inputs, targets), 2e-2)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_dueling_losss_gradient(executor):
    config = jt.DQNConfig(shared_hidden=(8,), head_hidden=32)
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    batch = dqn.Batch(normal(32, 8), forced(32), normal(32), jnp.full(32, 0.9), normal(32, 8))
    dueling, target = (
        random_weights(lambda: jt.init_dqn(jax.random.key(0), config, 5), seed).dueling for seed in (0, 1)
    )

    def gradient(dueling, batch, weights, backend):
        settings = dataclasses.replace(config, backend=backend)
        loss = lambda dueling: dqn.td_loss(dueling, target, batch, weights, config.hypers, settings)[0]  # noqa: E731
        return jax.grad(loss)(dueling)

    _compare(executor, gradient, (dueling, batch, normal(32) ** 2), 1e-5)


def _compare(executor, gradient, arguments, tolerance):
    """The mean of the devices' gradients by the interpreted kernel, with XLA's on one device."""
    mapped = scale.Team.of(executor, DEVICES).map(
        lambda *xs: jax.lax.pmean(gradient(*xs, backend="interpret"), scale.AXIS),
        (scale.WHOLE, scale.SHARE, scale.SHARE),
        scale.WHOLE,
    )
    expected = jax.jit(lambda *xs: gradient(*xs, backend="xla"))(*arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance * max(np.abs(b).max(), 1e-6)),
        mapped(*arguments),
        expected,
    )


def _actions():
    return forced(1, LENGTH, EPISODES)
