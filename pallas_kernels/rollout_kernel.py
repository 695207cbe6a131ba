"""The kernel of a rollout: L steps of a few lanes, from the first to the last, in one block that talks to no other.

Each lane stands at a row of some tables and moves on by one row a step, or to a given row where its episode ends. A step
reads the rows here and ahead, asks a small network for logits, samples an action and traces the caller's own
`Environment`. Only what decides the next action is in the loop: L steps follow each other, and their latency is what a
rollout costs. Therefore

- the part of the first layer that a row alone decides comes as a table `[T, H]`, and a step adds only the K columns of
  the state's values;
- the tables' rows and the draw of the next step are loaded one step ahead, as if no episode ended; only lanes that restart
  wait. (The first layer's rows are not: at one lane a block that would save 2 %, and elsewhere it takes too many registers.)

A block of one lane is all scalars and vectors: its products are sums of 32-bit floats, and nothing is laid out anew
between them. A block of several lanes multiplies on the tensor cores. There the first layer comes in pieces of
`Tiles.columns` columns, so narrow that a warp's threads hold one lane each rather than all lanes each: Triton computes the
environment in the layout of these pieces' rows.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.backend import dot, load, store
from pallas_kernels.numerics import bf16_terms, dot_f32
from pallas_kernels.rollout_scan import Environment, SplitPolicy, Steps

Array = jax.Array
Products = Literal["float32", "tf32", "bfloat16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
    """How the lanes are cut: lanes a block, warps a block, columns of the first layer a piece (lanes > 1)."""

    lanes: int
    warps: int
    columns: int = 128


def choose_tiles(n_lanes: int, products: Products, copies: int = 1) -> Tiles:
    """The fastest measured on an H200 (scripts/benchmark.py); every choice gives a right answer.

    copies: rollouts of n_lanes that run at once, each with weights of its own, so that no tile holds lanes of two.
    """
    total = n_lanes * copies
    if total <= 264:
        return Tiles(lanes=1, warps=4)
    if total <= 4224 or n_lanes < 16:
        return Tiles(lanes=8, warps=4, columns=64)
    if products == "float32":  # three terms of every weight in registers
        return Tiles(lanes=32, warps=4, columns=32)
    if total <= 8448 or n_lanes < 128:
        return Tiles(lanes=16, warps=4, columns=32)
    return Tiles(lanes=128, warps=4, columns=128) if products == "bfloat16" else Tiles(lanes=64, warps=4, columns=32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Static:
    """What is compiled in."""

    environment: Environment
    negative_slope: float
    products: Products
    tiles: Tiles
    interpret: bool


class Inputs(NamedTuple):
    """The kernel's reads: `rollout`'s arrays, layers padded to powers of two."""

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
    env, n_lanes = static.environment, ins.draws.shape[1]
    length = ins.draws.shape[0]
    lane, place, real = _lanes(static.tiles.lanes, n_lanes)
    read = _Reader(ins, dtypes[0], static.tiles)
    logits_of = _network(ins.policy, static)

    def step(t: Array | int, c: _Carry) -> _Carry:
        row = env.row(c.state)
        logits = logits_of(read.first(row), env.observe(c.state, c.here))
        action, log_prob = _choose(logits, c.draw, n_actions)
        effect = jax.tree.map(lambda ref, d: ref[action].astype(d), ins.effects, dtypes[1])
        moved, done, record = env.step(c.state, effect, c.here, c.ahead)
        taken = Steps(action, log_prob, record)
        for ref, value in zip(jax.tree.leaves(steps_out), jax.tree.leaves(taken), strict=True):
            store(ref.at[t, place], value, mask=real)
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

    def first(self, row: Array) -> tuple[Array, ...]:
        table, row = self.ins.policy.table, self._inside(row)
        if self.tiles.lanes == 1:
            return (load(table.at[row, jnp.arange(table.shape[1])]),)
        size = min(self.tiles.columns, table.shape[1])
        columns = [begin + jnp.arange(size) for begin in range(0, table.shape[1], size)]
        return tuple(load(table.at[row[:, None], c[None, :]]) for c in columns)

    def _inside(self, row: Array) -> Array:
        return jnp.clip(row, 0, self.ins.policy.table.shape[0] - 1)


def _restart(env: Environment, read: _Reader, done: Array, place: Any, on: _Carry) -> _Carry:
    """The carry itself, or where an episode ended that of a fresh one at the row that `place` refers to."""

    def select(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda x, y: jnp.where(done, x, y), new, old)

    if read.tiles.lanes == 1:

        def fresh() -> tuple[Array, Any, Any]:
            row = load(place)
            return row, read.rows(row), read.rows(row + 1)

        row, here, ahead = lax.cond(done, fresh, lambda: (env.row(on.state), on.here, on.ahead))
    else:
        row = load(place, done, 0)
        here, ahead = select((read.rows(row, done), read.rows(row + 1, done)), (on.here, on.ahead))
    return on._replace(state=select(env.restart(row, here), on.state), here=here, ahead=ahead)


def _network(policy: SplitPolicy, static: Static) -> Callable[[Sequence[Array], Sequence[Array]], Array]:
    """Logits `[AP]` or `[lanes, AP]` from the first layer's pieces and the state's values; loads the weights, before the loop."""
    if static.tiles.lanes == 1:
        return _vector_network(policy, static)
    size = min(static.tiles.columns, policy.table.shape[1])
    pieces = [pl.ds(begin, size) for begin in range(0, policy.table.shape[1], size)]
    prepare, multiply = _PRODUCTS[static.products]
    (kernel_0, bias_0), *rest = policy.layers
    kernels_0 = [prepare(kernel_0[piece, :]) for piece in pieces]
    layers = [(prepare(kernel[...]), bias) for kernel, bias in rest]

    # biases and columns are read anew in every step: they would fill the registers
    def logits(first: Sequence[Array], values: Sequence[Array]) -> Array:
        x: Any = bias_0[...][None, :]
        for y, piece, kernel in zip(first, pieces, kernels_0, strict=True):
            for k, value in enumerate(values):
                y = y + value[:, None] * policy.values[k, piece][None, :]
            x = x + multiply(prepare(_leaky(y, static)), kernel)
        for kernel, bias in layers:
            x = multiply(prepare(_leaky(x, static)), kernel) + bias[...][None, :]
        return cast(Array, x)

    return logits


def _vector_network(policy: SplitPolicy, static: Static) -> Callable[[Sequence[Array], Sequence[Array]], Array]:
    columns = [policy.values[k, :] for k in range(policy.values.shape[0])]
    layers = [(kernel[...], bias[...]) for kernel, bias in policy.layers]

    def logits(first: Sequence[Array], values: Sequence[Array]) -> Array:
        (x,) = first
        for value, column in zip(values, columns, strict=True):
            x = x + value * column
        for kernel, bias in layers:
            x = jnp.sum(_leaky(x, static)[:, None] * kernel, axis=0) + bias
        return x

    return logits


def _leaky(x: Array, static: Static) -> Array:
    return jnp.where(x > 0, x, static.negative_slope * x)


# What a product does to its operands first (once for the weights), and the product.
_PRODUCTS: dict[str, tuple[Callable[[Array], Any], Callable[[Any, Any], Array]]] = {
    "float32": (bf16_terms, dot_f32),
    "tf32": (lambda x: x, dot),
    "bfloat16": (lambda x: x.astype(jnp.bfloat16), dot),
}


def _choose(logits: Array, draw: Array, n_actions: int) -> tuple[Array, Array]:
    """Action and its log-probability, `[]` or `[lanes]` each; the draw is a uniform number or the action itself."""

    def spread(x: Array) -> Array:
        return x if x.ndim == 0 else x[:, None]

    most = jnp.max(logits, axis=-1)
    chances = jnp.exp(logits - spread(most))
    total = jnp.sum(chances, axis=-1)
    if jnp.issubdtype(draw.dtype, jnp.floating):
        below = jnp.cumsum(chances, axis=-1) <= spread(draw * total)
        action = jnp.minimum(jnp.sum(below.astype(jnp.int32), axis=-1), n_actions - 1)
    else:
        action = jnp.clip(draw, 0, n_actions - 1)
    entry = jnp.arange(logits.shape[-1])
    taken = (entry if logits.ndim == 1 else entry[None, :]) == spread(action)
    return action, jnp.sum(jnp.where(taken, logits, 0.0), axis=-1) - most - jnp.log(total)
