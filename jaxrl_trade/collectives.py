"""Reductions and draws of a program that may be one of several alike, each with its share of the episodes.

`axis` names the mapped axis along which those programs lie, of `shard_map`, `pmap` or `vmap`. None is a program alone: it has all
of the episodes, and every function here leaves its numbers as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

Array = jax.Array
Tree = TypeVar("Tree")


def mean(tree: Tree, axis: str | None) -> Tree:
    """The mean over the programs, of every leaf; of all the episodes if they hold equally many."""
    return tree if axis is None else jax.lax.pmean(tree, axis)


def total(tree: Tree, axis: str | None) -> Tree:
    """The sum over the programs, of every leaf."""
    return tree if axis is None else jax.lax.psum(tree, axis)


def largest(tree: Tree, axis: str | None) -> Tree:
    """The largest of the programs' values, of every leaf, entry by entry."""
    return tree if axis is None else jax.lax.pmax(tree, axis)


def variance(x: Array, axis: str | None) -> Array:
    """The population variance of every program's `x [...]` together; scalar."""
    return mean(jnp.mean(jnp.square(x - mean(x.mean(), axis))), axis)


def share(draw: Callable[[tuple[int, ...]], Array], shape: tuple[int, ...], episodes: int, axis: str | None) -> Array:
    """A program's part of a draw that is made for the episodes of all of them, so that a program alone would draw the same.

    Args:
      draw: from a shape to random numbers; the same in every program.
      shape: of the part.
      episodes: the dimension that counts episodes; program d has columns dN to (d + 1)N of it.
      axis: of the programs.
    """
    if axis is None:
        return draw(shape)
    count = shape[episodes]
    whole = (*shape[:episodes], count * jax.lax.axis_size(axis), *shape[episodes + 1 :])
    return jax.lax.dynamic_slice_in_dim(draw(whole), jax.lax.axis_index(axis) * count, count, episodes)


def own_key(key: Array, axis: str | None) -> Array:
    """A key for what each program draws by itself; a single program's is the key that came."""
    if axis is None or jax.lax.axis_size(axis) == 1:
        return key
    return jax.random.fold_in(key, jax.lax.axis_index(axis))
