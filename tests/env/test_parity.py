"""The environment against the float64 reference of tests/reference, which was written from SPEC alone."""

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxrl_trade as jt
from tests.env.harness import rollout, to_config, to_market
from tests.env.parity import cases, column, compare, draws, play_case, reference_of, unexplained_money

# Exact ties (a rest of exactly 1 % of max_position) stop a few lanes of the eleven-action table early; nothing else may.
COMPARED = 0.9


@cache
def under_x64() -> dict:
    """The same comparison in a process of its own: JAX's default float is fixed once it has been used."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.env.parity"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_environment_agrees_with_the_float64_reference(case):
    assert compare(case) > COMPARED


def test_environment_agrees_with_the_reference_to_1e_9_under_x64():
    result = under_x64()
    assert result["dtype"] == "float64"
    assert len(result["compared"]) == len(cases())
    assert min(result["compared"].values()) > COMPARED


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_equity_changes_by_what_positions_earn_less_costs_and_slippage(case):
    assert unexplained_money(case) < 2e-5  # float32: SPEC 4


def test_equity_is_conserved_to_1e_9_under_x64():
    assert max(under_x64()["unexplained_money"].values()) < 1e-9


def test_the_cases_reach_every_branch_of_the_rules():
    """A parity test is worth what its cases reach: every kind of event is common in the reference's own outcomes."""
    seen = Counter()
    for case in cases():
        _, actions, _ = draws(case)
        table = {name: np.array(values) for name, values in case.spec["execution"].items()}
        for n, (outcome, accounts) in enumerate(reference_of(case)):
            position, size = column(accounts[:-1], "position"), column(accounts[:-1], "max_position")
            want = table["exposure"][actions[:, n]] * size - position
            offered = table["fill_ratio"][actions[:, n]] * want
            wanted, traded = np.abs(want) > 1e-6 * size, outcome["trade"] != 0
            seen["ruin"] += outcome["terminated"].sum()
            seen["time limit"] += outcome["truncated"].sum()
            seen["profit"] += (outcome["barrier_label"] > 0).sum()
            seen["loss"] += (outcome["barrier_label"] < 0).sum()
            seen["flip"] += (position * outcome["position"] < 0).sum()
            seen["partial fill"] += (traded & (np.abs(offered) < np.abs(want))).sum()
            seen["cut by the reserve"] += (traded & (offered - outcome["trade"] > 1e-3 * size)).sum()
            seen["unfilled maker"] += (table["is_maker"][actions[:, n]] & wanted & ~traded).sum()
            seen["price improvement"] += (outcome["cost"] < 0).sum()
            seen["slippage"] += (outcome["slippage"] != 0).sum()
    assert min(seen.values()) >= 30, seen


def test_vmap_of_the_one_episode_step_equals_the_batched_step():
    case = cases()[-1]
    market, config = to_market(case.bars, case.instrument), to_config(case.spec)
    batched_states, _, batched_outcomes = play_case(case)

    def one_episode(start, actions, restart_bars):
        states, _, outcomes = rollout(jt.env.reset(market, config, start), actions, restart_bars, market, config)
        return states, outcomes

    inputs = [np.asarray(x, np.int32) for x in draws(case)]
    vmapped = jax.jit(jax.vmap(one_episode, in_axes=(0, 1, 1), out_axes=1))(*inputs)
    leaves = zip(jax.tree.leaves(vmapped), jax.tree.leaves((batched_states, batched_outcomes)), strict=True)
    for one, many in leaves:
        # the same arithmetic in another program: XLA may fuse a product and a sum into one rounding
        tolerance = 1e-6 * case.spec["initial_capital"] if many.dtype == np.float32 else 0
        np.testing.assert_allclose(one, many, rtol=1e-6, atol=tolerance)
