"""Replays of several programs dealt out anew: nothing is lost, the oldest rows go first, and the trees are right."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_trade import replay as replays
from jaxrl_trade.replay import Replay

CAPACITY = 240  # of all programs together
ROW = jnp.zeros((2,), jnp.int32)


def together(parts: list[Replay]) -> Replay:
    """As programs hold them: arrays end to end, one `next` and one `size`."""
    rows, sums = (
        jax.tree.map(lambda *xs: jnp.concatenate(xs), *[getattr(p, f) for p in parts]) for f in ("rows", "sums")
    )
    return Replay(rows=rows, sums=sums, next=parts[0].next, size=parts[0].size)


def apart(held: Replay, count: int) -> list[Replay]:
    cut = lambda tree, i: jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:])[i], tree)  # noqa: E731
    return [Replay(cut(held.rows, i), cut(held.sums, i), held.next, held.size) for i in range(count)]


def filled(programs: int, updates: int) -> Replay:
    """24 rows an update in all; row (update, number), whose priority is a function of it."""
    parts = [replays.init(ROW, CAPACITY // programs) for _ in range(programs)]
    for update in range(updates):
        rows = np.stack([np.full(24, update), np.arange(24)], axis=1).reshape(programs, -1, 2)
        parts = [
            replays.add(part, jnp.asarray(own, jnp.int32), error_of(own), 1.0)
            for part, own in zip(parts, rows, strict=True)
        ]
    return together(parts)


def error_of(rows: np.ndarray) -> jax.Array:
    return jnp.asarray(1.0 + rows[:, 0] + rows[:, 1] / 100)


def contents(held: Replay, count: int) -> list[np.ndarray]:
    """Of each program: its rows, the oldest first."""
    orders = []
    for part in apart(held, count):
        capacity, size = CAPACITY // count, int(part.size)
        order = (int(part.next) - size + np.arange(size)) % capacity
        np.testing.assert_allclose(
            np.asarray(replays.priorities(part))[order], error_of(np.asarray(part.rows)[order]) + 1e-6, rtol=1e-6
        )
        assert np.count_nonzero(replays.priorities(part)) == size
        orders.append(np.asarray(part.rows)[order])
    return orders


@pytest.mark.parametrize("updates", [4, 13])  # half full, overwritten
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 3)])
def test_every_row_is_kept_and_each_part_has_rows_of_every_age(before, after, updates):
    held = filled(before, updates)
    old, new = (
        contents(held, before),
        contents(jax.jit(replays.regroup, static_argnums=(1, 2))(held, before, after), after),
    )
    assert sorted(map(tuple, np.concatenate(new))) == sorted(map(tuple, np.concatenate(old)))
    for part in new:
        assert len(part) == min(updates * 24, CAPACITY) // after
        ages = part[:, 0]
        assert (np.diff(ages) >= 0).all()
        assert {int((ages == age).sum()) for age in ages} <= {24 // after}


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
def test_the_parts_are_replays_as_any_other(before, after):
    """Their trees have the sums of their leaves and the shapes of `init`; the next rows take the oldest ones' places."""
    for part in apart(replays.regroup(filled(before, 13), before, after), after):
        kinds = [
            jax.tree.map(lambda x: (x.shape, x.dtype.name), x) for x in (part, replays.init(ROW, CAPACITY // after))
        ]
        assert kinds[0] == kinds[1]
        leaves = np.asarray(part.sums[-1], np.float64)
        np.testing.assert_allclose(np.asarray(part.sums[0]).sum(), leaves.sum(), rtol=1e-6)
        for above, below in zip(part.sums[:-1], part.sums[1:], strict=True):
            np.testing.assert_allclose(above.reshape(-1)[: len(below)], below.sum(-1), rtol=1e-6)
        fresh = np.stack([np.full(6, 99), np.arange(6)], axis=1)
        after_it = replays.add(part, jnp.asarray(fresh, jnp.int32), error_of(fresh), 1.0)
        lost = set(map(tuple, np.asarray(part.rows).tolist())) - set(map(tuple, np.asarray(after_it.rows).tolist()))
        assert max(age for age, _ in lost) <= min(age for age, _ in map(tuple, np.asarray(after_it.rows).tolist()))
