"""On a GPU: the compiled perceptron agrees with NumPy float64, and runs repeat bitwise."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import pallas_kernels as pk
from tests.pallas_kernels import cases, test_mlp

pytestmark = pytest.mark.gpu
TOLERANCE = {"bfloat16": 2e-2, "tf32": 2e-3}  # of the largest entry
ACROSS_KINKS = 5e-2  # of the norm
SIZES = [test_mlp.CRITIC, test_mlp.ACTOR, (7, 40, 3), (5, 3), (130, 200, 512, 20)]


def run_and_formula(sizes, batch, products, slope):
    layers, inputs = test_mlp.random_layers(sizes), test_mlp.random_inputs(batch, sizes[0])
    grad = test_mlp.random_inputs(batch, sizes[-1], seed=2)
    y, to_layers, to_inputs = test_mlp.value_and_vjp(layers, inputs, grad, products, backend="pallas", slope=slope)
    return (y, tuple(to_layers), to_inputs), test_mlp.formula(layers, inputs, grad, products, slope)


@pytest.mark.parametrize("products", ["bfloat16", "tf32"])
@pytest.mark.parametrize("sizes", SIZES)
def test_compiled_linear_layers_agree_with_the_formula(sizes, products):
    """Without a kink in the activation every gradient is a smooth function of the sums."""
    for batch in (1, 70, 1000, 20_001):
        actual, expected = run_and_formula(sizes, batch, products, slope=1)
        cases.assert_close(actual, expected, TOLERANCE[products], f"B={batch} ")


@pytest.mark.parametrize("products", ["bfloat16", "tf32"])
@pytest.mark.parametrize("sizes", SIZES)
def test_compiled_leaky_layers_agree_with_the_formula(sizes, products):
    """A sum beside zero may take the other branch after rounding, in few units of few rows: gradients by their norm."""
    for batch in (70, 20_001):
        (y, *actual), (expected_y, *expected) = run_and_formula(sizes, batch, products, test_mlp.SLOPE)
        cases.assert_close(y, expected_y, TOLERANCE[products], f"B={batch} ")
        for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            assert np.linalg.norm(np.asarray(a, np.float64) - e) <= ACROSS_KINKS * np.linalg.norm(e), f"B={batch}"


def test_the_same_inputs_give_the_same_bits():
    layers, values = test_mlp.random_layers(test_mlp.CRITIC), test_mlp.random_inputs(20_001, 3)
    table, row = test_mlp.random_inputs(500, 51), np.random.default_rng(5).integers(0, 500, size=20_001)

    def total(layers):
        return pk.mlp(layers, pk.Gathered(table, row, values), backend="pallas").mean()

    run = jax.jit(jax.value_and_grad(total))
    for first, second in zip(jax.tree.leaves(run(layers)), jax.tree.leaves(run(layers)), strict=True):
        np.testing.assert_array_equal(first, second)
