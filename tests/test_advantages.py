"""GAE against the definition, summed term by term, and against rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt

LENGTH, EPISODES = 23, 8  # not a multiple of the scan's unroll

gae = jax.jit(jt.gae)


def random_steps(seed, p_terminated=0.15, p_truncated=0.15):
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, LENGTH, EPISODES))
    terminated = rng.random((LENGTH, EPISODES)) < p_terminated
    truncated = rng.random((LENGTH, EPISODES)) < p_truncated
    return rewards, values, next_values, terminated, truncated


def by_definition(rewards, values, next_values, terminated, truncated, gamma, lam):
    """A_t = sum over k of (gamma lam)^(k - t) delta_k, up to the step that ends t's episode or the collection."""
    delta = rewards + gamma * np.where(terminated, 0.0, next_values) - values
    advantages = np.zeros_like(delta)
    for t, n in np.ndindex(delta.shape):
        end = next((k for k in range(t, LENGTH) if terminated[k, n] or truncated[k, n]), LENGTH - 1)
        advantages[t, n] = sum((gamma * lam) ** (k - t) * delta[k, n] for k in range(t, end + 1))
    return advantages, advantages + values


@pytest.mark.parametrize(("p_terminated", "p_truncated"), [(0.0, 0.0), (0.2, 0.0), (0.0, 0.2), (0.4, 0.4)])
@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (0.9, 0.0), (1.0, 1.0)])
def test_gae_sums_td_errors_up_to_the_end_of_the_episode(p_terminated, p_truncated, gamma, lam):
    steps = random_steps(3, p_terminated, p_truncated)
    if p_terminated and p_truncated:
        assert (steps[3] & steps[4]).any()  # where both flags are set, terminated wins
    actual = gae(*steps, gamma, lam)
    np.testing.assert_allclose(actual, by_definition(*steps, gamma, lam), rtol=1e-5, atol=1e-5)  # float32, 23 terms


@pytest.mark.parametrize(
    ("terminated", "truncated", "advantage"),
    [  # r = 1, v = 2, next v = 3; gamma = 0.5, lam = 0.5; the following step's advantage is 10 - 4 = 6
        (False, False, 1 + 0.5 * 3 - 2 + 0.25 * 6),
        (False, True, 1 + 0.5 * 3 - 2),
        (True, False, 1 - 2),
        (True, True, 1 - 2),
    ],
)
def test_the_four_ends_of_a_step(terminated, truncated, advantage):
    def column(*values):
        return np.array(values)[:, None]

    advantages, returns = gae(
        column(1.0, 10.0),
        column(2.0, 4.0),
        column(3.0, 9.0),
        column(terminated, True),
        column(truncated, False),
        0.5,
        0.5,
    )
    np.testing.assert_allclose(advantages, column(advantage, 6.0), rtol=1e-6)
    np.testing.assert_allclose(returns, column(advantage + 2, 10.0), rtol=1e-6)


def test_a_next_value_that_is_not_a_number_is_ignored_where_terminated():
    rewards, values, next_values, terminated, truncated = random_steps(5, 0.3, 0.3)
    expected = gae(rewards, values, next_values, terminated, truncated, 0.99, 0.95)
    unknown = np.where(terminated, np.nan, next_values)
    np.testing.assert_array_equal(gae(rewards, values, unknown, terminated, truncated, 0.99, 0.95), expected)


def test_a_truncated_step_bootstraps_from_the_observation_before_the_reset():
    rewards, values, next_values, terminated, truncated = random_steps(6, 0.0, 0.3)
    raised = gae(rewards, values, next_values + truncated, terminated, truncated, 0.9, 0.95)[0]
    base = gae(rewards, values, next_values, terminated, truncated, 0.9, 0.95)[0]
    np.testing.assert_allclose((raised - base)[truncated], 0.9, rtol=1e-4)


def test_gae_equals_rlax_s_on_untruncated_data():
    import rlax

    rewards, values, last, terminated, _ = random_steps(7, 0.2)
    truncated = np.zeros_like(terminated)
    all_values = np.concatenate([values, last[:1]])
    discounts = 0.99 * (1.0 - terminated)
    expected = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=(1, 1, None, 1), out_axes=1)(
        jnp.asarray(rewards), jnp.asarray(discounts), 0.95, jnp.asarray(all_values)
    )
    advantages, _ = gae(rewards, values, all_values[1:], terminated, truncated, 0.99, 0.95)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5)  # float32, 23 terms


def test_gamma_and_lambda_are_traced_so_a_sweep_compiles_once():
    steps = random_steps(8)
    traces = []

    @jax.jit
    def advantages(gamma, lam):
        traces.append(None)
        return gae(*steps, gamma, lam)[0]

    swept = [advantages(gamma, lam) for gamma, lam in ((0.9, 0.8), (0.99, 0.95))]
    assert len(traces) == 1
    np.testing.assert_allclose(swept[1], by_definition(*steps, 0.99, 0.95)[0], rtol=1e-5, atol=1e-5)


def test_gae_refuses_arrays_of_different_shapes():
    rewards, values, next_values, terminated, truncated = random_steps(9)
    with pytest.raises(AssertionError, match="shape"):
        gae(rewards, values[:-1], next_values, terminated, truncated, 0.99, 0.95)
