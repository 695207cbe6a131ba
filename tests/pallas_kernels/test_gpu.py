"""On a GPU: compiled, interpreted and XLA agree, runs repeat bitwise, and memory stays small."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk
from tests.pallas_kernels import cases

pytestmark = pytest.mark.gpu


def gradients(backend: str, *, one_array: bool):
    def loss(params, h, b):
        h_v, h_a = (h[0], h[0]) if one_array else h
        th = (b.th[1], b.th[1]) if one_array else b.th
        rest = (b.actions, b.rewards, b.discounts, b.weights)
        return pk.dueling_q_td_loss(params, b.target_params, h_v, h_a, *th, *rest, backend=backend)

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))


def run(b: cases.Batch, backend: str, *, one_array: bool):
    h = b.h[1:] if one_array else b.h
    with jax.default_matmul_precision("highest"):  # XLA's default on this GPU is TF32: 1e-3
        return gradients(backend, one_array=one_array)(*jax.tree.map(jnp.asarray, (b.params, h, b)))


@pytest.mark.parametrize("make", [cases.random_batch, cases.edge_batch])
@pytest.mark.parametrize("one_array", [True, False])
@pytest.mark.parametrize("actions", cases.ACTIONS)
def test_compiled_interpreted_and_xla_agree_with_the_formula(actions, one_array, make):
    for batch in cases.BATCHES:
        b = make(actions, batch, one_array=one_array)
        loss, error, heads, hidden = cases.td_loss(b, delta=1.0)
        expected = ((loss, error), (heads, (sum(hidden),) if one_array else hidden))
        backends = ("pallas", "xla", "interpret") if batch in (33, 256) else ("pallas", "xla")
        for backend in backends:
            cases.assert_close(run(b, backend, one_array=one_array), expected, name=f"{backend} B={batch} ")


@pytest.mark.parametrize("hidden", [32, 96, 256])
def test_other_widths_compile_and_agree(hidden):
    b = cases.random_batch(45, 300, hidden=hidden)
    loss, error, heads, h = cases.td_loss(b, delta=1.0)
    cases.assert_close(run(b, "pallas", one_array=False), ((loss, error), (heads, h)))


def test_q_its_backward_targets_and_huber_agree_with_the_formula():
    b = cases.random_batch(45, 1000)
    grad_q = np.random.default_rng(1).normal(size=(1000, 45)).astype(np.float32)
    h_v, h_a, w_v, b_v, w_a, b_a = map(jnp.asarray, (*b.h, *(b.params[name] for name in ("w_v", "b_v", "w_a", "b_a"))))
    heads, hidden = cases.backward(b.h, b.params, grad_q)
    expected_q = cases.q_values(b.h, b.params)
    for backend in ("pallas", "xla"):
        with jax.default_matmul_precision("highest"):
            q = pk.dueling_q(h_v, h_a, w_v, b_v, w_a, b_a, backend=backend)
            grads = pk.dueling_q_backward(h_v, h_a, w_v, w_a, jnp.asarray(grad_q), backend=backend)
        cases.assert_close(q, expected_q)
        cases.assert_close((grads._asdict(), (grads.h_v, grads.h_a)), (heads, hidden))
        y = pk.bellman_target(q, jnp.asarray(b.rewards), jnp.asarray(b.discounts), backend=backend)
        cases.assert_close(y, b.rewards + b.discounts * expected_q.max(axis=1))
        _, error = pk.huber_td_loss(q, jnp.asarray(b.actions), y, backend=backend)
        cases.assert_close(error, expected_q[np.arange(1000), b.actions] - np.asarray(y))


def test_vmap_scan_and_bfloat16_compile_and_agree_with_xla():
    b = jax.tree.map(jnp.asarray, cases.random_batch(11, 100, one_array=True))
    ensemble = jax.tree.map(lambda x: jnp.stack([x, -x]), b.params)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (b.params, b.h[:1]))
    results = {}
    for backend in ("pallas", "xla"):
        f = gradients(backend, one_array=True)
        with jax.default_matmul_precision("highest"):
            mapped = jax.vmap(lambda p, f=f: f(p, b.h[:1], b))(ensemble)
            scanned = jax.lax.scan(lambda c, _, f=f: (c, f(b.params, b.h[:1], b)), 0, length=2)[1]
            results[backend] = jax.tree.leaves((mapped, scanned)), jax.tree.leaves(f(*half, b))
    for tolerance, actual, expected in zip((cases.TOLERANCE, 2**-7), results["pallas"], results["xla"], strict=True):
        for x, y in zip(actual, expected, strict=True):  # bfloat16: both sides round to 8 bits
            cases.assert_close(np.asarray(x, np.float64), np.asarray(y, np.float64), tolerance)


def test_compiled_runs_are_bitwise_the_same():
    b = cases.random_batch(45, 4097)
    first, *others = [jax.tree.leaves(run(b, "pallas", one_array=False)) for _ in range(4)]
    for other in others:
        for x, y in zip(first, other, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("one_array", "limit"), [(True, 48), (False, 80)])
def test_temporary_memory_at_65536_samples_stays_under_the_limit(one_array, limit):
    b = jax.tree.map(jnp.asarray, cases.random_batch(45, 65_536, one_array=one_array))
    h = b.h[1:] if one_array else b.h
    compiled = gradients("pallas", one_array=one_array).lower(b.params, h, b).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < limit * 2**20


def test_auto_takes_the_kernel():
    b = jax.tree.map(jnp.asarray, cases.random_batch(11, 256))
    assert "dueling_td_loss" in gradients("auto", one_array=False).lower(b.params, b.h, b).compile().as_text()
