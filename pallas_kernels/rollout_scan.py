"""The contract of the rollout kernel: what a lane and its policy are, and L steps of N lanes as a plain `lax.scan`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.sampling import log_prob

Array = jax.Array


class Layer(NamedTuple):
    """A dense layer: kernel `[in, out]`, bias `[out]`."""

    kernel: Any
    bias: Any


class SplitPolicy(NamedTuple):
    """A softmax policy whose first layer is split: leaky ReLU between the layers, none after the last.

    table `[T, H]`: the first layer's sums without the state's values, bias included; values `[K, H]`: the rows of its
    kernel that those values multiply; layers: the rest, the last one gives the logits `[A]`.
    """

    table: Any
    values: Any
    layers: tuple[Layer, ...]

    def logits(self, row: Array, values: Sequence[Array], *, negative_slope: float) -> Array:
        """Logits `[N, A]` at rows `[N]` (clipped to the table) with K values, each `[N]`, in JAX's current precision."""
        row = jnp.clip(row, 0, len(self.table) - 1)
        x = self.table[row] + jnp.stack(values, axis=-1) @ self.values
        for kernel, bias in self.layers:
            x = jnp.where(x > 0, x, negative_slope * x) @ kernel + bias
        return x


class Environment(NamedTuple):
    """What a lane does, elementwise over lanes, in operations that Pallas lowers; every array is `[lanes]`.

    row(state) -> the table row it stands at, int32
    observe(state, here) -> tuple of the K values that the policy sees besides the row
    step(state, effect, here, ahead) -> (state one row on, whether the episode ended, a record: any pytree)
    restart(row, here) -> state of a fresh episode at that row

    here and ahead are the tables' rows at and after the lane's (row indices clipped to the tables); effect is the row of
    the effects that the action chose. States hold no bools.
    """

    row: Callable[[Any], Array]
    observe: Callable[[Any, Any], tuple[Array, ...]]
    step: Callable[[Any, Any, Any, Any], tuple[Any, Array, Any]]
    restart: Callable[[Array, Any], Any]


class Steps(NamedTuple):
    """What a rollout hands over, every leaf `[L, N]`: actions (int32), their log-probabilities, the step's record."""

    actions: Any
    log_probs: Any
    record: Any


def scan_rollout(
    environment: Environment,
    policy: Callable[[Array, tuple[Array, ...]], Array],
    choose: Callable[[Array, Any], Array],
    tables: Any,
    effects: Any,
    state: Any,
    draws: Any,
    restarts: Array,
) -> tuple[Any, Steps]:
    """L steps of N lanes as a `lax.scan`, for any policy and choice; see `pallas_kernels.rollout`.

    Args:
      environment: what a lane does.
      policy: rows `[N]` and the environment's K values, each `[N]`, to logits `[N, A]`.
      choose: logits `[N, A]` and one step's draws to actions `[N]` int32.
      tables: pytree of `[T]` arrays; effects: pytree of `[A]` arrays; state: pytree of `[N]` arrays.
      draws: pytree with leading axis L.
      restarts: `[L, N]` int32.

    Returns:
      The state after L steps, and the steps.
    """
    last_row = jax.tree.leaves(tables)[0].shape[0] - 1

    def rows(index: Array) -> Any:
        return jax.tree.map(lambda x: x[jnp.clip(index, 0, last_row)], tables)

    def step(state: Any, inputs: tuple[Any, Array]) -> tuple[Any, Steps]:
        draw, restart = inputs
        row = environment.row(state)
        here, ahead = rows(row), rows(row + 1)
        logits = policy(row, environment.observe(state, here))
        action = choose(logits, draw)
        moved, done, record = environment.step(state, jax.tree.map(lambda x: x[action], effects), here, ahead)
        fresh = environment.restart(restart, rows(restart))
        after = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, moved)
        return after, Steps(action, log_prob(logits, action), record)

    return jax.lax.scan(step, state, (draws, restarts))
