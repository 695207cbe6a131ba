"""Discounted sums, interpreted and as XLA, against the sum's definition in NumPy float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk


def random_steps(length, lanes, seed=0):
    rng = np.random.default_rng(seed)
    discounts = np.where(rng.random((length, lanes)) < 0.1, 0.0, rng.uniform(0.8, 1.0, (length, lanes)))
    return rng.normal(size=(length, lanes)).astype(np.float32), discounts.astype(np.float32)


def from_the_definition(x, discounts):
    """Sum over k of x_k times the product of the discounts from t to k - 1."""
    x, discounts = x.astype(np.float64), discounts.astype(np.float64)
    expected = np.zeros(x.shape)
    for t in range(len(x)):
        weights = np.cumprod(np.concatenate([np.ones_like(x[:1]), discounts[t:-1]]), axis=0)
        expected[t] = np.sum(weights * x[t:], axis=0)
    return expected


@pytest.mark.parametrize("backend", ["interpret", "xla"])
@pytest.mark.parametrize(("length", "lanes"), [(1, 3), (45, 33)])  # no whole group, three of them
def test_sums_are_those_of_the_definition(length, lanes, backend):
    x, discounts = random_steps(length, lanes)
    actual = jax.jit(pk.discounted_sums, static_argnums=2)(x, discounts, backend)
    expected = from_the_definition(x, discounts)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())  # float32


def test_its_derivative_is_an_error_that_names_xla():
    x, discounts = map(jnp.asarray, random_steps(5, 2))

    def total(x, backend):
        return jnp.sum(pk.discounted_sums(x, discounts, backend))

    with pytest.raises(ValueError, match="has derivatives only with backend='xla'"):
        jax.grad(total)(x, "interpret")
    ones = jax.grad(total)(x, "xla")[0]  # x_0 counts once, in y_0
    np.testing.assert_array_equal(ones, np.ones(2))


@pytest.mark.parametrize(
    ("x", "discounts"),
    [((4, 3), (4, 2)), ((4,), (4,)), ((4, 3, 1), (4, 3, 1)), ((4, 3), ()), ((0, 3), (0, 3)), ((4, 0), (4, 0))],
)
def test_shapes_that_do_not_fit_are_named(x, discounts):
    with pytest.raises(ValueError, match=r"x has shape .* and discounts .*; both must be \[L, N\]"):
        pk.discounted_sums(jnp.zeros(x), jnp.zeros(discounts), "interpret")


def test_a_number_for_the_discounts_is_refused_in_words():
    with pytest.raises(ValueError, match=r"and discounts \(\); both must be"):
        pk.discounted_sums(jnp.zeros((4, 3)), 0.9)


@pytest.mark.parametrize("dtypes", [(jnp.bfloat16, jnp.float32), (jnp.float32, jnp.bfloat16)])
def test_another_precision_goes_to_xla_or_is_refused_by_name(dtypes):
    x, discounts = (jnp.ones((3, 2), dtype) for dtype in dtypes)
    with pytest.raises(ValueError, match=r"x is .* and discounts .*, not float32.*use backend='xla'"):
        pk.discounted_sums(x, discounts, "interpret")
