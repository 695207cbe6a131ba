"""Entropy of the latest symbols, interpreted and as XLA, against a count over the window at every step in float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk
from pallas_kernels import entropy

ATOL = 1e-6  # float32: ln n and S / n are below 8, a rounding of each 2.4e-7


def random_history(window, length, lanes, symbols, *, seed=0, ends=0.05):
    """Symbols, and ages that begin with 0 in lane 0, in the middle of an episode elsewhere, and end now and then."""
    rng = np.random.default_rng(seed)
    done = rng.random((length, lanes)) < ends
    steps = np.zeros((length, lanes), np.int32)
    age = rng.integers(0, window + 20, lanes)
    age[0] = 0
    for t in range(length):
        steps[t] = age
        age = np.where(done[t], 0, age + 1)
    history = rng.integers(0, symbols, (window + length, lanes)).astype(np.int32)
    return history, steps


def brute_force(history, steps):
    window = len(history) - len(steps)
    expected = np.zeros(steps.shape)
    for t, n in np.ndindex(steps.shape):
        size = min(steps[t, n] + 1, window)
        p = np.bincount(history[t + 1 + window - size : t + 1 + window, n]) / size
        expected[t, n] = -np.sum(p[p > 0] * np.log(p[p > 0]))
    return expected


@functools.partial(jax.jit, static_argnames=("symbols", "backend", "group", "shortest"))
def run(history, steps, symbols, backend="interpret", group=2, shortest=64):
    """group: steps loaded at once (few compile faster); shortest: steps of a stretch of time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entropy, "_GROUP", group)
        patch.setattr(entropy, "_SHORTEST", shortest)
        return pk.windowed_entropy(history, steps, symbols, backend)


@pytest.mark.parametrize("backend", ["interpret", "xla"])
@pytest.mark.parametrize(
    ("window", "length", "lanes", "symbols", "group"),
    [
        (7, 45, 11, 3, entropy._GROUP),  # shorter than the collection; lengths and lanes that no tile divides
        (40, 13, 5, 45, 2),  # longer
        (1, 1, 8, 4, 2),
    ],
)
def test_the_entropy_is_that_of_the_window_at_every_step(window, length, lanes, symbols, group, backend):
    history, steps = random_history(window, length, lanes, symbols)
    actual = run(history, steps, symbols, backend, group)
    np.testing.assert_allclose(actual, brute_force(history, steps), rtol=0, atol=ATOL)


def test_a_stretch_of_time_begins_where_the_last_one_ended():
    history, steps = random_history(13, 61, 9, 5, ends=0.02)
    actual = run(history, steps, 5, shortest=16)  # four of them
    np.testing.assert_allclose(actual, brute_force(history, steps), rtol=0, atol=ATOL)


def test_the_entropy_does_not_drift_over_a_long_episode():
    history, steps = random_history(100, 6000, 2, 45, ends=0.0)
    actual = run(history, steps, 45, shortest=6000)  # one stretch: every sum follows from the first
    np.testing.assert_allclose(actual, brute_force(history, steps), rtol=0, atol=ATOL)


def test_the_longest_window_is_exact_to_1e_5():
    window, length, symbols = 4096, 16, np.array([1, 2, 45] * 3)
    history = np.random.default_rng(0).integers(0, symbols, (window + length, 9)).astype(np.int32)
    ages = np.repeat([0, 30, window], 3) + np.arange(length)[:, None]  # short episodes and full windows
    actual = run(history, ages.astype(np.int32), 45)
    np.testing.assert_allclose(actual, brute_force(history, ages), rtol=0, atol=1e-5)


def test_narrow_integers_are_enough_where_the_window_is_longer_than_they_count():
    history, steps = random_history(200, 12, 3, 5)
    steps = np.minimum(steps, 127)
    actual = run(history.astype(np.int8), steps.astype(np.int8), 5)
    np.testing.assert_allclose(actual, brute_force(history, steps), rtol=0, atol=ATOL)


def test_a_longer_window_goes_to_xla_or_is_refused_by_name():
    history, steps = random_history(4097, 2, 3, 5)
    np.testing.assert_allclose(run(history, steps, 5, "auto"), brute_force(history, steps), rtol=0, atol=ATOL)
    with pytest.raises(ValueError, match=r"a window of 4097 symbols is longer than 4096.*use backend='xla'"):
        run(history, steps, 5, "interpret")


def test_another_precision_is_refused_by_name():
    history, steps = map(jnp.asarray, random_history(4, 2, 3, 5))
    with pytest.raises(ValueError, match=r"the result is float16, not float32.*use backend='xla'"):
        pk.windowed_entropy(history, steps, 5, "interpret", jnp.float16)


@pytest.mark.parametrize(
    ("history", "steps"),
    [
        ((9, 3), (4, 2)),
        ((4, 3), (4, 3)),
        ((9,), (4,)),
        ((9, 3, 2), (4, 3, 2)),
        ((), ()),
        ((9, 3), (0, 3)),
        ((9, 0), (4, 0)),
    ],
)
def test_shapes_that_do_not_fit_are_named(history, steps):
    with pytest.raises(ValueError, match=r"history has shape .*, steps .*; wanted \[W \+ L, N\] and \[L, N\]"):
        pk.windowed_entropy(jnp.zeros(history, jnp.int32), jnp.zeros(steps, jnp.int32), 4, "interpret")


@pytest.mark.parametrize("n_symbols", [0, 4.0, jnp.ones(2)])
def test_no_number_of_symbols_is_refused(n_symbols):
    with pytest.raises(ValueError, match=r"n_symbols = .*; wanted a Python number of at least 1"):
        pk.windowed_entropy(jnp.zeros((9, 3), jnp.int32), jnp.zeros((4, 3), jnp.int32), n_symbols)
