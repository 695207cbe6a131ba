"""The fused perceptron, interpreted, against NumPy float64 of the same formula and rounding."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import pallas_kernels as pk
from pallas_kernels import mlp_plan
from tests.pallas_kernels import cases

CRITIC = (54, 512, 384, 256, 128, 64, 1)
ACTOR = (54, 128, 64, 45)
SLOPE = 0.01
TOLERANCE = {"bfloat16": 2e-2, "tf32": 1e-5}  # of the largest entry; interpreted on a CPU, TF32 is plain float32


def random_layers(sizes, seed=0):
    random = np.random.default_rng(seed)
    shapes = itertools.pairwise(sizes)
    layers = [(random.normal(size=(a, b)) * (2 / a) ** 0.5, 0.1 * random.normal(size=b)) for a, b in shapes]
    return [(w.astype(np.float32), b.astype(np.float32)) for w, b in layers]


def random_inputs(batch, width, seed=1):
    return np.random.default_rng(seed).normal(size=(batch, width)).astype(np.float32)


def rounded(x, products):
    return x.astype(ml_dtypes.bfloat16).astype(np.float64) if products == "bfloat16" else x.astype(np.float64)


def formula(layers, inputs, grad, products, slope=SLOPE):
    """Outputs, gradients of sum(grad * outputs) at every layer and at the inputs; operands of products rounded."""
    a, operands, sums = rounded(inputs, products), [], []
    for w, b in layers:
        operands.append(a)
        sums.append(a @ rounded(w, products) + b)
        a = rounded(np.where(sums[-1] > 0, sums[-1], slope * sums[-1]), products)
    dz, gradients = rounded(grad, products), []
    for (w, _), a, z in reversed(list(zip(layers, operands, [None, *sums[:-1]], strict=True))):
        gradients.append((a.T @ dz, dz.sum(axis=0)))
        da = dz @ rounded(w, products).T
        dz = da if z is None else rounded(np.where(z > 0, da, slope * da), products)
    return sums[-1], tuple(reversed(gradients)), da


def value_and_vjp(layers, inputs, grad, products, backend="interpret", slope=SLOPE):
    @jax.jit
    def run(layers, inputs, grad):
        y, vjp = jax.vjp(
            lambda *a: pk.mlp(*a, negative_slope=slope, products=products, backend=backend), layers, inputs
        )
        return y, *vjp(grad)

    return run(layers, inputs, grad)


def agree(actual, expected, products):
    y, layers, inputs = actual
    cases.assert_close((y, tuple(layers), inputs), expected, TOLERANCE[products])


@pytest.mark.parametrize(
    ("sizes", "batch", "products"),
    [
        (CRITIC, 70, "bfloat16"),  # two tiles, the second ragged
        (ACTOR, 1, "bfloat16"),
        (ACTOR, 129, "tf32"),
        ((7, 40, 3), 64, "tf32"),  # widths that are no multiples of 16
        ((5, 3), 9, "bfloat16"),  # no hidden layer
        ((130, 200, 512, 20), 33, "tf32"),  # inputs in pieces, sums in two passes
    ],
)
def test_outputs_and_gradients_agree_with_the_formula(sizes, batch, products):
    layers, inputs = random_layers(sizes), random_inputs(batch, sizes[0])
    grad = random_inputs(batch, sizes[-1], seed=2)
    agree(value_and_vjp(layers, inputs, grad, products), formula(layers, inputs, grad, products), products)


@pytest.mark.parametrize("slope", [0.0, 1])
def test_the_slope_below_zero_is_the_one_asked_for(slope):
    layers, inputs, grad = random_layers((6, 32, 2)), random_inputs(20, 6), random_inputs(20, 2, seed=2)
    expected = formula(layers, inputs, grad, "tf32", slope)
    agree(value_and_vjp(layers, inputs, grad, "tf32", slope=slope), expected, "tf32")


def test_gathered_inputs_are_rows_of_the_table_followed_by_values():
    layers, table, values = random_layers(ACTOR), random_inputs(40, 51), random_inputs(100, 3, seed=2)
    row = np.random.default_rng(3).integers(-5, 45, size=100).astype(np.int32)  # outside counts as the nearest inside
    inside, grad = np.clip(row, 0, 39), random_inputs(100, 45, seed=4)
    y, gradients, dx = formula(layers, np.concatenate([table[inside], values], axis=1), grad, "bfloat16")
    to_table = np.zeros(table.shape)
    np.add.at(to_table, inside, dx[:, :51])
    for backend in ("interpret", "xla"):

        @jax.jit
        def run(layers, table, values, backend=backend):
            def f(layers, table, values):
                return pk.mlp(layers, pk.Gathered(table, row, values), negative_slope=SLOPE, backend=backend)

            y, vjp = jax.vjp(f, layers, table, values)
            return y, *vjp(grad)

        actual_y, actual_layers, *rest = run(layers, table, values)
        expected = (y, gradients, (to_table, dx[:, 51:]))
        cases.assert_close((actual_y, tuple(actual_layers), tuple(rest)), expected, TOLERANCE["bfloat16"])


@pytest.mark.parametrize("backend", ["interpret", "xla"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_narrow_integers_choose_rows_of_a_longer_table(dtype, backend):
    layers, table = random_layers((5, 3)), random_inputs(300, 5)
    row = np.array([0, 7, 127, -1 if dtype == np.int8 else 255]).astype(dtype)

    @jax.jit
    def run(layers, table):
        y, vjp = jax.vjp(
            lambda table: pk.mlp(layers, pk.Gathered(table, row, None), products="tf32", backend=backend), table
        )
        return y, *vjp(jnp.ones_like(y))

    y, gradient = run(layers, table)
    rows = np.maximum(row.astype(int), 0)
    expected, _, da = formula(layers, table[rows], np.ones((4, 3), np.float32), "tf32")
    at_table = np.zeros((300, 5))
    np.add.at(at_table, rows, da)
    cases.assert_close((y, gradient), (expected, at_table))


def test_the_contract_agrees_with_the_formula_and_auto_takes_it_without_a_gpu():
    layers, inputs, grad = random_layers(ACTOR), random_inputs(30, 54), random_inputs(30, 45, seed=2)
    for products in ("bfloat16", "tf32"):
        expected = formula(layers, inputs, grad, products)
        agree(value_and_vjp(layers, inputs, grad, products, backend="auto"), expected, products)


def test_a_table_alone_is_enough():
    layers, table, row = random_layers((8, 16, 2)), random_inputs(9, 8), np.array([3, 8, 0], np.int32)
    actual = pk.mlp(layers, pk.Gathered(table, row, None), backend="interpret")
    expected, *_ = formula(layers, table[row], np.zeros((3, 2)), "bfloat16")
    cases.assert_close(actual, expected, TOLERANCE["bfloat16"])


def test_vmap_over_layers_gives_each_members_gradients():
    inputs = random_inputs(20, 6)
    members = [random_layers((6, 32, 2), seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *members)
    gradient = jax.grad(lambda layers: jnp.sum(pk.mlp(layers, inputs, products="tf32", backend="interpret")))
    actual = jax.jit(jax.vmap(gradient))(stacked)
    for i, layers in enumerate(members):
        _, expected, _ = formula(layers, inputs, np.ones((20, 2)), "tf32")
        cases.assert_close(tuple(jax.tree.map(lambda x, i=i: x[i], actual)), expected, TOLERANCE["tf32"])


def test_forward_mode_and_second_derivatives_are_errors_that_name_xla():
    layers, inputs = random_layers((6, 16, 2)), jnp.asarray(random_inputs(4, 6))

    def f(x, backend="interpret"):
        return jnp.sum(pk.mlp(layers, x, products="tf32", backend=backend) ** 2)

    with pytest.raises(ValueError, match=r"forward-mode.*backend='xla'"):
        jax.jvp(f, (inputs,), (inputs,))
    with pytest.raises(ValueError, match=r"second derivatives.*backend='xla'"):
        jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2))(inputs)
    assert np.any(jax.jvp(jax.grad(lambda x: f(x, "xla")), (inputs,), (inputs,))[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": []}, "layers is empty"),
        ({"layers": random_layers((5, 3))}, r"layers\[0\] has a kernel of shape \(5, 3\); wanted \[6, out\]"),
        ({"layers": [*random_layers((6, 4)), *random_layers((5, 2))]}, r"layers\[1\] .* the width of layers\[0\]"),
        ({"layers": [(np.zeros((6, 2), np.float32), np.zeros(3, np.float32))]}, r"a bias of shape \(3,\)"),
        ({"inputs": np.zeros((0, 6), np.float32)}, r"inputs have shape \(0, 6\)"),
        ({"inputs": pk.Gathered(np.zeros((4, 6)), np.zeros(2), None)}, r"inputs.row is float64\[2\]"),
        ({"inputs": pk.Gathered(np.zeros((4, 3)), np.zeros(2, int), np.zeros((3, 3)))}, r"wanted \[2, V\]"),
        ({"negative_slope": 2.0}, r"negative_slope = 2.0; wanted a Python number in \[0, 1\]"),
        ({"products": "float32"}, "products = 'float32' is unknown"),
        ({"layers": random_layers((6, 700, 2)), "backend": "interpret"}, "6 x 700, wider than 512.*use backend='xla'"),
        ({"inputs": np.zeros((2, 6), np.float16), "backend": "interpret"}, "dtype float16"),
        (
            {"layers": random_layers((6, 2)) + [(np.zeros((2, 0)), np.zeros(0))], "backend": "interpret"},
            r"layers\[1\] is 2 x 0, empty.*use backend='xla'",
        ),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    arguments = {"layers": random_layers((6, 4, 2)), "inputs": np.zeros((2, 6), np.float32)} | change
    with pytest.raises(ValueError, match=message):
        pk.mlp(arguments.pop("layers"), arguments.pop("inputs"), **arguments)


@pytest.mark.parametrize("width", [1, 16, 17, 45, 64, 65, 192, 384, 512])
def test_pieces_cover_a_padded_width_with_powers_of_two(width):
    padded = mlp_plan.padded_width(width)
    pieces = mlp_plan.pieces(padded)
    assert [start for start, _ in pieces] == list(np.cumsum([0, *(size for _, size in pieces)])[:-1])
    assert sum(size for _, size in pieces) == padded >= width
    assert all(size & (size - 1) == 0 and size >= 16 for _, size in pieces)
    groups = mlp_plan.passes(padded, 256)
    assert [piece for group in groups for piece in group] == list(pieces)
    assert all(sum(size for _, size in group) <= 256 for group in groups)
