"""scripts/benchmark.py from end to end at a tiny size, and its baseline in C++ against the package's own collection."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl_trade import env
from jaxrl_trade.config import EnvConfig, PPOConfig, PPOHypers, RewardScales
from jaxrl_trade.rollout import collect_ppo

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import benchmark
import benchmark_programs as programs
import thread_per_episode

TINY = ["--n", "4", "--steps", "8", "--bars", "300", "--repeats", "2", "--dtypes", "float32"]
CXX = shutil.which("g++") or shutil.which("clang++")


def test_all_is_measured_but_what_fails_and_the_ways_of_collecting_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no update today\nfor many reasons")

    monkeypatch.setattr(programs, "update_step", broken)
    benchmark.main([*TINY, "--out", str(tmp_path / "b.json"), "--markdown", str(tmp_path / "b.md")])
    out, page = capsys.readouterr().out, (tmp_path / "b.md").read_text()
    record = json.loads((tmp_path / "b.json").read_text())
    rows = {row["name"].strip(): row for row in record["programs"]}
    assert rows.pop(programs.PPO_ITERATION)["error"] == "RuntimeError: no update today"
    assert out.count("no update today") == 2  # where it failed, and in the table
    assert len(rows) == 10
    for name, row in rows.items():
        times = row["wall_ms"]
        assert 0 < times["min"] <= times["median"] <= times["max"]
        assert times["repeats"] == 2
        assert row["queued_ms"] > 0
        assert row["floor_ms"] == max(row["bytes_ms"], row["flop_ms"]) > 0
        assert row["compile_s"] > 0
        assert name in out
        assert name in page
    each_once = 8 * 4 * (3 * 4 + 2 * 1 + 2 * 4)  # [L, N]: 3 float32 and 2 bool in, 2 float32 out
    assert 0 <= rows["advantages"]["bytes"] - each_once <= 64  # XLA adds a pointer a result
    assert {row["name"] for row in record["agreement"]} == {programs.IN_LOOP, programs.FUSED}
    for row in record["agreement"]:
        assert row["same_actions"] == row["same_lanes"] == 1.0
        assert row["error"] < 1e-5  # float32, 8 steps
    assert set(record["ceilings"]) == {"float32", "bytes"}


def test_a_ppo_iteration_takes_the_state_that_the_benchmark_begins_with() -> None:
    options = benchmark.parse(TINY)
    market = programs.random_market(options.bars)
    world = programs.starting_world(market, programs.random_weights(), 4)
    every = {program.name: program for program in programs.programs(4, options)}
    world["state"] = jax.eval_shape(every["begin"].function, *every["begin"].inputs(world))
    iteration = every[programs.PPO_ITERATION]
    after, _ = jax.eval_shape(iteration.function, *iteration.inputs(world))
    assert jax.tree.structure(after) == jax.tree.structure(world["state"])


def test_multiplications_are_the_networks_weights() -> None:
    def parameters(widths: tuple[int, ...]) -> int:
        return programs.multiplications(widths) + sum(widths[1:])

    documented = {programs.ACTOR: 18_221, programs.CRITIC: 364_929, programs.CURIOSITY: 4_384}
    assert {widths: parameters(widths) for widths in documented} == documented
    # as many bars as rows: all of the actor's products but those with the spread, which never changes
    assert programs.actor_flop(10, 10) == 2 * 10 * (programs.multiplications(programs.ACTOR) - 128)
    # forward, at the weights, at the inputs of every layer but the first
    assert programs.training_flop((5, 3, 2), 1) == 2 * (21 + 21 + 6)


def test_differences_are_taken_in_lanes_whose_actions_are_all_equal() -> None:
    actions, advantages = np.zeros((2, 3), int), np.array([[4.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    other = np.array([[0, 0, 0], [0, 1, 0]])
    found = benchmark.differences((actions, advantages), (other, advantages + [[0.0, 9.0, 1.0], [2.0, 9.0, 0.0]]))
    assert found == {"lanes": 3, "same_actions": 5 / 6, "same_lanes": 2 / 3, "error": 2.0 / 4.0}
    assert benchmark.differences((actions, advantages), (other + 1, advantages))["error"] is None


@pytest.mark.skipif(CXX is None, reason="needs a C++ compiler")
def test_one_thread_per_episode_collects_what_the_scan_collects(tmp_path: Path) -> None:
    rules = EnvConfig(
        episode_length=110,  # more than the diversity window
        initial_capital=120.0,
        max_position=1.5,
        ruin_fraction=0.95,
        barrier_max_bars=7,
        barrier_profit_mult=1.006,
        barrier_loss_mult=0.994,
    )
    hypers = PPOHypers(reward=RewardScales(curiosity_max_reward=10.0))  # no bonus is cut
    config = PPOConfig(env=rules, hypers=hypers, n_episodes=4, timesteps_per_episode=130)
    market, shape = programs.random_market(300), (130, 4)
    weights = programs.random_weights()
    weights.actor["policy_output"]["bias"] = 4.0 * (np.arange(45) > 27).astype(np.float32)  # long for more than a bar
    key = jax.random.key(5)
    starts, restarts = (market.draw_starts(key, size, 110) for size in ((4,), shape))
    uniforms = jax.random.uniform(key, shape)
    expected, _ = collect_ppo(
        weights,
        market,
        env.reset(market, rules, starts),
        key,
        config,
        backend="xla",
        uniforms=uniforms,
        restart_bars=restarts,
    )
    ends = np.asarray(expected.terminated), np.asarray(expected.truncated)
    assert all(flag.any() for flag in ends)
    assert set(np.unique(expected.barrier_label)) == {-1.0, 0.0, 1.0}
    library = thread_per_episode.build(
        [str(CXX), "-O1", "-std=c++17", "-Wno-unknown-pragmas", "-x", "c++", "-shared", "-fPIC"], tmp_path
    )
    for block in thread_per_episode.BLOCKS:
        actual = thread_per_episode.collect(
            library, block, weights, market, starts, uniforms, restarts, config, repeats=2, seconds=60.0
        )
        assert len(actual.milliseconds) == 2
        np.testing.assert_array_equal(actual.actions, expected.actions)
        np.testing.assert_array_equal(actual.done, ends[0] | ends[1])
        for name in ("log_probs", "values", "rewards", "equity_after", "position", "advantages", "returns"):
            wanted = np.asarray(getattr(expected, name))
            np.testing.assert_allclose(
                getattr(actual, name), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max(), err_msg=name
            )


def test_one_thread_per_episode_refuses_what_it_does_not_compute() -> None:
    for config in (PPOConfig.net(), PPOConfig(actor_hidden=(64, 64)), PPOConfig(env=EnvConfig(diversity_window=50))):
        with pytest.raises(ValueError, match="only the preset plan"):
            thread_per_episode.check(config)
