"""Q-values and their decomposed backward pass, interpreted, against NumPy float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk
from tests.pallas_kernels import cases

HEADS = ("w_v", "b_v", "w_a", "b_a")


def arrays(b: cases.Batch) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(x) for x in (*b.h, *(b.params[name] for name in HEADS)))


@pytest.mark.parametrize(("actions", "batch", "hidden"), [(11, 1, 64), (45, 100, 128), (64, 33, 96)])
def test_q_and_its_vjp_agree_with_the_formula(actions, batch, hidden):
    b = cases.random_batch(actions, batch, hidden=hidden)
    grad_q = np.random.default_rng(1).normal(size=(batch, actions)).astype(np.float32)

    @jax.jit
    def run(*args):
        q, vjp = jax.vjp(lambda *args: pk.dueling_q(*args, backend="interpret"), *args)
        return q, vjp(grad_q)

    q, (h_v, h_a, *heads) = run(*arrays(b))
    want_heads, want_hidden = cases.backward(b.h, b.params, grad_q)
    cases.assert_close(q, cases.q_values(b.h, b.params))
    cases.assert_close((dict(zip(HEADS, heads, strict=True)), (h_v, h_a)), (want_heads, want_hidden))


@pytest.mark.parametrize("backend", ["interpret", "xla"])
def test_the_backward_function_takes_any_gradient_of_q(backend):
    b = cases.random_batch(11, 33, hidden=64)
    grad_q = np.random.default_rng(1).normal(size=(33, 11)).astype(np.float32)
    h_v, h_a, w_v, _, w_a, _ = arrays(b)
    grads = jax.jit(lambda *args: pk.dueling_q_backward(*args, backend=backend))(h_v, h_a, w_v, w_a, grad_q)
    heads, hidden = cases.backward(b.h, b.params, grad_q)
    cases.assert_close((grads._asdict(), (grads.h_v, grads.h_a)), (heads, hidden))
    np.testing.assert_allclose(jnp.sum(grads.b_a), 0, atol=1e-4)  # sum over 33 x 11 numbers near 1
    np.testing.assert_allclose(jnp.sum(grads.w_a, axis=1), 0, atol=1e-4)


def test_one_hidden_array_gets_the_sum_of_both_gradients():
    b = cases.random_batch(11, 33, hidden=64, one_array=True)
    grad_q = np.random.default_rng(1).normal(size=(33, 11)).astype(np.float32)
    h, _, *heads = arrays(b)
    vjp = jax.jit(lambda h: jax.vjp(lambda h: pk.dueling_q(h, h, *heads, backend="interpret"), h)[1](grad_q)[0])
    cases.assert_close(vjp(h), sum(cases.backward(b.h, b.params, grad_q)[1]))
