"""Prioritised replay against arrays in NumPy float64, and against flashbax's sum tree."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashbax.buffers import sum_tree

from jaxrl_trade import replay

ALPHA = 0.6
CAPACITY = 1_100  # three levels, the lowest not full
ROW = {"number": jnp.zeros((), jnp.int32), "pair": jnp.zeros(2)}


def rows(first: int, count: int) -> dict[str, np.ndarray]:
    number = np.arange(first, first + count, dtype=np.int32)
    return {"number": number, "pair": np.stack([number, -number], axis=1).astype(np.float32)}


add = jax.jit(replay.add)
draw = jax.jit(replay.sample, static_argnames="batch_size")
set_priorities = jax.jit(replay.set_priorities)


def filled(errors: np.ndarray, exponent: float = ALPHA, capacity: int = CAPACITY) -> replay.Replay:
    return add(replay.init(ROW, capacity), rows(0, len(errors)), errors.astype(np.float32), exponent)


@functools.cache
def random_errors(count: int = CAPACITY) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(count) * np.random.default_rng(4).choice([0, 1, 50], count)


def test_priorities_are_the_errors_to_the_power_alpha_with_a_floor():
    errors = random_errors()
    expected = (np.abs(errors) + 1e-6) ** ALPHA
    np.testing.assert_allclose(replay.priorities(filled(errors)), expected, rtol=1e-5)  # float32 power
    assert (np.asarray(replay.priorities(filled(np.zeros(5)))) > 0).sum() == 5


def test_new_rows_take_the_places_of_the_oldest():
    state, errors = replay.init(ROW, CAPACITY), random_errors()
    for first in range(0, 2 * CAPACITY + 400, 400):
        state = add(state, rows(first, 400), errors[:400].astype(np.float32), ALPHA)
    held = np.asarray(state.rows["number"])
    assert int(state.size) == CAPACITY
    assert sorted(held) == list(range(first + 400 - CAPACITY, first + 400))
    np.testing.assert_array_equal(np.asarray(state.rows["pair"]), np.stack([held, -held], axis=1))
    np.testing.assert_allclose(
        replay.priorities(state), (np.abs(errors[held % 400]) + 1e-6) ** ALPHA, rtol=1e-5
    )  # a row's error is that of its number within its block of 400


def test_every_inner_node_is_the_sum_of_its_children():
    state = filled(random_errors())
    index = np.random.default_rng(5).integers(0, CAPACITY, 300)
    state = set_priorities(state, index, np.random.default_rng(6).standard_normal(300).astype(np.float32), ALPHA)
    for level, below in zip(state.sums, state.sums[1:], strict=False):
        sums = np.asarray(below, np.float64).sum(axis=1)
        np.testing.assert_allclose(np.asarray(level).reshape(-1)[: len(sums)], sums, rtol=1e-6)  # float32, 32 terms


def test_a_mass_leads_to_the_row_where_the_cumulative_priorities_pass_it():
    errors = random_errors()
    state = filled(errors, exponent=1.0)
    leaves = np.asarray(replay.priorities(state), np.float64)
    edges = np.cumsum(leaves)
    mass = np.random.default_rng(7).random(2_000) * edges[-1]
    index, found = replay.find(state.sums, jnp.asarray(mass, jnp.float32))
    expected = np.searchsorted(edges, mass, side="right")
    # where rounding may lead next door: within 1e-6 of the total of an edge (float32 sums over three levels)
    clear = np.abs(mass[:, None] - edges).min(axis=1) > 1e-6 * edges[-1]
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(np.asarray(index)[clear], expected[clear])
    np.testing.assert_array_equal(found, leaves[np.asarray(index)].astype(np.float32))


def test_a_mass_finds_the_row_that_flashbax_s_sum_tree_finds():
    priorities = np.abs(random_errors()).astype(np.float32) + 0.01
    state = filled(priorities - 1e-6, exponent=1.0)
    tree = sum_tree.set_batch_bincount(sum_tree.init(CAPACITY), jnp.arange(CAPACITY), jnp.asarray(priorities))
    edges = np.cumsum(priorities.astype(np.float64))
    fraction = np.random.default_rng(8).random(500)
    clear = np.abs(fraction[:, None] * edges[-1] - edges).min(axis=1) > 1e-5 * edges[-1]  # two roundings apart
    index, _ = replay.find(state.sums, jnp.asarray(fraction * edges[-1], jnp.float32))
    theirs = jax.vmap(lambda u: sum_tree.sample(tree, query_value=u))(jnp.asarray(fraction, jnp.float32))
    assert clear.mean() > 0.8
    np.testing.assert_array_equal(np.asarray(index)[clear], np.asarray(theirs)[clear])


def test_rows_without_priority_are_never_drawn():
    state = filled(np.array([0.0, 3.0, 0.0, 2.0, 0.0]), exponent=1.0, capacity=100)
    total = float(state.sums[0].sum())
    ends = jnp.float32([0.0, np.nextafter(np.float32(total), 0), total, 2 * total])
    index, found = replay.find(state.sums, ends)
    assert set(np.asarray(index)) <= set(range(5))
    assert (np.asarray(found) > 0).all()


def test_rows_are_drawn_in_proportion_to_their_priorities():
    errors = np.array([1.0, 2.0, 5.0, 0.0, 8.0])
    state = filled(errors, exponent=1.0, capacity=64)
    drawn = draw(state, jax.random.key(0), batch_size=8_192, beta=0.5)
    share = np.bincount(np.asarray(drawn.index), minlength=5) / 8_192
    np.testing.assert_allclose(
        share, errors / errors.sum(), atol=3 / 8_192
    )  # strata: a row's count is off by 2 at most
    np.testing.assert_array_equal(drawn.rows["number"], drawn.index)


def test_importance_weights_make_up_for_the_priorities():
    errors = np.abs(random_errors()) + 0.1
    state, beta = filled(errors), 0.7
    drawn = draw(state, jax.random.key(1), batch_size=256, beta=beta)
    priorities = (errors + 1e-6) ** ALPHA
    weights = (CAPACITY * priorities[np.asarray(drawn.index)] / priorities.sum()) ** -beta
    np.testing.assert_allclose(drawn.weights, weights / weights.max(), rtol=1e-4)  # float32 powers and sums
    assert float(drawn.weights.max()) == 1


def test_a_row_drawn_twice_keeps_the_larger_error_in_either_order():
    state = filled(np.ones(10), exponent=1.0, capacity=100)
    for errors in ([5.0, 7.0, 3.0], [7.0, 5.0, 3.0]):
        after = replay.priorities(set_priorities(state, np.array([4, 4, 6]), np.float32(errors), 1.0))
        expected = np.ones(10)
        expected[[4, 6]] = 7, 3
        np.testing.assert_allclose(np.asarray(after)[:10], expected, rtol=1e-5)


def test_an_exponent_of_0_replays_uniformly():
    state = filled(random_errors(), exponent=0.0)
    drawn = draw(state, jax.random.key(2), batch_size=64, beta=1.0)
    np.testing.assert_allclose(replay.priorities(state), np.ones(CAPACITY))
    np.testing.assert_allclose(drawn.weights, np.ones(64), rtol=1e-6)


def test_two_seeds_under_vmap_are_two_single_replays():
    errors = np.stack([random_errors()[:200], random_errors()[200:400]]).astype(np.float32)

    def run(errors, key):
        state = replay.add(replay.init(ROW, 128), jax.tree.map(lambda x: x[:100], rows(0, 200)), errors[:100], ALPHA)
        return replay.sample(state, key, 32, 0.5).index

    keys = jax.random.split(jax.random.key(3), 2)
    together = jax.jit(jax.vmap(run))(errors, keys)
    for i in range(2):
        np.testing.assert_array_equal(together[i], jax.jit(run)(errors[i], keys[i]))


def test_more_rows_than_places_are_refused():
    with pytest.raises(ValueError, match="11 rows at once do not fit into a replay of 10"):
        replay.add(replay.init(ROW, 10), rows(0, 11), jnp.ones(11), ALPHA)
