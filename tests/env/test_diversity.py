"""The diversity penalty against a count over the episode's actions, one step at a time."""

import math
from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_trade.env import diversity

EMPTY = diversity.EMPTY


def penalty_of(actions, n_actions):
    n = len(actions)
    most = min(n, n_actions)
    if most < 2:
        return 0.0
    entropy = -sum(c / n * math.log(c / n) for c in Counter(actions).values())
    return min(max(entropy / math.log(most) - 1.0, -1.0), 0.0)


def ring_of(history, size):
    """The window of an episode with these actions: the action of step s at s mod size."""
    ring = np.full(size, EMPTY)
    for s, action in enumerate(history):
        ring[s % size] = action
    return ring


@pytest.mark.parametrize(
    ("history", "n_actions", "expected"),
    [
        ([3], 45, 0.0),  # one action has no entropy to miss
        ([3, 3], 45, -1.0),
        ([3, 4], 45, 0.0),
        ([3, 3, 3, 4], 45, (0.75 * math.log(4 / 3) + 0.25 * math.log(4)) / math.log(4) - 1),
        ([0, 1, 0, 1], 2, 0.0),  # as diverse as two actions allow
        ([0, 0, 0], 1, 0.0),
    ],
)
def test_penalty_is_the_entropy_missing_from_the_largest_possible(history, n_actions, expected):
    window = jnp.asarray(ring_of(history, 6))
    actual = diversity.penalty(window, jnp.asarray(len(history)), n_actions, jnp.float32)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert penalty_of(history, n_actions) == pytest.approx(expected, abs=1e-12)


def test_only_the_last_w_actions_count():
    history, size = [7] * 10 + [1, 2, 3, 4], 4
    window = jnp.asarray(ring_of(history, size))
    np.testing.assert_allclose(diversity.penalty(window, jnp.asarray(14), 45, jnp.float32), 0.0, atol=1e-6)


def test_push_writes_each_step_of_the_episode_into_its_place():
    window = jnp.full((2, 3), EMPTY)
    for s, action in enumerate([5, 6, 7, 8]):
        window = diversity.push(window, jnp.full(2, action), jnp.full(2, s))
    assert window.tolist() == [[8, 6, 7]] * 2


@pytest.mark.parametrize(("size", "length"), [(4, 25), (40, 25), (1, 7)])
def test_running_counts_over_a_collection_equal_a_count_at_every_step(size, length):
    """Episodes that began before the collection, end inside it, and outlast the window."""
    rng = np.random.default_rng(size)
    n_actions, lanes = 5, 6
    before = [list(rng.integers(0, n_actions, n)) for n in (0, 1, size - 1, size, 2 * size + 1, 3)]
    actions = rng.integers(0, n_actions, (length, lanes))
    ends = rng.random((length, lanes)) < 0.1
    steps, expected = np.zeros((length, lanes), int), np.zeros((length, lanes))
    last_windows, last_steps = np.zeros((lanes, size), int), np.zeros(lanes, int)
    for n in range(lanes):
        history = list(before[n])
        for t in range(length):
            steps[t, n] = len(history)
            history.append(actions[t, n])
            expected[t, n] = penalty_of(history[-size:], n_actions)
            if ends[t, n]:
                history = []
        last_windows[n], last_steps[n] = ring_of(history, size), len(history)
    window = jnp.asarray([ring_of(history, size) for history in before])
    actions, steps = jnp.asarray(actions), jnp.asarray(steps)
    actual = diversity.penalties(actions, steps, window, n_actions, jnp.float32)
    np.testing.assert_allclose(actual, expected, atol=1e-5)  # float32 logarithms of at most 5 terms
    handed_on = diversity.window_after(actions, jnp.asarray(last_steps), window)
    np.testing.assert_array_equal(handed_on, last_windows)
