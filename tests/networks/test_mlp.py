"""Actor, critic and curiosity model: SPEC's sizes and names, and the two ways through the first layer."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade import networks
from jaxrl_trade.networks.weights import to_tensors

# SPEC section 9: layer -> [out, in]
SHAPES = {
    "actor": {"policy_layer_0": (128, 54), "policy_layer_1": (64, 128), "policy_output": (45, 64)},
    "critic": {
        "value_layer_0": (512, 54),
        "value_layer_1": (384, 512),
        "value_layer_2": (256, 384),
        "value_layer_3": (128, 256),
        "value_layer_4": (64, 128),
        "value_output": (1, 64),
    },
    "curiosity": {"forward_layer_0": (64, 35), "forward_output": (32, 64)},
}
PARAMETERS = {"actor": 18_221, "critic": 364_929, "curiosity": 4_384}


@pytest.fixture(scope="module")
def params():
    return jax.jit(jt.init_ppo, static_argnums=1)(jax.random.key(0), jt.PPOConfig())


@pytest.mark.parametrize("name", SHAPES)
def test_parameter_counts_names_and_shapes_are_the_plans(params, name):
    tensors = to_tensors(getattr(params, name))
    expected = {f"{layer}.weight": shape for layer, shape in SHAPES[name].items()}
    expected |= {f"{layer}.bias": shape[:1] for layer, shape in SHAPES[name].items()}
    assert {k: v.shape for k, v in tensors.items()} == expected
    assert sum(v.size for v in tensors.values()) == PARAMETERS[name]


@pytest.mark.parametrize(("name", "scale"), [("policy_layer_0", 2**0.5), ("policy_output", 0.01)])
def test_weights_begin_orthogonal(params, name, scale):
    kernel = np.asarray(params.actor[name]["kernel"], np.float64)
    small = kernel if kernel.shape[0] < kernel.shape[1] else kernel.T  # its rows are the orthogonal ones
    np.testing.assert_allclose(small @ small.T, scale**2 * np.eye(len(small)), atol=1e-5)
    assert not np.any(params.actor[name]["bias"])


@pytest.mark.parametrize(("init", "config"), [(jt.init_ppo, jt.PPOConfig()), (jt.init_dqn, jt.DQNConfig())])
def test_a_vmap_over_keys_decomposes_one_matrix_at_a_time(init, config):
    # in batches, two layers' decompositions wait for each other for ever on a CPU with two cores
    keys = jax.random.split(jax.random.key(0), (2, 3))
    program = jax.jit(jax.vmap(jax.vmap(lambda key: init(key, config)))).lower(keys)
    operands = re.findall(r"@\w*geqrf\w*\(.*: \(tensor<([0-9x]+)xf", program.as_text())
    assert operands
    assert all(operand.count("x") == 1 for operand in operands), operands  # 512x384, without a third dimension
    stacked = program.compile()(keys)
    alone = jax.jit(init, static_argnums=1)(keys[1, 2], config)
    for weights, expected in zip(jax.tree.leaves(stacked), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(weights[1, 2], expected, rtol=0, atol=1e-6)  # orthogonal: entries of at most sqrt(2)


@pytest.mark.parametrize("slope", [0.01, 0.0])
def test_the_actor_is_dense_layers_with_leaky_relu_between(params, slope):
    obs = np.random.default_rng(1).standard_normal((5, 54))
    x = obs
    for name in SHAPES["actor"]:
        layer = params.actor[name]
        x = x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)
        if name != "policy_output":
            x = np.where(x > 0, x, slope * x)
    actual = networks.actor(jt.PPOConfig(negative_slope=slope)).evaluate(params.actor, jnp.asarray(obs))
    np.testing.assert_allclose(actual, x, rtol=1e-4, atol=1e-6)  # float32


@pytest.mark.parametrize(
    ("compute_dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)]
)  # of the largest logit; bfloat16 keeps 8 bits
def test_projecting_the_features_first_changes_only_rounding(params, compute_dtype, tolerance):
    actor = networks.actor(jt.PPOConfig(compute_dtype=compute_dtype))
    obs = jax.random.normal(jax.random.key(2), (9, 54))
    whole = networks.actor(jt.PPOConfig()).evaluate(params.actor, obs)
    split = actor.from_projection(params.actor, actor.project(params.actor, obs[:, :51]), obs[:, 51:])
    assert float(jnp.abs(split - whole).max()) <= tolerance * float(jnp.abs(whole).max())


def test_equal_configs_share_one_module():
    assert networks.actor(jt.PPOConfig()) is networks.actor(jt.PPOConfig(n_episodes=4))
