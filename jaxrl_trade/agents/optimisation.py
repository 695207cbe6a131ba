"""What the agents' updates share: the optimiser and the order of minibatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_trade.config import Scalar

Array = jax.Array


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


def shuffle(key: Array, n_rows: int, minibatches: int) -> Array:
    """A permutation of the rows, `[minibatches, n_rows / minibatches]` int32."""
    return jax.random.permutation(key, n_rows).reshape(minibatches, -1).astype(jnp.int32)
