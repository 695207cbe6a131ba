"""On a GPU: the compiled perceptron agrees with NumPy float64, and runs repeat bitwise."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import pallas_kernels as pk
from tests.pallas_kernels import cases, test_mlp

pytestmark = pytest.mark.gpu
TOLERANCE = {"bfloat16": 2e-2, "tf32": 2e-3}  # of the largest entry


@pytest.mark.parametrize("products", ["bfloat16", "tf32"])
@pytest.mark.parametrize("sizes", [test_mlp.CRITIC, test_mlp.ACTOR, (7, 40, 3), (5, 3), (130, 200, 512, 20)])
def test_compiled_outputs_and_gradients_agree_with_the_formula(sizes, products):
    layers = test_mlp.random_layers(sizes)
    for batch in (1, 70, 1000, 20_001):
        inputs = test_mlp.random_inputs(batch, sizes[0])
        grad = test_mlp.random_inputs(batch, sizes[-1], seed=2)
        expected = test_mlp.formula(layers, inputs, grad, products)
        y, to_layers, to_inputs = test_mlp.value_and_vjp(layers, inputs, grad, products, backend="pallas")
        cases.assert_close((y, tuple(to_layers), to_inputs), expected, TOLERANCE[products], f"B={batch} ")


def test_the_same_inputs_give_the_same_bits():
    layers, values = test_mlp.random_layers(test_mlp.CRITIC), test_mlp.random_inputs(20_001, 3)
    table, row = test_mlp.random_inputs(500, 51), np.random.default_rng(5).integers(0, 500, size=20_001)

    def total(layers):
        return pk.mlp(layers, pk.Gathered(table, row, values), backend="pallas").mean()

    run = jax.jit(jax.value_and_grad(total))
    for first, second in zip(jax.tree.leaves(run(layers)), jax.tree.leaves(run(layers)), strict=True):
        np.testing.assert_array_equal(first, second)
