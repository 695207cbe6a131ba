"""The contracts against NumPy float64, finite differences and each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import reference
from tests.pallas_kernels import cases


def arguments(b: cases.Batch) -> tuple:
    return (b.params, b.target_params, *b.h, *b.th, b.actions, b.rewards, b.discounts, b.weights)


@pytest.mark.parametrize("make", [cases.random_batch, cases.edge_batch])
def test_the_plain_formulas_gradient_is_the_one_written_out_in_numpy(make):
    b = make(11, 33)

    def loss(p, v, a):
        return reference.dueling_q_td_loss(p, b.target_params, v, a, *b.th, *arguments(b)[6:])

    (value, td_error), grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(b.params, *b.h)
    expected = cases.td_loss(b, delta=1.0)
    cases.assert_close((value, td_error, grads[0], grads[1:]), (expected[0], *expected[1:]))


def test_the_plain_formulas_gradient_matches_finite_differences_in_float64():
    b = cases.random_batch(5, 7, hidden=32, seed=2)
    step = 1e-6  # central differences: error of order step^2 + 1e-16 / step, about 1e-10
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), (b.params, *b.h))
        rest = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), (*b.th, b.rewards, b.discounts, b.weights))
        target_params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), b.target_params)

        @jax.jit
        def loss(p, v, a):
            th_v, th_a, *vectors = rest
            return reference.dueling_q_td_loss(p, target_params, v, a, th_v, th_a, b.actions, *vectors)[0]

        random = np.random.default_rng(3)
        for grad, leaf in zip(jax.tree.leaves(jax.grad(loss, (0, 1, 2))(*wide)), range(6), strict=True):
            leaves, tree = jax.tree.flatten(wide)
            direction = random.normal(size=np.shape(leaves[leaf]))
            moved = [
                jax.tree.unflatten(
                    tree, [x + sign * step * direction if i == leaf else x for i, x in enumerate(leaves)]
                )
                for sign in (1, -1)
            ]
            slope = (float(loss(*moved[0])) - float(loss(*moved[1]))) / (2 * step)
            assert abs(float(jnp.sum(grad * direction)) - slope) < 1e-8


def test_per_sample_gradients_sum_to_the_reduced_ones():
    b = cases.random_batch(11, 33)
    grad_q = np.random.default_rng(4).normal(size=(33, 11)).astype(np.float32)
    args = (*b.h, b.params["w_v"], b.params["w_a"], grad_q)
    each, total = reference.dueling_q_backward_per_sample(*args), reference.dueling_q_backward(*args)
    assert each.w_a.shape == (33, 128, 11)
    for name in ("w_v", "b_v", "w_a", "b_a"):
        cases.assert_close(getattr(total, name), np.sum(np.asarray(getattr(each, name), np.float64), axis=0), name=name)
    np.testing.assert_array_equal(each.h_v, total.h_v)
    np.testing.assert_array_equal(each.h_a, total.h_a)


def test_advantage_gradients_sum_to_zero_and_the_value_gradient_is_their_q_sum():
    b = cases.random_batch(11, 33)
    grad_q = np.random.default_rng(5).normal(size=(33, 11)).astype(np.float32)
    each = reference.dueling_q_backward_per_sample(*b.h, b.params["w_v"], b.params["w_a"], grad_q)
    np.testing.assert_allclose(np.sum(each.b_a, axis=1), 0, atol=1e-6)  # 11 float32 roundings of numbers near 1
    np.testing.assert_allclose(np.sum(each.w_a, axis=2), 0, atol=1e-5)
    np.testing.assert_allclose(each.b_v, grad_q.sum(axis=1), atol=1e-6)


def test_the_taken_action_alone_has_the_clipped_error_as_its_gradient():
    q = jnp.array([[0.5, 2.0, -1.0], [3.0, 0.0, 0.0]])
    grad = jax.grad(lambda q: reference.huber_td_loss(q, jnp.array([1, 0]), jnp.array([1.5, 0.0]), delta=1.0)[0].sum())
    np.testing.assert_allclose(grad(q), [[0, 0.5, 0], [1, 0, 0]])  # e = 0.5, inside; e = 3, clipped to delta


def test_double_q_takes_the_online_networks_first_maximum():
    target_q = jnp.array([[10.0, 20.0, 30.0]])
    y = reference.bellman_target(target_q, jnp.array([1.0]), jnp.array([0.5]), online_q=jnp.array([[0.0, 7.0, 7.0]]))
    assert float(y[0]) == 1.0 + 0.5 * 20.0
