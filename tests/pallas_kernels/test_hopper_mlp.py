"""The perceptron as it goes on a Hopper GPU, from the public function on, simulated; see test_hopper.py."""

from __future__ import annotations

import importlib

import jax
import numpy as np
import pytest

import pallas_kernels as pk
from pallas_kernels import backend, hopper, mlp_layers
from tests.pallas_kernels import cases, test_mlp
from tests.pallas_kernels.lower_for_cuda import abstract_h200
from tests.pallas_kernels.test_hopper import multiply_from_shared_memory, simulated, wide_tree

pytestmark = simulated
SIZES = (54, 128, 128, 64, 1)
TOLERANCE = 2e-2  # of the largest entry


@pytest.fixture(autouse=True)
def simulated_hopper(monkeypatch):
    """A GPU whose every launch is interpreted, with few blocks, where a batch is large from 200 rows on."""
    launches = []

    def interpreted(launch, **more):
        def run(*args, name, **options):
            launches.append(name)
            return launch(*args, name=name, **{**options, **more})

        return run

    monkeypatch.setattr(backend, "capability", lambda: 9.0)
    monkeypatch.setattr(hopper, "multiprocessors", lambda: 4)
    monkeypatch.setattr(hopper, "launch", interpreted(hopper.launch, interpret=True))
    monkeypatch.setattr(mlp_layers, "launch", interpreted(mlp_layers.launch, interpret=True))
    for module in (importlib.import_module("pallas_kernels.mlp"), mlp_layers):
        monkeypatch.setattr(module, "_HOPPERS_ROWS", 200)
    with abstract_h200():
        yield launches


@pytest.mark.parametrize("slope", [1, test_mlp.SLOPE])
def test_outputs_and_gradients_agree_with_the_formula(simulated_hopper, slope):
    layers, inputs = test_mlp.random_layers(SIZES), test_mlp.random_inputs(210, SIZES[0])
    grad = test_mlp.random_inputs(210, 1, seed=2)
    y, to_layers, to_inputs = test_mlp.value_and_vjp(layers, inputs, grad, "bfloat16", backend="pallas", slope=slope)
    expected = test_mlp.formula(layers, inputs, grad, "bfloat16", slope)
    cases.assert_close((y, tuple(to_layers), to_inputs), expected, TOLERANCE)
    assert {"mlp_walk_forward", "mlp_walk_backward", "mlp_walk_first", "mlp_weight_sums"} < set(simulated_hopper)


def test_values_agree_with_the_formula(simulated_hopper, monkeypatch):
    multiply_from_shared_memory(monkeypatch)
    layers, table = test_mlp.random_layers(SIZES), test_mlp.random_inputs(50, 51)
    values, row = test_mlp.random_inputs(210, 3, seed=2), np.random.default_rng(5).integers(-3, 53, size=210)
    y = pk.mlp(layers, pk.Gathered(table, row, values), backend="pallas")
    inputs = np.concatenate([table[np.clip(row, 0, 49)], values], axis=1)
    cases.assert_close(y, test_mlp.formula(layers, inputs, np.ones((210, 1)), "bfloat16")[0], TOLERANCE)
    assert simulated_hopper == ["mlp_value"]


def test_a_vmap_over_networks_gives_each_its_own_gradients(simulated_hopper):
    networks = [test_mlp.random_layers(SIZES, seed) for seed in (0, 7)]
    inputs = test_mlp.random_inputs(70, 54)  # together enough rows for Hopper's kernels, and each alone too few
    gradient = jax.grad(lambda layers: (pk.mlp(layers, inputs, backend="pallas") ** 2).mean())
    together = jax.vmap(gradient)(jax.tree.map(lambda *x: np.stack(x), *networks))
    assert "mlp_walk_first" in simulated_hopper
    simulated_hopper.clear()
    for i, layers in enumerate(networks):
        alone = wide_tree(tuple(gradient(layers)))
        cases.assert_close(jax.tree.map(lambda x, i=i: x[i], tuple(together)), alone, TOLERANCE)
    assert not any(name.startswith("mlp_walk") for name in simulated_hopper)
