"""What the runs of this folder share: sizes, forced actions, and what one device does that has the minibatches of eight."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.agents.optimisation import shuffle

DEVICES, EPISODES, LENGTH, UPDATES = 8, 16, 12, 3
OWN = EPISODES // DEVICES
RULES = jt.EnvConfig.net(episode_length=9, diversity_window=8)  # episodes end, and start afresh, within a collection
EXECUTORS = ("shard_map", "pmap", "vmap")
FIRST_QUICKLY = ("shard_map", *(pytest.param(name, marks=pytest.mark.slow) for name in EXECUTORS[1:]))


def forced(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).integers(0, RULES.n_actions, shape), jnp.int32)


def union_of_shuffles(key, n_rows, minibatches):
    """Minibatch k of all devices, as rows of the whole collection: device d has its columns d OWN to (d + 1) OWN."""
    parts = []
    for device in range(DEVICES):
        order = shuffle(jax.random.fold_in(key, device), n_rows // DEVICES, minibatches)
        step, column = order // OWN, order % OWN
        parts.append(step * EPISODES + device * OWN + column)
    return jnp.concatenate(parts, axis=1)


def random_weights(init, seed):
    """Normal numbers of standard deviation 0.3 in the shapes that `init` gives, whose compilation takes seconds."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0.0, 0.3, x.shape), x.dtype), jax.eval_shape(init))


def data(tree):
    """In NumPy, typed keys as their data."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x), tree)


def assert_same(actual, expected, tolerance=1e-10):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), data(actual), data(expected)
    )
