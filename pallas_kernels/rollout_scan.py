"""The contract of the rollout kernel: what a lane and its policy are, and L steps of N lanes as a plain `lax.scan`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.sampling import forced, log_prob, sample

Array = jax.Array
Choice = Literal["softmax", "greedy"]


class Layer(NamedTuple):
    """A dense layer: kernel `[in, out]`, bias `[out]`."""

    kernel: Any
    bias: Any


class SplitPolicy(NamedTuple):
    """A network whose first layer is split: leaky ReLU between the layers, none after the last.

    table `[T, H]`: the first layer's sums without the state's values, bias included; values `[K, H]`: the rows of its
    kernel that those values multiply; layers: the rest, the last one gives the logits `[A]`.
    """

    table: Any
    values: Any
    layers: tuple[Layer, ...]

    def logits(self, row: Array, values: Sequence[Array], *, negative_slope: float) -> Array:
        """Logits `[N, A]` at rows `[N]` (clipped to the table) with K values, each `[N]`, in JAX's current precision."""
        row = jnp.clip(row, 0, len(self.table) - 1)
        x = self.table[row]
        if values:
            x = x + jnp.stack(values, axis=-1) @ self.values
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
    the effects that the action chose. States hold no bools. What is the same for all lanes may be given as a number.

    Pallas' Triton lowers arithmetic, comparisons, `jnp.where`, integer division and the usual functions of one number, but
    for example no `jnp.round`, no `//` of floats, no `jnp.select`, no random numbers, and no arrays from outside: those
    are tables or effects. An environment that needs them takes backend="xla". Nothing may depend on other lanes.
    """

    row: Callable[[Any], Array]
    observe: Callable[[Any, Any], tuple[Array, ...]]
    step: Callable[[Any, Any, Any, Any], tuple[Any, Array, Any]]
    restart: Callable[[Array, Any], Any]


def as_arrays(environment: Environment) -> Environment:
    """The same environment, which gives an array `[lanes]` also where the caller's gives a number; the row is int32."""

    def whole(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            lanes = jnp.shape(jax.tree.leaves(args)[0])

            def of_lanes(x: Any) -> Any:
                if jnp.shape(x) not in ((), lanes):
                    raise ValueError(
                        f"environment.{name} gives an array of shape {jnp.shape(x)}; wanted {lanes}, the lanes'"
                    )
                return jnp.broadcast_to(x, lanes) if lanes else x

            return jax.tree.map(of_lanes, function(*args))

        return run

    every = Environment(*(whole(name, function) for name, function in environment._asdict().items()))

    def row(state: Any) -> Array:
        index = jnp.asarray(every.row(state))
        if not jnp.issubdtype(index.dtype, jnp.integer):
            raise ValueError(f"environment.row gives {index.dtype}; wanted int32")
        return index.astype(jnp.int32)

    return every._replace(row=row)


class Steps(NamedTuple):
    """What a rollout hands over, every leaf `[L, N]`: actions (int32), their log-probabilities, the step's record.

    Under the choice "greedy" the policy is certain: 0 for the action that it takes, -inf for any other that was given.
    """

    actions: Any
    log_probs: Any
    record: Any


def choose(logits: Array, draw: Array, choice: Choice) -> tuple[Array, Array]:
    """Actions `[N]` int32 and their log-probabilities `[N]`, of logits `[N, A]` and draws `[N]`; see `pallas_kernels.rollout`."""
    if choice == "greedy":
        best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        action = jnp.where(draw < 0, best, forced(logits, draw))
        return action, jnp.where(action == best, 0.0, -jnp.inf).astype(logits.dtype)
    action = sample(logits, draw) if jnp.issubdtype(draw.dtype, jnp.floating) else forced(logits, draw)
    return action, log_prob(logits, action)


def scan_rollout(
    environment: Environment,
    policy: Callable[[Array, tuple[Array, ...]], Array],
    choice: Choice,
    tables: Any,
    effects: Any,
    state: Any,
    draws: Array,
    restarts: Array,
) -> tuple[Any, Steps]:
    """L steps of N lanes as a `lax.scan`, for any policy; see `pallas_kernels.rollout`.

    Args:
      environment: what a lane does.
      policy: rows `[N]` and the environment's K values, each `[N]`, to logits `[N, A]`.
      choice: what the logits mean and what the draws do.
      tables: pytree of `[T]` arrays; effects: pytree of `[A]` arrays; state: pytree of `[N]` arrays.
      draws, restarts: `[L, N]`.

    Returns:
      The state after L steps, and the steps.
    """
    environment = as_arrays(environment)
    last_row = max((x.shape[0] for x in jax.tree.leaves(tables)), default=1) - 1  # there may be no tables

    def rows(index: Array) -> Any:
        return jax.tree.map(lambda x: x[jnp.clip(index, 0, last_row)], tables)

    def step(state: Any, inputs: tuple[Array, Array]) -> tuple[Any, Steps]:
        draw, restart = inputs
        row = environment.row(state)
        here, ahead = rows(row), rows(row + 1)
        logits = policy(row, environment.observe(state, here))
        action, log_probs = choose(logits, draw, choice)
        moved, done, record = environment.step(state, jax.tree.map(lambda x: x[action], effects), here, ahead)
        fresh = environment.restart(restart, rows(restart))
        after = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, moved)
        return after, Steps(action, log_probs, record)

    return jax.lax.scan(step, state, (draws, restarts))
