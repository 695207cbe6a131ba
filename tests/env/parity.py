"""Cases that play the environment and the float64 reference side by side, and the comparison.

`python -m tests.env.parity` compares every case at the precision JAX runs at; tests/env/test_parity.py runs it under
JAX_ENABLE_X64, which cannot be switched on inside a process that has already used float32.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_trade.env import EnvState, Outcome
from tests.env.harness import Bars, play_all, random_bars, to_config, to_market
from tests.reference import presets
from tests.reference.account import Account, simulate
from tests.reference.presets import IOC, LIMIT, MARKET, PATIENT, action_index

N_LANES = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A config, a market and the number of steps to play; compared by identity, so that what it gives can be cached."""

    name: str
    spec: dict[str, Any]
    bars: Bars
    length: int
    instrument: np.ndarray | None = None  # [T] labels

    def starts(self) -> np.ndarray:
        """Every valid start, from the definition."""
        labels = np.zeros(len(self.bars["close"])) if self.instrument is None else self.instrument
        last_bar = np.array([np.flatnonzero(labels == label)[-1] for label in labels])
        return np.flatnonzero(np.arange(len(labels)) + self.spec["episode_length"] <= last_bar)


def adversarial_actions(case: Case, rng: np.random.Generator) -> np.ndarray:
    """`[L, 8]`: one lane for each way to make trouble; two at random."""
    n_actions, length = len(case.spec["execution"]["exposure"]), case.length
    actions = rng.integers(0, n_actions, (length, N_LANES))
    if n_actions != 45:
        actions[:, 2] = np.arange(length) % n_actions
        actions[:, 3] = np.repeat(actions[:, 3], 20)[:length]  # a partial fill again and again
        return actions
    long, short = action_index(1.0, MARKET, PATIENT), action_index(-1.0, MARKET, PATIENT)
    actions[:, 2] = np.where(np.arange(length) % 2, long, short)  # a flip on every bar
    actions[:, 3] = rng.choice([e * 9 + IOC * 3 + u for e in range(5) for u in range(2)], length)  # partial fills
    actions[:, 4] = action_index(1.0, LIMIT, PATIENT)  # sits at a limit price, then at the largest position
    actions[:, 5] = long
    actions[:, 6] = np.repeat(actions[:, 6], 15)[:length]  # long enough to reach a barrier
    actions[:, 7] = short
    return actions


@cache
def cases() -> tuple[Case, ...]:
    """The presets as they are, on a walk and through a crash, and small variations that reach every branch."""
    walk = random_bars(seed=1, length=1100)
    crash = random_bars(seed=2, length=1100, jumps={120: 0.07, 260: 2.5, 400: 0.08, 650: 2.5, 800: 0.07})
    small = random_bars(
        seed=3, length=240, volatility=0.006, jumps={30: 0.2, 60: 2.2, 100: 0.2, 130: 2.2, 170: 2.2, 205: 0.2}
    )
    instrument = np.repeat(["AAA", "BBB", "CCC"], [80, 30, 130])
    quick = {
        "episode_length": 24,  # divides the length: the last step of the collection ends an episode
        "diversity_window": 7,
        "barrier_profit_mult": 1.012,
        "barrier_loss_mult": 0.99,
        "barrier_max_bars": 9,
        "initial_capital": 10_000.0,
        "ruin_fraction": 0.1,
    }
    all_cases = [
        Case("plan on a walk", presets.PLAN, walk, 505),
        Case("plan in a crash", presets.PLAN, crash, 505),
        Case("net on a walk", presets.NET, walk, 505),
        Case("net in a crash", presets.NET, crash, 505),
    ]
    choices = itertools.product(("close", "next_open"), ("directional", "equity"), ("units", "leverage"), (0.2, None))
    # Every three of the four settings meet in each half of the 16 mixes; float32 plays one half, float64 the other.
    wanted_parity = int(jax.config.read("jax_enable_x64"))
    for fill, base, sizing, reserve in choices:
        if sum([fill == "close", base == "equity", sizing == "units", reserve is None]) % 2 != wanted_parity:
            continue
        spec = {
            **presets.NET,
            **quick,
            "fill": fill,
            "reward_base": base,
            "sizing": sizing,
            "max_position": 130.0,  # 1.3 times the capital at the first price: the reserve binds
            "leverage": 1.3,
            "reserve_fraction": reserve,
        }
        all_cases.append(Case(f"{fill}, {base}, {sizing}, reserve {reserve}", spec, small, 96, instrument))
    odd = {
        **presets.NET,
        **quick,
        "execution": presets.ODD_TABLE,
        "reward_base": "directional",
        "reserve_fraction": 0.4,
        "leverage": 2.0,
    }
    sized = {**presets.NET, **quick, "sizing": "equity", "leverage": 1.3}
    return (
        *all_cases,
        Case("sized by the equity", sized, small, 96, instrument),
        Case(
            "sized by the equity, close, reserve",
            {**sized, "fill": "close", "reserve_fraction": 0.2},
            small,
            96,
            instrument,
        ),
        Case("eleven actions", odd, small, 96, instrument),
        Case("episodes of one bar", {**presets.NET, **quick, "episode_length": 1}, small, 96, instrument),
    )


