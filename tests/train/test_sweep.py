"""Sweeps of a tiny PPO: each run is itself whatever trains beside it, a stopped sweep goes on, divergence is left out."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.agents import actor_policy
from jaxrl_trade.backtesting import evaluate
from jaxrl_trade.train import sweep_folder
from jaxrl_trade.train.files import locked
from jaxrl_trade.train.grid import with_setting
from jaxrl_trade.train.progress import Progress
from jaxrl_trade.train.result import StoppedError
from jaxrl_trade.train.run import load_config, load_policy, read_facts
from jaxrl_trade.train.sweep import SweepResult, best
from jaxrl_trade.train.sweep_groups import group_size
from tests.train import tiny
from tests.train.sweeps import remembered_programs

GRID = {"learning_rate": (1e-4, 3e-2)}
CONFIG = tiny.config()
UPDATES = CONFIG.updates


class Done(NamedTuple):
    folder: Path
    result: SweepResult
    calls: list[tuple[int, int]]  # (runs, updates) of each call of the program


def market() -> jt.Market:
    return tiny.market()


def validation() -> jt.Market:
    return tiny.market(bars=200, seed=1)


def keys(n: int = 2) -> jax.Array:
    return jax.random.split(jax.random.key(3), n)


def run(folder: Path | None = None, **changes: Any) -> SweepResult:
    given = {"config": CONFIG, "grid": GRID, "keys": keys(), "validation": validation(), **changes}
    return jt.sweep(given.pop("market", market()), folder=folder, quiet=True, **given)


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[list[tuple[int, int]]]:
    with remembered_programs() as calls:
        yield calls


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, programs: list[tuple[int, int]]) -> Done:
    """Two settings x two seeds, two runs at once."""
    folder = tmp_path_factory.mktemp("sweep") / "sweep"
    programs.clear()
    result = run(folder, at_once=2)
    return Done(folder, result, list(programs))


@pytest.fixture(scope="module")
def alone() -> dict[tuple[int, int], Any]:
    """The weights of each (setting, seed), trained by itself."""
    train = jax.jit(jt.make_train_ppo(CONFIG, market()))
    return {
        (s, k): jax.device_get(train(key, with_setting(CONFIG, {"learning_rate": rate}).hypers)[0].params)
        for s, rate in enumerate(GRID["learning_rate"])
        for k, key in enumerate(keys())
    }


def assert_close(mine: Any, theirs: Any, **tolerance: float) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), mine, theirs)


def weights(folder: Path, like: Any) -> list[Any]:
    """Of every run, out of the groups' last checkpoints."""
    shapes = jax.tree.map(lambda x: np.zeros((2, *x.shape), x.dtype), like)
    groups = [sweep_folder.checkpoints_of(folder, i).restore(UPDATES, shapes)[0] for i in range(2)]
    return [jax.tree.map(lambda x, i=i: np.asarray(x[i]), group) for group in groups for i in range(2)]


def test_groups_are_calls_of_one_program_of_one_size(done: Done) -> None:
    assert done.calls == [(2, 1)] * 2 * UPDATES


def test_each_run_is_the_one_that_trains_alone(done: Done, alone: dict[tuple[int, int], Any]) -> None:
    assert [(row["setting"], row["seed"]) for row in done.result.runs] == list(alone)
    for mine, theirs in zip(weights(done.folder, alone[0, 0]), alone.values(), strict=True):
        # float32, 4 updates of Adam; two settings or seeds differ by 1e-3 at least
        assert_close(mine, theirs, rtol=1e-4, atol=2e-6)
    assert (
        float(np.abs(alone[0, 0].actor["policy_output"]["kernel"] - alone[1, 0].actor["policy_output"]["kernel"]).max())
        > 1e-3
    )


