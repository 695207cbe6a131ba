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


def assert_close_by_norm(actual, expected, name=""):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(np.asarray(a, np.float64) - e) <= ACROSS_KINKS * np.linalg.norm(e), name


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
        assert_close_by_norm(actual, expected, f"B={batch}")


@pytest.mark.parametrize("slope", [1, test_mlp.SLOPE])
def test_many_rows_agree_with_the_formula(slope):
    """On Hopper these go to its own kernels, but for the narrow output."""
    (y, *actual), (expected_y, *expected) = run_and_formula(test_mlp.CRITIC, 66_001, "bfloat16", slope)
    cases.assert_close(y, expected_y, TOLERANCE["bfloat16"])
    assert_close_by_norm(actual, expected)


@pytest.mark.parametrize("sizes", [test_mlp.CRITIC, (40, 64, 1), (54, 512, 384, 64, 1)])
def test_values_of_many_rows_agree_with_the_formula(sizes):
    layers, table = test_mlp.random_layers(sizes), test_mlp.random_inputs(500, sizes[0] - 3)
    values, row = test_mlp.random_inputs(40_000, 3, seed=2), np.random.default_rng(5).integers(-3, 503, size=40_000)
    inputs = np.concatenate([table[np.clip(row, 0, 499)], values], axis=1)
    expected, *_ = test_mlp.formula(layers, inputs, np.ones((40_000, 1)), "bfloat16")
    y = jax.jit(lambda *a: pk.mlp(layers, pk.Gathered(*a), backend="pallas"))(table, row, values)
    cases.assert_close(y, expected, TOLERANCE["bfloat16"])


def test_a_vmap_over_networks_gives_each_its_own_gradients():
    networks = [test_mlp.random_layers(test_mlp.CRITIC, seed) for seed in (0, 7)]
    inputs = test_mlp.random_inputs(40_000, 54)  # together enough rows for Hopper's kernels, and each alone too few
    gradient = jax.jit(jax.grad(lambda layers: (pk.mlp(layers, inputs, backend="pallas") ** 2).mean()))
    together = jax.jit(jax.vmap(gradient))(jax.tree.map(lambda *x: np.stack(x), *networks))
    for i, layers in enumerate(networks):
        assert_close_by_norm(jax.tree.map(lambda x, i=i: x[i], together), gradient(layers))


def test_the_same_inputs_give_the_same_bits():
    layers, values = test_mlp.random_layers(test_mlp.CRITIC), test_mlp.random_inputs(20_001, 3)
    table, row = test_mlp.random_inputs(500, 51), np.random.default_rng(5).integers(0, 500, size=20_001)

    def total(layers):
        return pk.mlp(layers, pk.Gathered(table, row, values), backend="pallas").mean()

    run = jax.jit(jax.value_and_grad(total))
    for first, second in zip(jax.tree.leaves(run(layers)), jax.tree.leaves(run(layers)), strict=True):
        np.testing.assert_array_equal(first, second)
