"""What the agents' updates share: the optimiser and the order of minibatches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from jaxrl_trade.config import Scalar

Array = jax.Array


def optimiser(learning_rate: Scalar, max_grad_norm: Scalar) -> optax.GradientTransformation:
    """Clip by global norm, then Adam; built under jit, so that both arguments may be traced."""
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(learning_rate, eps=1e-5))


def shuffle(key: Array, n_rows: int, minibatches: int) -> Array:
    """A permutation of the rows, `[minibatches, n_rows / minibatches]` int32."""
    return jax.random.permutation(key, n_rows).reshape(minibatches, -1).astype(jnp.int32)