@dataclasses.dataclass(frozen=True)
class Tolerances:
    """Allowed differences; account values relative to their scale, so that one table serves every config."""

    money: float  # of initial_capital
    units: float  # of max_position
    price: float  # of the close
    base: float  # reward units
    fraction: float  # observations, drawdown, diversity penalty
    tie: float  # a decision closer than this to its threshold may go either way


FLOAT32 = Tolerances(money=1e-5, units=1e-5, price=1e-4, base=5e-3, fraction=1e-5, tie=1e-6)
# An average entry price divides by a position of at least 0.01 max_position: 100 times the error of the units.
FLOAT64 = Tolerances(money=1e-9, units=1e-9, price=1e-9, base=1e-9, fraction=1e-9, tie=1e-12)


def precision() -> Tolerances:
    return FLOAT64 if jax.config.read("jax_enable_x64") else FLOAT32


@cache
def draws(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts `[N]`, actions and restart bars `[L, N]` of a case, always the same ones."""
    rng = np.random.default_rng(0)
    starts = case.starts()
    first = rng.choice(starts, N_LANES)
    first[:2] = starts[0], starts[-1]
    actions = adversarial_actions(case, rng)
    return first, actions, rng.choice(starts, actions.shape)


@cache
def play_case(case: Case) -> tuple[EnvState, np.ndarray, Outcome]:
    return play_all(to_market(case.bars, case.instrument), to_config(case.spec), *draws(case))


@cache
def reference_of(case: Case) -> list[tuple[dict[str, np.ndarray], list[Account]]]:
    """The reference's outcome and accounts of each lane."""
    first, actions, restart_bars = draws(case)
    return [simulate(case.bars, case.spec, first[n], actions[:, n], restart_bars[:, n]) for n in range(N_LANES)]


def compare(case: Case) -> float:
    """Plays a case both ways and asserts agreement of outcomes, observations and states.

    Each lane is compared up to its first near tie.

    Returns:
      The fraction of all steps that were compared.
    """
    states, observations, outcomes = play_case(case)
    tolerances = precision()
    compared = 0
    for n, (expected, accounts) in enumerate(reference_of(case)):
        ties = np.flatnonzero(expected["margin"] < tolerances.tie)
        stop = int(ties[0]) if len(ties) else case.length
        actual = {**dataclasses.asdict(lane(outcomes, n, stop)), "obs": observations[:stop, n]}
        sizes = column(accounts[:stop], "max_position")
        where = f"{case.name}, lane {n}"
        assert_outcomes(where, actual, expected, sizes, case, tolerances)
        assert_states(where, lane(states, n, stop + 1), accounts[: stop + 1], case, tolerances)
        compared += stop
    return compared / (case.length * N_LANES)


def lane(tree: Any, n: int, end: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[:end, n], tree)


def column(accounts: list[Account], name: str) -> np.ndarray:
    return np.array([getattr(account, name) for account in accounts])


def assert_outcomes(
    where: str,
    actual: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    sizes: np.ndarray,
    case: Case,
    tolerances: Tolerances,
) -> None:
    money = tolerances.money * case.spec["initial_capital"]
    units = tolerances.units * sizes
    allowed = {
        **dict.fromkeys(("equity_before", "equity_after", "cost", "slippage"), money),
        **dict.fromkeys(("trade", "position"), units),
        **dict.fromkeys(("drawdown", "diversity_penalty"), tolerances.fraction),
        **{name: tolerances.fraction * largest(expected[name][: len(sizes)]) for name in ("obs", "next_obs")},
        **dict.fromkeys(("barrier_label", "terminated", "truncated"), 0.0),
        "base": tolerances.base,
    }
    assert actual.keys() == allowed.keys() == expected.keys() - {"margin"}
    for name, tolerance in allowed.items():
        assert_close(f"{where}: {name}", actual[name], expected[name][: len(sizes)], tolerance)


def largest(observations: np.ndarray) -> np.ndarray:
    """Of each step's values, or 1: a position is many times max_position where the equity that sizes it is nearly gone."""
    return np.maximum(1.0, np.abs(observations).max(axis=-1))


def assert_states(where: str, actual: EnvState, expected: list[Account], case: Case, tolerances: Tolerances) -> None:
    money = tolerances.money * case.spec["initial_capital"]
    account = actual.account
    sizes, active, bar = (column(expected, name) for name in ("max_position", "barrier_active", "bar"))
    price = tolerances.price * case.bars["close"][bar]
    checks = {
        "bar": (account.bar, bar, 0.0),
        "step_in_episode": (account.step, column(expected, "step_in_episode"), 0.0),
        "cash": (account.cash, column(expected, "cash"), money),
        "position": (account.position, column(expected, "position"), tolerances.units * sizes),
        "entry_price": (account.entry_price, column(expected, "entry_price"), price),
        "max_position": (account.max_position, sizes, tolerances.units * sizes),
        "cumulative_costs": (account.cumulative_costs, column(expected, "cumulative_costs"), money),
        "barrier active": (account.barrier.active > 0, active, 0.0),
        # a barrier that is off has no level and no age
        "barrier entry": (account.barrier.entry[active], column(expected, "barrier_entry")[active], 0.0),
        "barrier entry_step": (account.barrier.entry_step[active], column(expected, "barrier_entry_step")[active], 0.0),
    }
    for name, (a, e, tolerance) in checks.items():
        assert_close(f"{where}: state {name}", a, e, tolerance)
    for index, (ring, step, e) in enumerate(zip(actual.window, account.step, expected, strict=True)):
        held = min(step, len(ring))  # the action of an episode's step s stands at s mod W
        oldest_first = [int(ring[s % len(ring)]) for s in range(step - held, step)]
        assert oldest_first == e.window, f"{where}: window before step {index}"


def unexplained_money(case: Case) -> float:
    """The largest gap in any episode between its gain of equity and what its positions earned less its costs.

    As a fraction of the larger of initial capital and the episode's largest |position| x close.
    """
    _, _, outcomes = play_case(case)
    first, _, restart_bars = draws(case)
    worst = 0.0
    for n in range(N_LANES):
        played = lane(outcomes, n, case.length)
        done = played.terminated | played.truncated
        start, bar = 0, first[n]
        for end in [*np.flatnonzero(done), case.length - 1]:
            if end < start:
                continue  # the collection ended with an episode
            steps = slice(start, end + 1)
            close = case.bars["close"][bar : bar + end - start + 2]
            position = played.position[steps].astype(np.float64)
            costs = played.cost[steps].astype(np.float64) + played.slippage[steps]
            gain = float(played.equity_after[end]) - float(played.equity_before[start])
            scale = max(case.spec["initial_capital"], np.max(np.abs(position) * close[1:]))
            worst = max(worst, abs(gain - np.sum(position * np.diff(close)) + np.sum(costs)) / scale)
            start, bar = end + 1, restart_bars[end, n]
    return worst


def assert_close(what: str, actual: Any, expected: Any, tolerance: Any) -> None:
    """Within an absolute tolerance, a scalar or one per step; names the first step that is not."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    error = np.abs(actual - expected)
    allowed = np.broadcast_to(np.asarray(tolerance).reshape(-1, *[1] * (error.ndim - 1)), error.shape)
    wrong = np.argwhere(~(error <= allowed))  # a NaN is wrong too
    if len(wrong):
        at = tuple(wrong[0])
        raise AssertionError(f"{what}{list(at)} = {actual[at]!r}, expected {expected[at]!r} within {allowed[at]:.3g}")


def main() -> None:
    result = {
        "dtype": str(jnp.zeros(()).dtype),
        "compared": {case.name: compare(case) for case in cases()},
        "unexplained_money": {case.name: unexplained_money(case) for case in cases()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
