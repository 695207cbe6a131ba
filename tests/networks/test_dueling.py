"""The dueling network: SPEC's sizes and names, the plain formula, and its file."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from jaxrl_trade import networks
from jaxrl_trade.config import DQNConfig
from jaxrl_trade.networks.weights import to_tensors

SHAPES = {
    "shared_layer_0": (256, 54),
    "shared_layer_1": (256, 256),
    "value_layer_0": (128, 256),
    "value_output": (1, 128),
    "advantage_layer_0": (128, 256),
    "advantage_output": (45, 128),
}


def some_params(seed: int = 0) -> networks.DQNParams:
    params = networks.init_dqn(jax.random.key(seed), DQNConfig())
    # biases begin at 0 and the advantages small: move all weights, so that every one of them shows in the outputs
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    moved = [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, moved)


def test_the_dueling_network_has_the_parameters_of_the_specification():
    tensors = to_tensors(networks.init_dqn(jax.random.key(0), DQNConfig()).dueling)
    expected = {f"{name}.weight": shape for name, shape in SHAPES.items()}
    expected |= {f"{name}.bias": shape[:1] for name, shape in SHAPES.items()}
    assert {name: value.shape for name, value in tensors.items()} == expected
    assert sum(value.size for value in tensors.values()) == 151_598


def test_q_is_the_value_plus_the_advantage_less_its_mean():
    params = some_params()
    obs = np.random.default_rng(0).standard_normal((7, 54)).astype(np.float32)
    w = {name: value.astype(np.float64) for name, value in to_tensors(params.dueling).items()}

    def layer(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def leaky(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x, 0.01 * x)

    x = leaky(layer("shared_layer_1", leaky(layer("shared_layer_0", obs))))
    value = layer("value_output", leaky(layer("value_layer_0", x)))
    advantage = layer("advantage_output", leaky(layer("advantage_layer_0", x)))
    expected = value + advantage - advantage.mean(axis=1, keepdims=True)
    network = networks.dueling(DQNConfig())
    # float32 sums of at most 256 products against float64
    np.testing.assert_allclose(network.evaluate(params.dueling, obs), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(network.apply({"params": params.dueling}, obs), expected, rtol=1e-4, atol=1e-4)


def test_the_first_layer_splits_into_a_part_of_the_bar_and_a_part_of_the_account():
    params, network = some_params().dueling, networks.dueling(DQNConfig())
    obs = jax.random.normal(jax.random.key(2), (3, 5, 54))
    split = network.from_projection(params, network.project(params, obs[..., :51]), obs[..., 51:])
    assert split.shape == (3, 5, 45)
    np.testing.assert_allclose(
        split, network.evaluate(params, obs), rtol=1e-4, atol=1e-4
    )  # float32, another order of sums


def test_the_gradient_goes_through_the_heads_into_every_layer():
    params, network = some_params().dueling, networks.dueling(DQNConfig())
    obs = jax.random.normal(jax.random.key(3), (9, 54))
    weight = jax.random.normal(jax.random.key(4), (9, 45))
    by_kernel = jax.grad(lambda p: jnp.sum(weight * network.evaluate(p, obs)))(params)
    plain = jax.grad(lambda p: jnp.sum(weight * network.apply({"params": p}, obs)))(params)
    for kernel, formula in zip(jax.tree.leaves(by_kernel), jax.tree.leaves(plain), strict=True):
        scale = float(jnp.abs(formula).max())
        np.testing.assert_allclose(kernel, formula, atol=1e-5 * scale)  # float32, of the largest entry


def test_weights_come_back_from_their_file_exactly(tmp_path):
    params = some_params()
    paths = networks.save_weights(tmp_path, params)
    assert sorted(p.name for p in paths) == ["curiosity.safetensors", "dueling.safetensors"]
    assert load_file(tmp_path / "dueling.safetensors")["advantage_output.weight"].shape == (45, 128)
    again = networks.load_weights(tmp_path, networks.init_dqn(jax.random.key(9), DQNConfig()))
    jax.tree.map(np.testing.assert_array_equal, again, params)
