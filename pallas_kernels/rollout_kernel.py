"""The kernel of a rollout: L steps of a few lanes, from the first to the last, in one block that talks to no other.

Each lane stands at a row of some tables and moves on by one row a step, or to a given row where its episode ends. A step
reads the rows here and ahead, asks a small network for logits, samples an action and traces the caller's own
`Environment`. Only what decides the next action is in the loop: L steps follow each other, and their latency is what a
rollout costs. Therefore

- the part of the first layer that a row alone decides comes as a table `[T, H]`, and a step adds only the K columns of
  the state's values;
- the tables' rows and the draw of the next step are loaded one step ahead, as if no episode ended; only lanes that restart
  wait. (The first layer's rows are not: at one lane a block that would save 1 to 4 %, and elsewhere it takes too many registers.)
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.backend import load, store
from pallas_kernels.rollout_environment import strongly_typed
from pallas_kernels.rollout_network import network
from pallas_kernels.rollout_plan import Static, Tiles
from pallas_kernels.rollout_scan import Choice, Environment, SplitPolicy, Steps, as_arrays

Array = jax.Array
WARP = 32  # threads


class Inputs(NamedTuple):
    """The kernel's reads: `rollout`'s arrays, layers padded to powers of two, weights as `operands`."""

    policy: SplitPolicy
    tables: Any
    effects: Any
    state: Any
    draws: Any
    restarts: Any


class _Carry(NamedTuple):
    """Registers between steps: the state, the tables' rows at and after its own, the draw."""

    state: Any
    here: Any
    ahead: Any
    draw: Array


def rollout_kernel(
    ins: Inputs, state_out: Any, steps_out: Steps, *, static: Static, dtypes: Any, n_actions: int
) -> None:
    """One block. dtypes: of the tables and of the effects as the environment sees them."""
    env, n_lanes = as_arrays(strongly_typed(static.environment)), ins.draws.shape[1]
    length = ins.draws.shape[0]
    lane, place, real = _lanes(static.tiles.lanes, n_lanes)
    read = _Reader(ins, dtypes[0], static.tiles)
    logits_of = network(ins.policy, static)

    def step(t: Array | int, c: _Carry) -> _Carry:
        row = env.row(c.state)
        logits = logits_of(read.first(row), env.observe(c.state, c.here))
        action, log_prob = _choose(logits, c.draw, n_actions, static.choice)
        effect = jax.tree.map(lambda ref, d: ref[action].astype(d), ins.effects, dtypes[1])
        moved, done, record = env.step(c.state, effect, c.here, c.ahead)
        taken = Steps(action, log_prob, record)
        for ref, value in zip(jax.tree.leaves(steps_out), jax.tree.leaves(taken), strict=True):
            store(ref.at[t, place], jnp.asarray(value), mask=real)
        # first read in the next step after its network: no step waits for these loads
        on = _Carry(moved, c.ahead, read.rows(row + 2), ins.draws[jnp.minimum(t + 1, length - 1), lane])
        return _restart(env, read, done, ins.restarts.at[t, lane], on)

    state = jax.tree.map(lambda ref: ref[lane], ins.state)
    row = env.row(state)
    begin = _Carry(state, read.rows(row), read.rows(row + 1), ins.draws[0, lane])
    end = lax.fori_loop(0, length, step, begin)
    for ref, value in zip(jax.tree.leaves(state_out), jax.tree.leaves(end.state), strict=True):
        store(ref.at[place], value, mask=real)


