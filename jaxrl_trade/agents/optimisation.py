"""What the agents' updates share: the optimiser and the order of minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_trade.config import Scalar

Array = jax.Array
CPU_ROWS = 2000  # that `mean_in_chunks` takes at once, about


def optimiser(learning_rate: Scalar, max_grad_norm: Scalar) -> optax.GradientTransformation:
    """Clip by global norm, then Adam; built under jit, so that both arguments may be traced."""
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(learning_rate, eps=1e-5))


def flatten(params: Any, opt: Any) -> tuple[Array, Any, Callable[[Array, Any], tuple[Any, Any]]]:
    """A network's weights and its optimiser's state as vectors, and the way back.

    One vector takes one launch where a pytree takes one for each layer, in the norm, in Adam and in the step itself.

    Returns:
      Weights `[P]`; the state with a vector `[P]` wherever it held a tree like the weights; a function of such two that gives
      the trees.
    """
    vector, unravel = ravel_pytree(params)
    structure = jax.tree.structure(params)

    def is_like_params(x: Any) -> bool:
        return bool(jax.tree.structure(x) == structure)  # type: ignore[operator]

    flat = jax.tree.map(lambda x: ravel_pytree(x)[0] if is_like_params(x) else x, opt, is_leaf=is_like_params)

    def restore(vector: Array, flat: Any) -> tuple[Any, Any]:
        trees = jax.tree.map(
            lambda like, x: unravel(x) if is_like_params(like) else x, opt, flat, is_leaf=is_like_params
        )
        return unravel(vector), trees

    return vector, flat, restore


def mean_in_chunks(function: Callable[..., Any], *rows: Any) -> Any:
    """The mean over B rows of a function that gives means over the rows it sees; on a CPU, chunk after chunk.

    There, the activations of 2,000 rows stay in the caches and those of 16,000 do not, which is a seventh of the critic's time.
    Other devices take all rows at once.

    Args:
      function: of rows, a pytree of means.
      rows: pytrees of `[B, ...]`.
    """
    n_rows = len(jax.tree.leaves(rows)[0])
    most = n_rows // CPU_ROWS if jax.default_backend() == "cpu" else 0
    n_chunks = next((k for k in range(most, 2 * most) if n_rows % k == 0), 1)
    if n_chunks == 1:
        return function(*rows)
    chunks = jax.tree.map(lambda x: x.reshape(n_chunks, -1, *x.shape[1:]), rows)
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *rows))

    def add(total: Any, chunk: Any) -> tuple[Any, None]:
        return jax.tree.map(lambda sum_, x: sum_ + x / n_chunks, total, function(*chunk)), None

    return jax.lax.scan(add, zero, chunks)[0]


def side_by_side(rows: Any) -> tuple[list[Array], Callable[[list[Array]], Any]]:
    """Rows `[M]` or `[M, k]` of a pytree as one array `[M, W]` of each dtype, and the way back for any of those rows.

    Rows chosen at random cost a visit to memory for each array that they are chosen from.
    """
    leaves, structure = jax.tree.flatten(rows)
    dtypes = sorted({x.dtype for x in leaves}, key=str)
    groups = [[i for i, x in enumerate(leaves) if x.dtype == dtype] for dtype in dtypes]
    joined = [jnp.concatenate([leaves[i].reshape(len(leaves[i]), -1) for i in group], axis=1) for group in groups]

    def separate(joined: list[Array]) -> Any:
        found: dict[int, Array] = {}
        for array, group in zip(joined, groups, strict=True):
            begin = 0
            for i in group:
                width = math.prod(leaves[i].shape[1:])
                found[i] = array[:, begin : begin + width].reshape(-1, *leaves[i].shape[1:])
                begin += width
        return jax.tree.unflatten(structure, [found[i] for i in range(len(leaves))])

    return joined, separate


def shuffle(key: Array, n_rows: int, minibatches: int) -> Array:
    """A random order of the rows, `[minibatches, n_rows / minibatches]` int32.

    One sort of single words, a row's random bits above its number: a ninth of `jax.random.permutation`'s time on a CPU, which is
    a third of a small network's update. Rows whose random bits agree stay together in the order of their numbers: one or two of
    64,000 rows, and few enough to be of no account up to 2^24 rows, where 8 random bits are left. Not stable, which equal
    words cannot show: XLA would sort their places along with them, on a GPU without its radix sort.
    """
    n_bits = (n_rows - 1).bit_length()
    if n_bits > 24:
        order = jax.random.permutation(key, n_rows)
    else:
        words = jax.random.bits(key, (n_rows,), jnp.uint32) << n_bits | jnp.arange(n_rows, dtype=jnp.uint32)
        order = jnp.sort(words, stable=False) & jnp.uint32((1 << n_bits) - 1)
    return order.reshape(minibatches, -1).astype(jnp.int32)
