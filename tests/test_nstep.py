"""n-step bundles against a sum written out step by step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_trade.nstep import bundle

GAMMA = 0.9


def random_steps(seed: int, length: int = 9, episodes: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (length, episodes)
    return rng.standard_normal(shape), rng.random(shape) < 0.15, rng.random(shape) < 0.15


@pytest.mark.parametrize("n", [1, 3, 20])
def test_a_bundle_stops_at_the_end_of_the_episode_and_of_the_collection(n):
    rewards, terminated, truncated = random_steps(seed=1)
    length = len(rewards)
    expected = np.zeros((3, *rewards.shape))
    for t, e in np.ndindex(rewards.shape):
        last = t
        while last < t + n - 1 and last < length - 1 and not (terminated[last, e] or truncated[last, e]):
            last += 1
        total = sum(GAMMA ** (k - t) * rewards[k, e] for k in range(t, last + 1))
        discount = 0.0 if terminated[last, e] else GAMMA ** (last - t + 1)
        expected[:, t, e] = total, discount, last
    actual = bundle(rewards, terminated, truncated, GAMMA, n)
    np.testing.assert_allclose(actual.rewards, expected[0], rtol=1e-5, atol=1e-5)  # float32, at most 9 terms
    np.testing.assert_allclose(actual.discounts, expected[1], rtol=1e-5)
    np.testing.assert_array_equal(actual.last, expected[2])


def test_a_step_that_is_both_terminated_and_truncated_has_no_bootstrap():
    both = np.array([[True]])
    assert bundle(np.ones((1, 1)), both, both, GAMMA, 3).discounts[0, 0] == 0


def test_a_reward_beyond_the_end_is_not_touched_even_if_it_is_nan():
    rewards = np.array([[1.0], [2.0], [np.nan]])
    ends = np.array([[False], [True], [False]])
    for terminated, truncated in ((ends, ~ends & False), (~ends & False, ends)):
        actual = bundle(rewards, terminated, truncated, GAMMA, 3).rewards
        np.testing.assert_allclose(actual[:2, 0], [1 + GAMMA * 2, 2], rtol=1e-6)


def test_the_discount_rate_is_traced():
    steps = random_steps(seed=2)
    run = jax.jit(lambda gamma: bundle(*steps, gamma, 3).discounts)
    for gamma in (0.0, 0.5):
        once = bundle(*steps, gamma, 3).discounts
        np.testing.assert_array_equal(run(jnp.float32(gamma)), once)
