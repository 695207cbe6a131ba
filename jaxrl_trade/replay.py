"""Prioritised replay on the device (Schaul et al. 2016, arXiv:1511.05952). A ring of rows and a tree of their priorities.

Knows nothing of markets or networks: a row is any pytree. Everything is a pure function of a pytree, so replays live in a scan's
carry and are vmapped over seeds. The sums of priorities form a wide tree, FANOUT children to a node: sampling descends three or
four levels for 2^17 rows, and every sum is recomputed from its children, so that none of them drifts. The capacity is the longest
history; once it is full, new rows take the oldest rows' places.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_trade import collectives
from jaxrl_trade.config import Scalar

Array = jax.Array

FANOUT = 32
PRIORITY_FLOOR = 1e-6  # added to |TD error|: no row is forgotten


@struct.dataclass
class Replay:
    """C rows; `sums` holds the tree's levels from the root `[1, FANOUT]` to the leaves' `[K, FANOUT]`, K FANOUT >= C."""

    rows: Any  # pytree, every leaf [C, ...]
    sums: tuple[Array, ...]  # of the priorities, 0 where no row is
    next: Array  # int32, the place of the next row
    size: Array  # int32, rows held


@struct.dataclass
class Sample:
    """B rows drawn, every leaf `[B, ...]`."""

    rows: Any
    index: Array  # int32, their places, for `set_priorities`
    weights: Array  # importance weights, the largest of the batch is 1


def init(like: Any, capacity: int) -> Replay:
    """An empty replay for rows of the shapes and dtypes of `like`, a pytree of arrays."""
    shapes = [-(-capacity // FANOUT)]
    while shapes[0] > 1:
        shapes.insert(0, -(-shapes[0] // FANOUT))
    return Replay(
        rows=jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), like),
        sums=tuple(jnp.zeros((n, FANOUT), float) for n in shapes),
        next=jnp.zeros((), jnp.int32),
        size=jnp.zeros((), jnp.int32),
    )


def add(replay: Replay, rows: Any, td_errors: Array, exponent: Scalar) -> Replay:
    """The replay with M <= C new rows `[M, ...]` in the places of its oldest.

    Args:
      replay: of C rows.
      rows: pytree, every leaf `[M, ...]`.
      td_errors: `[M]`, their priorities are (|e| + 1e-6)^exponent.
      exponent: alpha; 0 replays uniformly.
    """
    capacity, count = _capacity(replay), len(td_errors)
    if count > capacity:
        raise ValueError(f"{count} rows at once do not fit into a replay of {capacity}; raise its capacity")
    index = (replay.next + jnp.arange(count, dtype=jnp.int32)) % capacity
    return Replay(
        rows=jax.tree.map(lambda held, new: held.at[index].set(new), replay.rows, rows),
        sums=_with_leaves(replay.sums, index, priority(td_errors, exponent)),
        next=(replay.next + count) % capacity,
        size=jnp.minimum(replay.size + count, capacity),
    )


def sample(replay: Replay, key: Array, batch_size: int, beta: Scalar, axis: str | None = None) -> Sample:
    """Rows drawn in proportion to their priorities, with replacement, one from each of `batch_size` equal strata.

    The importance weight of a row with probability P is (size x P)^-beta, over the batch's largest. Along `axis` several programs
    have a replay each, equally filled, and equal parts of one batch: then the largest is that of all parts, while size x P is the
    same in a part as in the whole.
    """
    total = replay.sums[0].sum()
    u = jax.random.uniform(key, (batch_size,), total.dtype)
    mass = (jnp.arange(batch_size) + u) / batch_size * total
    index, drawn = find(replay.sums, mass)
    weights = (replay.size * (drawn / total)) ** -jnp.asarray(beta, total.dtype)
    return Sample(
        rows=jax.tree.map(lambda held: held[index], replay.rows),
        index=index,
        weights=weights / collectives.largest(weights.max(), axis),
    )


def set_priorities(replay: Replay, index: Array, td_errors: Array, exponent: Scalar) -> Replay:
    """The replay with the priorities of rows `index [B]` renewed; of a row drawn more than once, the largest error counts."""
    return dataclasses.replace(replay, sums=_with_leaves(replay.sums, index, priority(td_errors, exponent)))


def regroup(replay: Replay, before: int, after: int) -> Replay:
    """The replays of `before` programs, equally filled, as those of `after`: all rows and priorities, each the oldest first.

    Args:
      replay: arrays end to end, C rows in all; `next` and `size` are those of each.
      before, after: divide C, and `after` also the rows held.
    """
    capacity = _capacity(replay) // before
    oldest = (replay.next - replay.size + jnp.arange(capacity, dtype=jnp.int32)) % capacity
    # by age, with rows of one age side by side; then dealt like cards, so that every part has all ages
    places = (oldest[:, None] + capacity * jnp.arange(before, dtype=jnp.int32)).reshape(-1, after).T.reshape(-1)
    leaves = replay.sums[-1].reshape(before, -1)[:, :capacity].reshape(-1)[places].reshape(after, -1)
    size = (replay.size * before // after).astype(jnp.int32)
    return Replay(
        rows=jax.tree.map(lambda held: held[places], replay.rows),
        sums=jax.tree.map(lambda level: level.reshape(-1, FANOUT), jax.vmap(_tree)(leaves)),
        next=size % leaves.shape[1],
        size=size,
    )


def priority(td_errors: Array, exponent: Scalar) -> Array:
    """(|e| + 1e-6)^exponent."""
    return (jnp.abs(td_errors) + PRIORITY_FLOOR) ** jnp.asarray(exponent, td_errors.dtype)


def priorities(replay: Replay) -> Array:
    """The priorities `[C]`, 0 where no row is."""
    return replay.sums[-1].reshape(-1)[: _capacity(replay)]


def find(sums: tuple[Array, ...], mass: Array) -> tuple[Array, Array]:
    """Where masses `[B]` in [0, total) fall along the cumulative priorities: the leaf's index and its priority.

    Rounding never leads to a leaf without priority, as long as there is one with it.
    """
    node = jnp.zeros(mass.shape, jnp.int32)
    for level in sums:
        children = level[node]
        cumulative = jnp.cumsum(children, axis=-1)
        last = (cumulative < cumulative[:, -1:]).sum(-1)  # the last child that holds any mass
        child = jnp.minimum((cumulative <= mass[:, None]).sum(-1), last)
        chosen = jnp.take_along_axis(children, child[:, None], axis=-1)[:, 0]
        before = jnp.take_along_axis(cumulative, child[:, None], axis=-1)[:, 0] - chosen
        mass = jnp.maximum(mass - before, 0.0)
        node = (node * FANOUT + child).astype(jnp.int32)
    return node, chosen


def _with_leaves(sums: tuple[Array, ...], index: Array, leaves: Array) -> tuple[Array, ...]:
    """The tree with other leaves at `index [M]`; where an index comes twice the larger leaf stays, in whatever order."""
    node, child = index // FANOUT, index % FANOUT
    levels = [sums[-1].at[node, child].set(0.0).at[node, child].max(leaves)]
    for level in reversed(sums[:-1]):
        total = levels[0][node].sum(-1)
        node, child = node // FANOUT, node % FANOUT
        levels.insert(0, level.at[node, child].set(total))
    return tuple(levels)


def _tree(leaves: Array) -> tuple[Array, ...]:
    """The sums over leaves `[C]`, in the shapes of `init`."""
    levels = [jnp.pad(leaves, (0, -len(leaves) % FANOUT)).reshape(-1, FANOUT)]
    while len(levels[0]) > 1:
        totals = levels[0].sum(-1)
        levels.insert(0, jnp.pad(totals, (0, -len(totals) % FANOUT)).reshape(-1, FANOUT))
    return tuple(levels)


def _capacity(replay: Replay) -> int:
    return jax.tree.leaves(replay.rows)[0].shape[0]
