"""The policy's pass, interpreted, against NumPy float64 of the network and of the loss, each by its own test's formula."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk
from tests.pallas_kernels import cases, test_mlp, test_policy_loss

CLIP, COEF = test_policy_loss.CLIP, test_policy_loss.COEF
TOLERANCE = 2e-2  # of the largest entry: products of bfloat16


def problem(sizes, batch, seed=0):
    """Layers, inputs and rows whose old log-probabilities lie around the network's own."""
    layers, inputs = test_mlp.random_layers(sizes, seed), test_mlp.random_inputs(batch, sizes[0], seed + 1)
    logits = test_mlp.formula(layers, inputs, np.zeros((batch, sizes[-1])), "bfloat16")[0]
    _, taken, noise, advantages = test_policy_loss.random_batch(batch, sizes[-1], seed)
    log_p = np.take_along_axis(test_policy_loss.log_softmax(logits), taken[:, None], 1)[:, 0]
    return layers, inputs, (taken, (log_p + 0.1 * noise + 0.2).astype(np.float32), advantages)


def formula(layers, inputs, rows):
    """Loss and measures, and the loss's gradients at every layer."""
    logits, _, _ = test_mlp.formula(layers, inputs, np.zeros((len(inputs), len(layers[-1][1]))), "bfloat16")
    slopes = test_policy_loss.gradient(logits, *rows)
    return test_policy_loss.formula(logits, *rows), test_mlp.formula(layers, inputs, slopes, "bfloat16")[1]


def run(layers, inputs, rows, backend="interpret"):
    def loss(layers):
        outcome = pk.mlp_policy_loss(layers, inputs, *rows, CLIP, COEF, backend=backend)
        return outcome.loss, outcome

    gradient, outcome = jax.jit(jax.grad(loss, has_aux=True))(layers)
    return outcome, tuple(gradient)


@pytest.mark.parametrize("backend", ["interpret", "xla"])
@pytest.mark.parametrize(
    ("sizes", "batch"),
    [
        (test_mlp.ACTOR, 70),  # two programs, the second ragged
        ((7, 40, 3), 129),  # two tiles of the weights' gradients; widths that are no powers of two
        ((5, 3), 1),  # no hidden layer
        ((20, 16, 128, 16, 5), 9),
    ],
)
def test_loss_measures_and_gradients_agree_with_the_formula(sizes, batch, backend):
    layers, inputs, rows = problem(sizes, batch)
    measures, gradient = formula(layers, inputs, rows)
    outcome, actual = run(layers, inputs, rows, backend)
    np.testing.assert_allclose(np.stack(outcome), measures, rtol=1e-4, atol=1e-5)
    cases.assert_close(actual, gradient, TOLERANCE)


def test_gathered_inputs_are_rows_of_the_table_followed_by_values():
    layers, inputs, rows = problem((9, 32, 4), 50)
    table, row = inputs[:20, :6], np.random.default_rng(0).integers(-3, 30, size=50).astype(np.int32)
    gathered = pk.Gathered(table, row, inputs[:, 6:])
    formed = np.concatenate([table[np.clip(row, 0, 19)], inputs[:, 6:]], axis=1)
    cases.assert_close(run(layers, gathered, rows), run(layers, formed, rows), 1e-6)


def test_vmap_over_seeds_agrees_with_one_after_the_other():
    members = [problem((6, 16, 3), 20, seed) for seed in range(2)]
    layers, inputs, rows = jax.tree.map(lambda *x: jnp.stack(x), *members)

    def gradient(layers, inputs, rows):
        return jax.grad(lambda x: pk.mlp_policy_loss(x, inputs, *rows, CLIP, COEF, backend="interpret").loss)(layers)

    mapped = jax.jit(jax.vmap(gradient))(layers, inputs, rows)
    for i, member in enumerate(members):
        cases.assert_close(tuple(jax.tree.map(lambda x, i=i: x[i], mapped)), run(*member)[1], 1e-6)


def test_only_the_loss_carries_a_gradient_to_the_layers_alone_and_once():
    layers, inputs, rows = jax.tree.map(jnp.asarray, problem((6, 16, 3), 5))

    def outcome(layers, inputs):
        return pk.mlp_policy_loss(layers, inputs, *rows, CLIP, COEF, backend="interpret")

    assert not any(map(np.any, jax.tree.leaves(jax.grad(lambda x: sum(outcome(x, inputs)[1:]))(layers))))
    for backend in ("interpret", "xla"):
        of_inputs = jax.grad(lambda x, b=backend: pk.mlp_policy_loss(layers, x, *rows, CLIP, COEF, backend=b).loss)
        assert not np.any(of_inputs(inputs))
    with pytest.raises(ValueError, match=r"second derivatives.*backend='xla'"):
        jax.grad(lambda b: jax.grad(lambda w: outcome([(w, b)], inputs).loss)(layers[0][0][:, :3]).sum())(layers[1][1])
    with pytest.raises(ValueError, match=r"forward-mode.*backend='xla'"):
        jax.jvp(lambda x: outcome(x, inputs).loss, (layers,), (layers,))


def test_shapes_and_wide_layers_are_refused_in_words():
    layers, inputs, rows = problem((6, 16, 3), 5)
    with pytest.raises(ValueError, match=r"advantages has shape \(4,\)"):
        pk.mlp_policy_loss(layers, inputs, *rows[:2], rows[2][:4], CLIP, COEF)
    with pytest.raises(ValueError, match=r"actions\[2\] = -1 is outside \[0, 3\)"):
        pk.mlp_policy_loss(layers, inputs, jnp.asarray(rows[0]).at[2].set(-1), *rows[1:], CLIP, COEF)
    layers, inputs, rows = problem((6, 200, 3), 5)
    with pytest.raises(ValueError, match="wider than 128"):
        pk.mlp_policy_loss(layers, inputs, *rows, CLIP, COEF, backend="interpret")


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 1000, 20_001])
def test_compiled_it_agrees_with_the_contract(batch):
    layers, inputs, rows = jax.tree.map(jnp.asarray, problem(test_mlp.ACTOR, batch))
    outcome, gradient = run(layers, inputs, rows, "pallas")
    expected, expected_gradient = run(layers, inputs, rows, "xla")
    np.testing.assert_allclose(np.stack(outcome), np.stack(expected), rtol=TOLERANCE, atol=1e-3)  # one row: no mean
    for a, e in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        assert np.linalg.norm(a - e) <= TOLERANCE * np.linalg.norm(e)
