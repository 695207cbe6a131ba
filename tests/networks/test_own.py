"""A network of the user's own goes where the package's goes: with the package's module in it, everything comes out the same."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.agents import dqn
from jaxrl_trade.config import DQNConfig
from jaxrl_trade.networks import MLP, Dueling
from jaxrl_trade.networks.weights import from_tensors, to_tensors
from jaxrl_trade.rollout import sequential
from tests.train import tiny

FLOAT = jnp.float32


def perceptron(outputs: int) -> nn.Module:
    """The package's actor, or its critic, as if it were the user's."""
    prefix, scale = ("value", 1.0) if outputs == 1 else ("policy", 0.01)
    return MLP(prefix, (8,), outputs, scale, 0.01, "float32", FLOAT)


def dueling(outputs: int) -> nn.Module:
    return Dueling((8,), 4, outputs, 0.01, "float32", "xla", FLOAT)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.tanh(nn.LayerNorm()(nn.Dense(6)(x)))


class Nested(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = Block()(x)
        return nn.Dense(self.outputs, use_bias=False)(x) * self.param("gain", nn.initializers.ones, (1,))


def test_ppo_collects_and_learns_with_it_as_with_the_packages_own() -> None:
    market, ours = tiny.market(), tiny.config()
    theirs = dataclasses.replace(ours, network=perceptron)
    key = jax.random.key(3)
    (a, rows_a), (b, rows_b) = (jax.jit(jt.make_train_ppo(config, market))(key) for config in (ours, theirs))
    for x, y in zip(jax.tree.leaves(a.params.actor), jax.tree.leaves(b.params.actor), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)  # another order of float32 sums, four updates
    np.testing.assert_allclose(rows_a.explained_variance, rows_b.explained_variance, atol=1e-3)


def test_dqn_has_the_same_loss_and_gradient_with_it() -> None:
    rng = np.random.default_rng(0)
    ours = DQNConfig.net(shared_hidden=(8,), head_hidden=4, backend="xla", double=False)
    network = jt.init_dqn(jax.random.key(0), ours, 5).dueling
    target = jax.tree.map(lambda x: x + 0.1, network)
    obs, next_obs = rng.normal(size=(2, 16, 8)).astype(np.float32)
    batch = dqn.Batch(
        obs=jnp.asarray(obs),
        actions=jnp.asarray(rng.integers(45, size=16), jnp.int32),
        rewards=jnp.asarray(rng.normal(size=16), FLOAT),
        discounts=jnp.full(16, 0.9),
        next_obs=jnp.asarray(next_obs),
    )
    weights = jnp.asarray(rng.uniform(0.5, 1.0, 16), FLOAT)

    def loss(config: DQNConfig) -> Any:
        return jax.value_and_grad(dqn.td_loss, has_aux=True)(network, target, batch, weights, config.hypers, config)

    (a, errors_a), gradient_a = loss(ours)
    (b, errors_b), gradient_b = loss(dataclasses.replace(ours, network=dueling))
    np.testing.assert_allclose([a, *errors_a], [b, *errors_b], rtol=1e-5, atol=1e-6)
    for x, y in zip(jax.tree.leaves(gradient_a), jax.tree.leaves(gradient_b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_weights_of_any_layers_go_out_and_come_back(tmp_path: Path) -> None:
    config = tiny.config(network=Nested)
    params = jt.init_ppo(jax.random.key(0), config, tiny.FEATURES)
    tensors = to_tensors(params.actor)
    assert tensors["Block_0.Dense_0.weight"].shape == (6, tiny.FEATURES + 3)  # [out, in]
    assert tensors["gain"].shape == (1,)
    assert set(tensors) >= {"Block_0.LayerNorm_0.scale", "Dense_0.weight"}
    jt.save_weights(tmp_path, params)
    again = jt.load_weights(tmp_path, jax.tree.map(jnp.zeros_like, params))
    assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True))
    assert jax.tree.structure(from_tensors(tensors, params.actor)) == jax.tree.structure(params.actor)


def test_what_the_fused_rollout_cannot_take_goes_to_the_scan_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    market, config = tiny.market(), tiny.config(network=Nested)
    params = jt.init_ppo(jax.random.key(0), config, tiny.FEATURES)
    state = jt.env.reset(market, config.env, jnp.zeros(tiny.EPISODES, jnp.int32))
    sequential._log_once.cache_clear()
    with caplog.at_level(logging.INFO):
        jax.eval_shape(lambda: jt.collect_ppo(params, market, state, jax.random.key(1), config, backend="interpret"))
    lines = [line for line in caplog.messages if "not by the fused kernel" in line]
    assert lines == ["episodes are collected by a scan, not by the fused kernel: the network is the user's own"]


class Stateful(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(self.outputs)(nn.BatchNorm(use_running_average=True)(x))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda outputs: 3, r"network <lambda> makes a int; it must make a flax.linen.Module"),
        (
            lambda outputs: nn.Dense(2),
            r"network <lambda> gives \(2,\) for one observation \(8,\); it must give \(45,\)",
        ),
        (Stateful, r"network Stateful gives \(45,\) .* and keeps batch_stats; it must .* keep nothing but params"),
        (lambda outputs: nn.Dense("x"), r"network <lambda> fails: TypeError"),
    ],
)
def test_a_network_that_does_not_fit_is_named(network: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jt.init_ppo(jax.random.key(0), tiny.config(network=network), tiny.FEATURES)


def test_a_network_must_be_callable() -> None:
    with pytest.raises(ValueError, match="network = 3 must be a flax"):
        tiny.config(network=3)