def test_the_choice_is_the_best_mean_on_validation_bars(done: Done, alone: dict[tuple[int, int], Any]) -> None:
    result = done.result
    for row, params in zip(result.runs, weights(done.folder, alone[0, 0]), strict=True):
        figures = evaluate(actor_policy(params.actor, CONFIG), validation(), CONFIG)
        assert {name: row[name] for name in ("total_return", "sharpe", "trades")} == {
            name: pytest.approx(figures[name]) for name in ("total_return", "sharpe", "trades")
        }
        assert row["diverged"] is None
    returns = np.array([row["total_return"] for row in result.runs]).reshape(2, 2)
    assert result.chosen == returns.mean(axis=1).argmax()
    assert result.config.hypers.learning_rate == GRID["learning_rate"][result.chosen]
    for seed, policy in enumerate(result.policies):
        assert_close(policy.params, alone[result.chosen, seed].actor, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ([[1.0, 2.0], [0.0, 3.5]], 1),  # by the mean, not by the worst seed
        ([[1.0, 2.0], [2.0, 1.0]], 0),  # the first of equals
        ([[None, 9.0], [-3.0, -1.0], [-4.0, -1.0]], 1),
    ],
)
def test_the_best_setting_has_the_largest_mean_and_no_diverged_seed(scores: Any, chosen: int) -> None:
    assert best(scores) == chosen


def test_the_chosen_runs_are_run_folders(done: Done) -> None:
    for seed, policy in enumerate(done.result.policies):
        place = done.folder / "chosen" / f"seed-{seed}"
        assert load_config(place) == done.result.config
        assert_close(load_policy(place, tiny.NAMES).params, policy.params)
        assert read_facts(place)["trials"] == 4


def test_a_complete_sweep_trains_nothing_again(done: Done, programs: list[tuple[int, int]]) -> None:
    programs.clear()
    again = run(done.folder)
    assert not programs
    assert again.runs == done.result.runs
    assert again.chosen == done.result.chosen


def test_what_is_damaged_in_a_complete_sweep_is_written_again_from_its_groups(
    done: Done, programs: list[tuple[int, int]], tmp_path: Path
) -> None:
    folder = shutil.copytree(done.folder, tmp_path / "sweep")
    whole = done.folder / "chosen"
    files = [Path("seed-0/weights/actor.safetensors"), Path("seed-1/run.json"), Path("seed-1/config.json")]
    programs.clear()
    for file in [folder / "chosen" / name for name in files] + [folder / "groups" / "001" / "validation.json"]:
        file.write_bytes(file.read_bytes()[:-100])
        again = run(folder)
        assert again.runs == done.result.runs
    assert not programs
    assert (folder / "chosen" / files[0]).read_bytes() == (whole / files[0]).read_bytes()
    assert load_config(folder / "chosen" / "seed-1") == done.result.config


def test_facts_stay_those_that_a_sweep_began_with(done: Done, tmp_path: Path) -> None:
    facts = {"seed": 7, "data": {"sha256": "bars"}, "command": "begin"}
    folder = tmp_path / "sweep"
    run(folder, at_once=2, facts=facts)
    shutil.rmtree(folder / "chosen")  # as where it was stopped
    run(folder)
    found = read_facts(folder / "chosen" / "seed-0")
    assert {name: found[name] for name in facts} == facts
    with pytest.raises(ValueError, match="holds a sweep of other bars"):
        run(folder, facts={"data": {"sha256": "bars with other test bars"}})