def _lanes(size: int, n_lanes: int) -> tuple[Array, Array, Array | None]:
    """The block's lanes: where each reads, where it writes, and which exist.

    One that does not reads as the last one does, and writes nothing: its place is outside, because the interpreter puts
    back what stands at a masked place.
    """
    place = pl.program_id(0) * size
    if size == 1:
        return place, place, None
    place = place + jnp.arange(size)
    return jnp.minimum(place, n_lanes - 1), place, place < n_lanes


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Loads what a lane reads at a table row, clipped to the tables; lanes outside a mask touch no memory."""

    ins: Inputs
    dtypes: Any
    tiles: Tiles

    def rows(self, row: Array, mask: Array | None = None) -> Any:
        row, other = self._inside(row), None if mask is None else 1
        return jax.tree.map(lambda ref, d: load(ref.at[row], mask, other).astype(d), self.ins.tables, self.dtypes)

    def first(self, row: Array) -> Any:
        """The first layer's sums without the state's values, as `network` takes them."""
        table, row = self.ins.policy.table, self._inside(row)
        if self.tiles.chunk is not None:
            return lambda n, size: load(table.at[row[:, None], (n + jnp.arange(size))[None, :]])
        if self.tiles.lanes == 1:
            return (load(table.at[row, jnp.arange(table.shape[1])]),)
        size = min(self.tiles.columns, table.shape[1])
        columns = [begin + jnp.arange(size) for begin in range(0, table.shape[1], size)]
        return tuple(load(table.at[row[:, None], c[None, :]]) for c in columns)

    def _inside(self, row: Array) -> Array:
        return jnp.clip(row, 0, self.ins.policy.table.shape[0] - 1)


def _restart(env: Environment, read: _Reader, done: Array, place: Any, on: _Carry) -> _Carry:
    """The carry itself, or where an episode ended that of a fresh one at the row that `place` refers to."""
    if isinstance(done, jax.core.Tracer):
        done = done.astype(jnp.bool_)  # Triton's masks are nothing else
    else:  # nor is a condition a constant
        row = env.row(on.state)
        done = jnp.logical_and(done, row == row)

    def select(new: Any, old: Any) -> Any:
        def one(x: Array, y: Array) -> Array:
            return jnp.where(done, jnp.asarray(x, jnp.result_type(x, y)), y)  # typed, as in rollout_environment

        return jax.tree.map(one, new, old)

    if read.tiles.lanes == 1:

        def fresh() -> tuple[Array, Any, Any]:
            row = load(place)
            return row, read.rows(row), read.rows(row + 1)

        row, here, ahead = lax.cond(done, fresh, lambda: (env.row(on.state), on.here, on.ahead))
    else:
        row = load(place, done, 0)
        here, ahead = select((read.rows(row, done), read.rows(row + 1, done)), (on.here, on.ahead))
    return on._replace(state=select(env.restart(row, here), on.state), here=here, ahead=ahead)


def _choose(logits: Array, draw: Array, n_actions: int, choice: Choice) -> tuple[Array, Array]:
    """Action and its log-probability, `[]` or `[lanes]` each."""
    if choice == "greedy":
        best = lax.argmax(logits, logits.ndim - 1, jnp.int32)  # not jnp's, whose index has 64 bits under jax_enable_x64
        best = jnp.minimum(best, n_actions - 1)  # NaN is greater than none
        action = jnp.where(draw < 0, best, jnp.minimum(draw, n_actions - 1))
        return action, jnp.log((action == best).astype(jnp.float32))  # Triton takes no infinite literal for one lane
    return _sample(logits, draw, n_actions)


def _sample(logits: Array, draw: Array, n_actions: int) -> tuple[Array, Array]:
    """The softmax policy's; the draw is a uniform number or the action itself."""

    def spread(x: Array) -> Array:
        return x if x.ndim == 0 else x[:, None]

    most = jnp.max(logits, axis=-1)
    chances = jnp.exp(logits - spread(most))
    total = jnp.sum(chances, axis=-1)
    if jnp.issubdtype(draw.dtype, jnp.floating):
        action = jnp.minimum(_sums_up_to(draw * total, chances), n_actions - 1)
    else:
        action = jnp.clip(draw, 0, n_actions - 1)
    entry = jnp.arange(logits.shape[-1])
    taken = (entry if logits.ndim == 1 else entry[None, :]) == spread(action)
    return action, jnp.sum(jnp.where(taken, logits, 0.0), axis=-1) - most - jnp.log(total)


def _sums_up_to(limit: Array, x: Array) -> Array:
    """How many of the running sums of x `[n]` or `[lanes, n]` are at most the limit, `[]` or `[lanes]`."""
    if x.ndim == 2:
        return jnp.sum((jnp.cumsum(x, axis=1) <= limit[:, None]).astype(jnp.int32), axis=1)
    # neighbours together, so that there is a sum for each thread of one warp: no other's is waited for
    size = max(1, x.shape[0] // WARP)
    members = [member.reshape(-1) for member in jnp.split(x.reshape(-1, size), size, axis=1)]
    together = functools.reduce(jnp.add, members)
    sums, count = jnp.cumsum(together) - together, jnp.zeros(together.shape, jnp.int32)
    for member in members:
        sums = sums + member
        count = count + (sums <= limit).astype(jnp.int32)
    return jnp.sum(count)
