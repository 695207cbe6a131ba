"""A walk for the rollout's tests: an `Environment` of its own, the same rules as NumPy float64 loops, and their comparison.

A lane collects `gain x rise` of what its action chose, now and then with the sign turned, and starts afresh when it has
collected too much, after seven steps, or where the table says so.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels as pk

SLOPE = 0.1
LIMIT, PATIENCE, LEAK = 1.5, 7, 0.9


class State(NamedTuple):
    row: Any  # int32
    age: Any  # int32
    purse: Any


class Tables(NamedTuple):
    price: Any
    kind: Any  # int32
    stops: Any  # bool


class Effects(NamedTuple):
    gain: Any
    turns: Any  # bool


class Record(NamedTuple):
    purse: Any
    kind: Any  # int32, of the row ahead
    turns: Any  # bool
    done: Any  # bool


def _step(state: State, effect: Effects, here: Tables, ahead: Tables) -> tuple[State, Any, Record]:
    earned = effect.gain * (ahead.price - here.price)
    purse = LEAK * state.purse + jnp.where(effect.turns, -earned, earned)
    age = state.age + 1
    done = (jnp.abs(purse) > LIMIT) | (age >= PATIENCE) | ahead.stops
    return State(state.row + 1, age, purse), done, Record(purse, ahead.kind, effect.turns, done)


ENVIRONMENT = pk.Environment(
    row=lambda state: state.row,
    observe=lambda state, here: (state.purse, here.price - state.purse),
    step=_step,
    restart=lambda row, here: State(row, jnp.zeros_like(row), 0.1 * here.price),
)


def _constant_step(state: State, effect: Effects, here: Tables, ahead: Tables) -> tuple[State, bool, Record]:
    del here, ahead
    return State(state.row + 1, 0, 0.5), True, Record(jnp.where(effect.turns, -jnp.inf, 0.5), 3, True, False)


OF_CONSTANTS = pk.Environment(  # numbers for arrays; every step ends an episode
    row=lambda state: state.row,
    observe=lambda state, here: (1.0, here.price),
    step=_constant_step,
    restart=lambda row, here: State(row, 1, 0.25),
)


@dataclasses.dataclass
class Walk:
    """Arguments of `pallas_kernels.rollout`, in NumPy."""

    policy: pk.SplitPolicy
    tables: Tables
    effects: Effects
    state: State
    draws: np.ndarray
    restarts: np.ndarray
    choice: pk.Choice

    def arguments(self) -> tuple:
        return jax.tree.map(
            jnp.asarray, (self.policy, self.tables, self.effects, self.state, self.draws, self.restarts)
        )


def random_policy(rng: np.random.Generator, rows: int, widths: tuple[int, ...]) -> pk.SplitPolicy:
    """widths: of the first layer, of those after it, and the number of actions."""

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    layers = (pk.Layer(normal(a, b) * np.float32((2 / a) ** 0.5), normal(b)) for a, b in itertools.pairwise(widths))
    return pk.SplitPolicy(normal(rows, widths[0]), normal(2, widths[0]), tuple(layers))


def random_walk(
    widths: tuple[int, ...],
    lanes: int,
    length: int,
    *,
    forced: bool = False,
    choice: pk.Choice = "softmax",
    rows: int = 50,
    seed: int = 0,
) -> Walk:
    """Of a greedy choice some actions are given, more are not; `forced` gives them all."""
    rng = np.random.default_rng(seed)
    n_actions = widths[-1]
    starts = rng.integers(0, rows, size=(length, lanes))  # the last ones walk beyond the end of the tables
    purse = rng.normal(size=lanes).astype(np.float32)
    draws = rng.integers(-2, n_actions + 2, (length, lanes)) if forced else rng.random((length, lanes))
    if choice == "greedy":
        draws = np.where(rng.random((length, lanes)) < 0.3, rng.integers(0, n_actions + 2, (length, lanes)), -1)
    return Walk(
        policy=random_policy(rng, rows, widths),
        tables=Tables(
            price=rng.normal(size=rows).astype(np.float32),
            kind=rng.integers(0, 9, rows).astype(np.int32),
            stops=rng.random(rows) < 0.1,
        ),
        effects=Effects(gain=rng.uniform(0, 1.5, n_actions).astype(np.float32), turns=rng.random(n_actions) < 0.4),
        state=State(
            rng.integers(-3, rows, lanes).astype(np.int32), rng.integers(0, PATIENCE, lanes).astype(np.int32), purse
        ),
        draws=draws.astype(np.int32 if forced or choice == "greedy" else np.float32),
        restarts=starts.astype(np.int32),
        choice=choice,
    )


@functools.partial(jax.jit, static_argnames=("backend", "choice", "products", "tiles"))
def run(*arguments, backend, products, choice="softmax", tiles=None):
    settings = {"choice": choice, "products": products, "backend": backend, "tiles": tiles}
    return pk.rollout(ENVIRONMENT, *arguments, negative_slope=SLOPE, **settings)


TOLERANCE = {"float32": 1e-5, "tf32": 2e-3, "bfloat16": 2e-2}  # of a log-probability, as a part of the largest logit
WIDTH = {
    "float32": 1e-6,
    "tf32": 1e-3,
    "bfloat16": 2e-2,
}  # of a near-tie: u this close to the end of an action's interval


def check(walk: Walk, after: Any, steps: pk.Steps, products: str) -> None:
    """The steps are the rules' own for these actions, and the actions are those of the network and the draws."""
    actions = np.asarray(steps.actions)
    expected = replay(walk, actions)
    assert expected.margin > 1e-5  # no decision that float32 could take otherwise
    for actual, wanted in zip(jax.tree.leaves((after, steps.record)), jax.tree.leaves(expected[:2]), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)  # float32, a few sums an episode
    assert steps.record.done.dtype == steps.record.turns.dtype == jnp.bool_
    logits = expected.logits
    if walk.choice == "greedy":
        check_greedy(walk, steps, logits, TOLERANCE[products] * np.abs(logits).max())
        return
    chance = np.exp(logits - logits.max(-1, keepdims=True))
    chance /= chance.sum(-1, keepdims=True)
    log_prob = np.log(np.take_along_axis(chance, actions[..., None], -1)[..., 0])
    largest = np.abs(logits).max()
    np.testing.assert_allclose(steps.log_probs, log_prob, rtol=0, atol=TOLERANCE[products] * largest)
    if products == "bfloat16":  # operands of 8 bits: the precision asked for is the one taken
        assert np.abs(steps.log_probs - log_prob).max() > 1e-4 * largest
    if walk.draws.dtype == np.int32:
        np.testing.assert_array_equal(actions, np.clip(walk.draws, 0, logits.shape[-1] - 1))
        return
    ends = np.concatenate([np.zeros_like(chance[..., :1]), np.cumsum(chance, -1)], axis=-1)
    low, high = (np.take_along_axis(ends, actions[..., None] + i, axis=-1)[..., 0] for i in (0, 1))
    assert (low - WIDTH[products] <= walk.draws).all()
    assert (walk.draws < high + WIDTH[products]).all()