@pytest.mark.parametrize(("name", "after"), [("SIGINT", 3), ("SIGTERM", 6)])
def test_a_stopped_sweep_goes_on_as_if_it_never_had(
    done: Done, programs: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    """In the first group, and in the second one."""
    programs.clear()

    def advance(self: Progress, rows: Any, seconds: float, *, is_first: bool) -> None:
        if len(programs) == after:
            signal.raise_signal(getattr(signal, name))

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", advance)
        with pytest.raises(StoppedError, match=f"stopped by {name}; call it again with folder="):
            run(tmp_path, at_once=2)
    assert len(programs) == after
    result = run(tmp_path)
    assert len(programs) == 2 * UPDATES
    assert result.runs == done.result.runs
    for mine, theirs in zip(result.policies, done.result.policies, strict=True):
        assert_close(mine.params, theirs.params, rtol=0.0)


def test_a_damaged_checkpoint_costs_its_group_alone(
    done: Done, programs: list[tuple[int, int]], tmp_path: Path
) -> None:
    run(tmp_path, at_once=2)
    group = sweep_folder.checkpoints_of(tmp_path, 1)
    (group.path(UPDATES) / "checkpoint.json").write_text("{")
    (group.folder / "validation.json").unlink()
    programs.clear()
    assert run(tmp_path).runs == done.result.runs
    assert len(programs) == UPDATES


def test_a_setting_that_diverges_is_told_and_not_chosen() -> None:
    result = run(None, at_once=2, grid={"learning_rate": (1e30, 1e-4)})
    assert [row["diverged"] for row in result.runs] == [1, 1, None, None]
    assert [row["total_return"] is None for row in result.runs] == [True, True, False, False]
    assert result.chosen == 1
    with pytest.raises(FloatingPointError, match="every setting has met a NaN or an infinity"):
        run(None, at_once=2, grid={"learning_rate": (1e30, 1e31)})


@pytest.mark.parametrize(
    ("runs", "at_once", "devices", "size"),
    [(6, None, 1, 6), (6, 4, 1, 3), (6, 100, 1, 6), (7, 4, 2, 4), (7, None, 2, 8), (5, None, 4, 8), (9, 4, 4, 4)],
)
def test_groups_are_of_one_size_that_the_devices_divide(
    runs: int, at_once: int | None, devices: int, size: int
) -> None:
    assert group_size(runs, at_once, devices) == size


def test_the_last_group_is_filled_up_and_its_repetitions_are_left_out(programs: list[tuple[int, int]]) -> None:
    programs.clear()
    result = run(None, at_once=2, keys=keys(3), grid={"learning_rate": (1e-4, 1e-3, 3e-2)})
    assert set(programs) == {(2, 1)}
    assert len(programs) == 5 * UPDATES
    assert [(row["setting"], row["seed"]) for row in result.runs] == [(s, k) for s in range(3) for k in range(3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"learning_rate": (1e-4, 1e-3)}}, r"grid.learning_rate: \[0.0001, 0.03\] -> \[0.0001, 0.001\]"),
        ({"config": tiny.config(epochs=1)}, "holds a sweep of other settings .config.epochs: 2 -> 1"),
        ({"at_once": 4}, "runs_at_once: 2 -> 4"),
        ({"keys": keys(3)}, "holds a sweep of 2 seeds, this one has 3"),
        ({"keys": jax.random.split(jax.random.key(9), 2)}, "holds a sweep of other keys; go on with its own"),
        ({"market": tiny.market(seed=7)}, "holds a sweep of other bars"),
        ({"validation": tiny.market(bars=200, seed=7)}, "holds a sweep of other bars"),
    ],
)
def test_something_else_in_the_folder_of_a_sweep_is_refused(done: Done, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(done.folder, **changes)


def test_another_process_and_a_folder_of_something_else_are_refused(done: Done, tmp_path: Path) -> None:
    with locked(done.folder), pytest.raises(OSError, match="another process is training in"):
        run(done.folder)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileExistsError, match=r"holds something else than a sweep \(notes.txt\)"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": jax.random.key(0)}, r"keys has key<fry> of shape \(\); give one typed key for each seed"),
        ({"keys": keys()[:0]}, r"keys has key<fry> of shape \(0,\)"),
        ({"keys": 4}, r"keys has int of shape \(\)"),
        ({"at_once": 0}, "at_once = 0 must be a whole number of runs"),
        ({"validation": None}, "validation is None; give a Market"),
        ({"config": jt.EnvConfig()}, "config is a EnvConfig; give a PPOConfig or DQNConfig"),
        ({"devices": 99}, "devices = 99, but JAX sees"),
    ],
)
def test_arguments_of_another_kind_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(None, **changes)
