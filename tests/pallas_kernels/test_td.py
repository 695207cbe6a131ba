"""Bellman targets and the Huber loss: interpreted kernel and XLA against arithmetic and NumPy float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk

both = pytest.mark.parametrize("backend", ["interpret", "xla"])


@both
def test_targets_are_reward_plus_discounted_maximum(backend):
    random = np.random.default_rng(0)
    q, rewards, discounts = random.normal(size=(37, 11)), random.normal(size=37), random.uniform(size=37)
    args = (jnp.float32(q), jnp.float32(rewards), jnp.float32(discounts))
    y = pk.bellman_target(*args, backend=backend)
    np.testing.assert_allclose(y, rewards + discounts * q.max(axis=1), atol=1e-6)  # one product and sum in float32


@both
def test_double_q_reads_the_target_at_the_online_maximum_and_the_first_of_ties(backend):
    target_q = jnp.array([[10.0, 20.0, 30.0], [1.0, 2.0, 3.0]])
    online_q = jnp.array([[0.0, 7.0, 7.0], [9.0, 0.0, 0.0]])
    y = pk.bellman_target(target_q, jnp.array([1.0, 0.0]), jnp.array([0.5, 1.0]), online_q, backend=backend)
    np.testing.assert_array_equal(y, [11.0, 1.0])


@both
def test_targets_have_no_gradient(backend):
    ones = jnp.ones(2)
    grad = jax.grad(lambda q: jnp.sum(pk.bellman_target(q, ones, ones, backend=backend)))(jnp.ones((2, 11)))
    np.testing.assert_array_equal(grad, jnp.zeros((2, 11)))


@both
def test_huber_loss_error_and_gradient_at_the_kink_and_on_both_sides(backend):
    # q[taken] - y = 0.5, 2 (delta exactly), -2, 5, 0;  delta = 2, so e^2 / 2 up to 2 and 2 (|e| - 1) beyond
    q = jnp.zeros((5, 3)).at[:, 1].set(jnp.array([0.5, 2.0, -2.0, 5.0, 0.0]))
    weights = jnp.array([1.0, 1.0, 2.0, 0.5, 3.0])

    def loss(q):
        return pk.huber_td_loss(q, jnp.ones(5, jnp.int32), jnp.zeros(5), 2.0, weights, backend=backend)

    value, error = loss(q)
    np.testing.assert_allclose(value, [0.125, 2.0, 4.0, 4.0, 0.0])
    np.testing.assert_allclose(error, q[:, 1])
    grad = jax.grad(lambda q: jnp.sum(loss(q)[0]))(q)
    np.testing.assert_allclose(grad, jnp.zeros((5, 3)).at[:, 1].set(jnp.array([0.5, 2.0, -4.0, 1.0, 0.0])))


@both
def test_td_error_carries_no_gradient(backend):
    args = (jnp.zeros(2, jnp.int32), jnp.ones(2))
    grad = jax.grad(lambda q: jnp.sum(pk.huber_td_loss(q, *args, backend=backend)[1]))(jnp.ones((2, 3)))
    np.testing.assert_array_equal(grad, jnp.zeros((2, 3)))