def check_greedy(walk: Walk, steps: pk.Steps, logits: np.ndarray, tie: float) -> None:
    """The first of the greatest logits, up to near-ties, or the action that was given; certain where they are the same."""
    actions, n_actions = np.asarray(steps.actions), logits.shape[-1]
    taken = np.take_along_axis(logits, actions[..., None], -1)[..., 0]
    second, most = np.sort(logits, axis=-1)[..., -2:].transpose(2, 0, 1)
    is_free, is_clear = walk.draws < 0, most - second > tie
    assert (is_free & is_clear).mean() > 0.3
    assert (taken >= most - tie)[is_free].all()
    np.testing.assert_array_equal(actions[~is_free], np.minimum(walk.draws, n_actions - 1)[~is_free])
    np.testing.assert_array_equal(steps.log_probs[is_free], 0.0)
    wanted = np.where(actions == logits.argmax(-1), 0.0, -np.inf)
    np.testing.assert_array_equal(np.asarray(steps.log_probs)[is_clear], wanted[is_clear])


class Replay(NamedTuple):
    """What the rules make of given actions; `[L, N]` each, logits `[L, N, A]`."""

    state: State
    record: Record
    logits: np.ndarray
    margin: float  # of the closest decision that float32 could take otherwise


def replay(walk: Walk, actions: np.ndarray) -> Replay:
    length, lanes = walk.draws.shape
    rows = len(walk.tables.price)
    price, kind, stops = (np.asarray(x) for x in walk.tables)
    price = price.astype(np.float64)
    logits = np.zeros((length, lanes, len(walk.effects.gain)))
    record = Record(*(np.zeros((length, lanes), dtype) for dtype in (float, int, bool, bool)))
    last = State(np.zeros(lanes, int), np.zeros(lanes, int), np.zeros(lanes))
    margin = np.inf
    for n in range(lanes):
        row, age, purse = int(walk.state.row[n]), int(walk.state.age[n]), float(walk.state.purse[n])
        for t in range(length):
            here, ahead = (min(max(r, 0), rows - 1) for r in (row, row + 1))
            logits[t, n] = network(walk.policy, here, (purse, price[here] - purse))
            action = actions[t, n]
            earned = float(walk.effects.gain[action]) * (price[ahead] - price[here])
            turns = walk.effects.turns[action]
            purse = LEAK * purse + (-earned if turns else earned)
            margin = min(margin, abs(abs(purse) - LIMIT))
            row, age = row + 1, age + 1
            done = abs(purse) > LIMIT or age >= PATIENCE or stops[ahead]
            for column, value in zip(record, (purse, kind[ahead], turns, done), strict=True):
                column[t, n] = value
            if done:
                row, age = int(walk.restarts[t, n]), 0
                purse = 0.1 * price[row]
        for column, value in zip(last, (row, age, purse), strict=True):
            column[n] = value
    return Replay(last, record, logits, margin)


def network(policy: pk.SplitPolicy, row: int, values: tuple[float, ...]) -> np.ndarray:
    x = policy.table[row].astype(np.float64) + np.asarray(values) @ policy.values.astype(np.float64)
    for kernel, bias in policy.layers:
        x = np.where(x > 0, x, SLOPE * x) @ kernel.astype(np.float64) + bias
    return x
