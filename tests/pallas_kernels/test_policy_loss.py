"""The fused policy loss, interpreted, and its contract against NumPy float64 and finite differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk
from tests.pallas_kernels import cases

CLIP, COEF = 0.2, 0.01


def random_batch(batch, actions, seed=0):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(batch, actions)).astype(np.float32)
    taken = random.integers(0, actions, size=batch).astype(np.int32)
    log_p = np.take_along_axis(log_softmax(logits), taken[:, None], 1)[:, 0]
    old = (log_p + random.normal(scale=0.3, size=batch)).astype(np.float32)  # ratios within the clip and beyond it
    return logits, taken, old, random.normal(size=batch).astype(np.float32)


def log_softmax(logits):
    z = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def formula(logits, taken, old, advantages):
    """Loss and measures in float64."""
    log_p = log_softmax(logits)
    log_ratio = np.take_along_axis(log_p, taken[:, None], 1)[:, 0] - old
    ratio = np.exp(log_ratio)
    surrogate = np.minimum(ratio * advantages, np.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages).mean()
    entropy = -(np.exp(log_p) * log_p).sum(axis=1).mean()
    deviation = np.abs(ratio - 1)
    kl = (ratio - 1 - log_ratio).mean()
    return -surrogate - COEF * entropy, entropy, kl, (deviation > CLIP).mean(), deviation.max()


def gradient(logits, taken, old, advantages):
    """Central differences of the loss, entry by entry."""
    result = np.zeros(logits.shape)
    for i, j in np.ndindex(*logits.shape):
        step = np.zeros(logits.shape)
        step[i, j] = 1e-6
        up, down = (formula(logits + sign * step, taken, old, advantages)[0] for sign in (1, -1))
        result[i, j] = (up - down) / 2e-6
    return result


def run(backend, logits, *rest):
    def loss(logits):
        outcome = pk.clipped_policy_loss(logits, *rest, CLIP, COEF, backend=backend)
        return outcome.loss, outcome

    return jax.jit(jax.grad(loss, has_aux=True))(logits)


@pytest.mark.parametrize("backend", ["interpret", "xla"])
@pytest.mark.parametrize(("batch", "actions"), [(1, 2), (70, 11), (9, 45)])
def test_loss_measures_and_gradient_agree_with_the_formula(batch, actions, backend):
    b = random_batch(batch, actions)
    actual, outcome = run(backend, *b)
    np.testing.assert_allclose(np.stack(outcome), formula(*b), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actual, gradient(b[0].astype(np.float64), *b[1:]), atol=2e-6 / batch + 1e-8)


def test_a_large_logit_and_a_ratio_of_one_are_exact_enough():
    logits = np.array([[80.0, -80.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
    taken, old = np.array([0, 1], np.int32), np.array([0.0, -np.log(3)], np.float32)
    b = (logits, taken, old, np.array([1.0, -2.0], np.float32))
    kernel, xla = run("interpret", *b), run("xla", *b)
    cases.assert_close(tuple(kernel[1][:3]), tuple(xla[1][:3]))
    cases.assert_close(kernel[0], xla[0])


def test_vmap_over_seeds_and_a_traced_clip():
    members = [random_batch(30, 5, seed) for seed in range(2)]
    logits, taken, old, advantages = (jnp.stack(x) for x in zip(*members, strict=True))

    def loss(clip, *b):
        return pk.clipped_policy_loss(*b, clip, COEF, backend="interpret").loss

    mapped = jax.jit(jax.vmap(jax.value_and_grad(loss, argnums=1), (None, 0, 0, 0, 0)))
    values, gradients = mapped(CLIP, logits, taken, old, advantages)
    for i, b in enumerate(members):
        single, outcome = run("interpret", *b)
        np.testing.assert_allclose(values[i], outcome.loss, rtol=1e-6)
        np.testing.assert_allclose(gradients[i], single, atol=1e-8)


def test_only_the_loss_carries_a_gradient_and_only_once():
    logits, *rest = (jnp.asarray(x) for x in random_batch(6, 4))

    def measured(logits):
        outcome = pk.clipped_policy_loss(logits, *rest, CLIP, COEF, backend="interpret")
        return sum(outcome[1:])

    assert not np.any(jax.grad(measured)(logits))

    def loss(logits):
        return pk.clipped_policy_loss(logits, *rest, CLIP, COEF, backend="interpret").loss

    with pytest.raises(ValueError, match=r"second derivatives.*backend='xla'"):
        jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) ** 2))(logits)
    with pytest.raises(ValueError, match=r"forward-mode.*backend='xla'"):
        jax.jvp(loss, (logits,), (logits,))


def test_shapes_and_many_actions_are_refused_in_words():
    logits, *rest = random_batch(6, 4)
    with pytest.raises(ValueError, match=r"actions has shape \(5,\)"):
        pk.clipped_policy_loss(jnp.asarray(logits), rest[0][:5], *rest[1:], CLIP, COEF)
    with pytest.raises(ValueError, match=r"logits has shape \(0, 4\); wanted \[B, A\] with B and A at least 1"):
        pk.clipped_policy_loss(jnp.zeros((0, 4)), *(x[:0] for x in rest), CLIP, COEF)
    with pytest.raises(ValueError, match=r"actions\[0\] = 4 is outside \[0, 4\).*6 of 6 are"):
        pk.clipped_policy_loss(jnp.asarray(logits), jnp.full(6, 4), *rest[1:], CLIP, COEF)
    with pytest.raises(ValueError, match=r"actions have dtype float32; wanted integers in \[0, 4\)"):
        pk.clipped_policy_loss(jnp.asarray(logits), jnp.zeros(6), *rest[1:], CLIP, COEF)
    wide, *rest = random_batch(3, 200)
    with pytest.raises(ValueError, match="200 actions are more than 128"):
        pk.clipped_policy_loss(jnp.asarray(wide), *rest, CLIP, COEF, backend="interpret")


@pytest.mark.gpu
def test_compiled_it_agrees_with_the_formula():
    for batch in (1, 1000, 20_001):
        b = random_batch(batch, 45)
        actual, outcome = run("pallas", *b)
        np.testing.assert_allclose(np.stack(outcome), formula(*b), rtol=1e-5, atol=1e-6)
        cases.assert_close(actual, run("xla", *b)[0])
