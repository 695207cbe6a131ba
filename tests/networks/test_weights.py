"""Weights as safetensors: exact both ways, and refused by name when something does not fit."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxrl_trade as jt

CONFIG = jt.PPOConfig(actor_hidden=(8, 4), critic_hidden=(8,), curiosity_hidden=(4,))


@pytest.fixture(scope="module")
def params():
    return jt.init_ppo(jax.random.key(0), CONFIG)


def test_a_round_trip_is_exact(params, tmp_path):
    jt.save_weights(tmp_path, params)
    other = jax.tree.map(lambda x: x + 1, params)
    jax.tree.map(np.testing.assert_array_equal, jt.load_weights(tmp_path, other), params)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "actor.safetensors",
        "critic.safetensors",
        "curiosity.safetensors",
    ]


def test_a_file_holds_the_transposed_kernel(params, tmp_path):
    jt.save_weights(tmp_path, params)
    weight = load_file(tmp_path / "actor.safetensors")["policy_layer_0.weight"]
    np.testing.assert_array_equal(weight, np.asarray(params.actor["policy_layer_0"]["kernel"]).T)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("policy_output.bias"), "lacks policy_output.bias"),
        (lambda t: t.update(extra=np.zeros(1)), "holds extra"),
        (
            lambda t: t.update({"policy_layer_1.weight": np.zeros((8, 4))}),
            r"policy_layer_1.weight .* has shape \(8, 4\), this network wants \(4, 8\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(params, tmp_path, change, message):
    jt.save_weights(tmp_path, params)
    tensors = load_file(tmp_path / "actor.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "actor.safetensors")
    with pytest.raises(ValueError, match=message):
        jt.load_weights(tmp_path, params)


def test_a_missing_or_truncated_file_is_named(params, tmp_path):
    paths = jt.save_weights(tmp_path, params)
    paths[1].write_bytes(paths[1].read_bytes()[:40])
    with pytest.raises(OSError, match=r"critic\.safetensors is no complete safetensors file"):
        jt.load_weights(tmp_path, params)
    paths[1].unlink()
    with pytest.raises(OSError, match=r"critic\.safetensors does not exist"):
        jt.load_weights(tmp_path, params)


def test_the_dtype_is_that_of_like(params, tmp_path):
    jt.save_weights(tmp_path, params)
    half = jax.tree.map(lambda x: x.astype("bfloat16"), params)
    assert {x.dtype.name for x in jax.tree.leaves(jt.load_weights(tmp_path, half))} == {"bfloat16"}
    assert dataclasses.is_dataclass(half)


def test_a_file_that_cannot_be_written_is_named(params, tmp_path):
    (tmp_path / "critic.safetensors").mkdir()
    with pytest.raises(OSError, match=r"critic\.safetensors cannot be written"):
        jt.save_weights(tmp_path, params)
