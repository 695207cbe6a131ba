"""The fused TD loss, interpreted, against NumPy float64: every shape, random and edge data, one hidden array or two."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk
from tests.pallas_kernels import cases

SHAPES = list(itertools.product(cases.ACTIONS, cases.BATCHES))
EVERY_TIME = {
    (11, 1),
    (11, 256),
    (45, 33),
    (45, 4_097),
    (64, 31),
    (64, 100),
}  # a compilation costs seconds: the rest is slow


@functools.cache
def compiled(one_array: bool, has_targets: bool = False):
    """loss, td_error and gradients at params and hidden rows; one compilation a shape serves random and edge data."""

    def loss(params, h, b, targets):
        h_v, h_a = (h[0], h[0]) if one_array else h
        th_v, th_a = (b.th[1], b.th[1]) if one_array else b.th
        args = (b.target_params, h_v, h_a, th_v, th_a, b.actions, b.rewards, b.discounts, b.weights)
        return pk.dueling_q_td_loss(params, *args, delta=1.0, targets=targets, backend="interpret")

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))


def check(b: cases.Batch, *, one_array: bool, targets: np.ndarray | None = None, tolerance: float = cases.TOLERANCE):
    h = b.h[1:] if one_array else b.h
    (loss, td_error), (heads, hidden) = compiled(one_array)(b.params, h, b, targets)
    want_loss, want_error, want_heads, want_hidden = cases.td_loss(b, delta=1.0, targets=targets)
    want_hidden = (sum(want_hidden),) if one_array else want_hidden
    cases.assert_close((loss, td_error, heads, hidden), (want_loss, want_error, want_heads, want_hidden), tolerance)


@pytest.mark.parametrize(
    ("actions", "batch"), [s if s in EVERY_TIME else pytest.param(*s, marks=pytest.mark.slow) for s in SHAPES]
)
def test_loss_and_every_gradient_agree_with_the_formula(actions, batch):
    one_array = SHAPES.index((actions, batch)) % 2 == 0  # half of the shapes each way: a compilation costs seconds
    check(cases.random_batch(actions, batch, one_array=one_array), one_array=one_array)
    check(cases.edge_batch(actions, batch, one_array=one_array), one_array=one_array)


def test_more_tiles_than_blocks_are_walked_in_rounds(monkeypatch):
    from pallas_kernels import dueling_td, td_pass

    monkeypatch.setattr(dueling_td, "choose_tiles", lambda *_: td_pass.Tiles(rows=16, blocks=3, warps=4))
    check(cases.random_batch(11, 103, hidden=64), one_array=False)  # 7 tiles on 3 blocks, the last one ragged


def test_given_targets_replace_the_target_half():
    b = cases.random_batch(11, 33, hidden=64)
    check(b, one_array=False, targets=np.linspace(-2, 2, 33).astype(np.float32))


@pytest.mark.parametrize("hidden", [96, 256])
def test_any_multiple_of_32_hidden_units_up_to_256_works(hidden):
    check(cases.random_batch(11, 20, hidden=hidden), one_array=False)


def test_missing_weights_mean_ones():
    b = cases.random_batch(11, 33, hidden=64)
    b.weights[:] = 1.0
    args = (b.params, b.target_params, *b.h, *b.th, b.actions, b.rewards, b.discounts)
    loss, td_error = jax.jit(lambda *args: pk.dueling_q_td_loss(*args, backend="interpret"))(*args)
    expected = cases.td_loss(b, delta=1.0)
    cases.assert_close((loss, td_error), expected[:2])


def test_bfloat16_inputs_are_computed_in_float32_and_keep_their_dtype():
    b = cases.random_batch(11, 33, hidden=64)

    def half(tree):
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), tree)

    def rounded(tree):
        return jax.tree.map(lambda x: np.asarray(half(x), np.float32), tree)

    b.params, b.target_params, b.h, b.th = map(rounded, (b.params, b.target_params, b.h, b.th))
    args = (half(b.params), half(b.h), *half((b.target_params, b.th)))

    def loss(params, h, target_params, th):
        rest = (b.actions, b.rewards, b.discounts, b.weights)
        return pk.dueling_q_td_loss(params, target_params, *h, *th, *rest, backend="interpret")

    (value, td_error), (heads, hidden) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(*args)
    want_loss, want_error, want_heads, want_hidden = cases.td_loss(b, delta=1.0)
    cases.assert_close((value, td_error), (want_loss, want_error))
    assert {x.dtype for x in jax.tree.leaves((heads, hidden))} == {jnp.dtype(jnp.bfloat16)}
    cases.assert_close((heads, hidden), (want_heads, want_hidden), tolerance=2**-8)  # results are rounded to 8 bits


def test_one_array_passed_twice_equals_two_equal_arrays():
    b = cases.random_batch(11, 33, hidden=64, one_array=True)
    rest = (b.actions, b.rewards, b.discounts, b.weights)

    def loss(h_v, h_a):
        return pk.dueling_q_td_loss(b.params, b.target_params, h_v, h_a, *b.th, *rest, backend="interpret")[0]

    h = jnp.asarray(b.h[0])
    once = jax.jit(jax.grad(lambda h: loss(h, h)))(h)
    cases.assert_close(once, sum(np.asarray(x, np.float64) for x in jax.jit(jax.grad(loss, (0, 1)))(h, h + 0)))


def test_the_same_call_twice_is_bitwise_the_same():
    b = cases.random_batch(11, 100, one_array=True)  # the shape is compiled already
    runs = [jax.tree.leaves(compiled(True)(b.params, b.h[1:], b, None)) for _ in range(2)]
    for first, second in zip(*runs, strict=True):
        np.testing.assert_array_equal(first, second)
