"""The host loop: what it writes, how it ends, and that going on is the same as never having stopped."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import signal
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.train import loop, placement
from jaxrl_trade.train.agent import AGENTS
from jaxrl_trade.train.loop import NonFiniteError, TrainResult, train_ppo
from jaxrl_trade.train.ppo import TERMS, update_step
from tests.train import tiny

MARKET, CONFIG = tiny.market(), tiny.config()
KEY = jax.random.key(0)
TRACES: list[int] = []  # one entry for each time that Python runs the update


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run of 4 updates with a checkpoint and a validation after each; its bars double as validation bars."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AGENTS, "ppo", dataclasses.replace(AGENTS["ppo"], update_step=counted_update_step))
        return train_ppo(MARKET, CONFIG, KEY, MARKET, folder=folder, checkpoint_every=1, facts={"seed": 0}, quiet=True)


def counted_update_step(*arguments: Any) -> Any:
    TRACES.append(1)
    return update_step(*arguments)


def folder_of(result: TrainResult) -> Path:
    assert result.folder is not None
    return result.folder


def stop_after(update: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends this process a signal when the log is given that update."""
    write = loop.MetricsLog.write

    def write_and_raise(self: loop.MetricsLog, rows: list[dict[str, Any]]) -> None:
        write(self, rows)
        if rows[-1]["update"] == update:
            signal.raise_signal(number)

    monkeypatch.setattr(loop.MetricsLog, "write", write_and_raise)


def assert_same_leaves(a: Any, b: Any) -> None:
    unwrap = lambda x: jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(unwrap(x), unwrap(y)), a, b)


def without_time(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


def test_every_update_is_a_row_of_the_log(run: TrainResult) -> None:
    rows = [json.loads(line) for line in (folder_of(run) / "metrics.jsonl").read_text().splitlines()]
    assert rows == run.history
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    assert [row["env_steps"] for row in rows] == [64, 128, 192, 256]  # 4 episodes x 16 steps each
    assert all(a["seconds"] <= b["seconds"] for a, b in itertools.pairwise(rows))
    wanted = {"episode_return", "equity", "entropy", "kl", "clip_fraction", "explained_variance"}
    assert wanted | {"actor_grad_norm", "critic_grad_norm", "validation_total_return"} <= set(rows[0])
    assert all(math.isfinite(value) for row in rows for value in row.values())


def test_tensorboard_gets_the_same_numbers(run: TrainResult) -> None:
    pytest.importorskip("tensorboardX")
    files = list((folder_of(run) / "tensorboard").iterdir())
    assert len(files) == 1
    assert b"explained_variance" in files[0].read_bytes()


def test_the_chosen_policy_is_the_first_of_the_best_on_validation(run: TrainResult) -> None:
    scores = [row["validation_total_return"] for row in run.history]
    assert run.choice.update == 1 + int(np.argmax(scores))
    assert run.choice.score == max(scores)
    assert (run.choice.updates, run.choice.validations) == (4, 4)


def test_the_loop_keeps_the_last_two_checkpoints_and_the_best(run: TrainResult) -> None:
    kept = sorted(path.name for path in (folder_of(run) / "checkpoints").iterdir())
    assert kept == sorted({f"update_{u:08d}" for u in (3, 4, run.choice.update)})


def test_load_policy_gives_the_chosen_policy_back(run: TrainResult) -> None:
    policy = jt.load_policy(folder_of(run), feature_names=tiny.NAMES)
    obs = jax.random.normal(jax.random.key(1), (7, tiny.FEATURES + 3))
    np.testing.assert_array_equal(policy(obs), run.policy(obs))


@pytest.mark.slow  # compiles a second program
def test_the_host_loop_trains_what_make_train_ppo_trains(run: TrainResult) -> None:
    state, metrics = jax.jit(jt.make_train_ppo(CONFIG, MARKET))(KEY)
    np.testing.assert_allclose(
        metrics.entropy, [row["entropy"] for row in run.history], rtol=1e-6
    )  # one fusion or another
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state.params, run.params)


def test_the_same_seed_gives_the_same_curve_bit_for_bit(run: TrainResult) -> None:
    again = train_ppo(MARKET, CONFIG, KEY, MARKET, checkpoint_every=1, quiet=True)
    assert without_time(again.history) == without_time(run.history)
    assert_same_leaves(again.state, run.state)


def test_chunks_of_several_updates_change_nothing(run: TrainResult) -> None:
    whole = train_ppo(MARKET, CONFIG, KEY, checkpoint_every=4, quiet=True)
    assert_same_leaves(whole.state, run.state)
    assert whole.choice.update == 4
    assert whole.choice.score is None  # no validation bars: the last


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_and_resuming_equals_never_stopping_bit_for_bit(
    number: signal.Signals,
    run: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    arguments: dict[str, Any] = {"validation": MARKET, "folder": tmp_path / "run", "checkpoint_every": 1}
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        stop_after(2, number, patch)
        half = train_ppo(MARKET, CONFIG, KEY, **arguments)
    assert signal.getsignal(number) is before
    assert (half.stopped_by, len(half.history)) == (number.name, 2)
    said = capsys.readouterr().err.splitlines()[
        -1
    ]  # how to go on is said by whoever called: a command has its own line
    assert (
        said
        == f"stopped by {number.name} after update 2 of 4; the checkpoint is {tmp_path / 'run' / 'checkpoints' / 'update_00000002'}"
    )
    rest = train_ppo(MARKET, CONFIG, KEY, resume=True, **arguments, quiet=True)
    assert rest.stopped_by is None
    assert without_time(rest.history) == without_time(run.history)
    assert rest.choice == run.choice
    assert_same_leaves(rest.state, run.state)
    assert_same_leaves(jt.load_policy(tmp_path / "run", tiny.NAMES).params, run.policy.params)


def test_a_stop_between_checkpoints_saves_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(1, signal.SIGTERM, monkeypatch)
    half = train_ppo(MARKET, CONFIG, KEY, folder=tmp_path / "run", checkpoint_every=4, quiet=True)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["update_00000001"]
    assert str(half.choice) == "the last weights, after update 1 (not chosen on validation bars)"
    assert_same_leaves(jt.load_policy(tmp_path / "run", tiny.NAMES).params, half.params.actor)


def test_resuming_forgets_rows_after_the_checkpoint(
    run: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {"validation": MARKET, "folder": tmp_path / "run", "checkpoint_every": 1, "quiet": True}
    with monkeypatch.context() as patch:
        stop_after(2, signal.SIGTERM, patch)
        train_ppo(MARKET, CONFIG, KEY, **arguments)
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(path.read_text() + '{"update": 3, "entropy": 99.0}\n{"update": 4, "en')  # killed while it wrote
    rest = train_ppo(MARKET, CONFIG, KEY, resume=True, **arguments)
    assert without_time(rest.history) == without_time(run.history)
    assert [json.loads(line)["update"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_the_program_is_traced_once_for_runs_that_differ_in_hyperparameters_only(
    run: TrainResult,
) -> None:
    del run  # has traced it
    programs: list[Any] = [placement.run_chunk, placement.init]
    traces = [program._cache_size() for program in programs]
    other = dataclasses.replace(CONFIG, hypers=dataclasses.replace(CONFIG.hypers, learning_rate=1e-3, gamma=0.9))
    train_ppo(MARKET, other, KEY, checkpoint_every=1, quiet=True)
    assert [program._cache_size() for program in programs] == traces


def test_a_run_of_many_chunks_traces_the_update_once(run: TrainResult) -> None:
    assert len(run.history) == 4
    assert len(TRACES) <= 2  # the shapes of its metrics, and the one trace; none if another module has run this config


def test_nan_stops_the_run_with_its_update_and_term(run: TrainResult, tmp_path: Path) -> None:
    del run  # has compiled it
    market = tiny.broken_from(40, MARKET)  # of update 3, which visits the bars 32 to 48
    with pytest.raises(NonFiniteError, match=r"log_probs of the actor at update 3 \(environment step 192\)") as caught:
        train_ppo(market, CONFIG, KEY, folder=tmp_path / "run", checkpoint_every=1, quiet=True)
    error = caught.value
    assert (error.update, error.env_steps, error.term) == (3, 192, TERMS[0])
    assert error.checkpoint == tmp_path / "run" / "checkpoints" / "update_00000002"
    assert str(error.checkpoint) in str(error)
    assert error.checkpoint.is_dir()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == [1, 2, 3]
    assert rows[2]["entropy"] is None  # JSON has no NaN
    good = jt.load_policy(tmp_path / "run", tiny.NAMES)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(good.params))


def test_nan_in_the_first_update_says_that_nothing_was_saved() -> None:
    with pytest.raises(NonFiniteError, match=r"at update 1 .* no checkpoint was written before it"):
        train_ppo(tiny.broken_from(0, MARKET), CONFIG, KEY, checkpoint_every=1, quiet=True)


def test_training_works_outside_the_main_thread() -> None:
    results: list[TrainResult] = []
    work = lambda: results.append(train_ppo(MARKET, CONFIG, KEY, checkpoint_every=1, quiet=True))  # noqa: E731
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(results[0].history) == 4


def test_progress_goes_to_stderr_and_names_the_device(capsys: pytest.CaptureFixture) -> None:
    train_ppo(MARKET, CONFIG, KEY, checkpoint_every=1)
    out, err = capsys.readouterr()
    assert out == ""
    assert f"device: {len(jax.devices())} x" in err
    assert "update 4/4" in err
    for name in ("steps/s", "left", "return", "equity", "entropy", "KL", "clip", "EV", "grad"):
        assert name in err
    only_cpu = all(d.platform == "cpu" for d in jax.devices())
    assert err.count("warning: only a CPU was found") == only_cpu


def test_a_run_is_never_begun_over_another(run: TrainResult) -> None:
    with pytest.raises(FileExistsError, match=r"already holds a run; resume it .*or remove it"):
        train_ppo(MARKET, CONFIG, KEY, folder=run.folder, quiet=True)


def test_resume_refuses_what_is_not_the_run(run: TrainResult, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs the folder"):
        train_ppo(MARKET, CONFIG, KEY, resume=True, quiet=True)
    with pytest.raises(FileNotFoundError, match=r"is no run folder: it has no run\.json"):
        train_ppo(MARKET, CONFIG, KEY, folder=tmp_path, resume=True, quiet=True)
    other = dataclasses.replace(CONFIG, env=dataclasses.replace(CONFIG.env, spread=2e-4))
    with pytest.raises(ValueError, match=r"other settings \(env\.spread: 0\.0001 -> 0\.0002\)"):
        train_ppo(MARKET, other, KEY, folder=run.folder, resume=True, quiet=True)
    with pytest.raises(ValueError, match="its prices, its split or its features differ"):
        train_ppo(tiny.market(seed=1), CONFIG, KEY, folder=run.folder, resume=True, quiet=True)


def test_resuming_a_finished_run_changes_nothing(run: TrainResult) -> None:
    again = train_ppo(MARKET, CONFIG, KEY, MARKET, folder=run.folder, resume=True, checkpoint_every=1, quiet=True)
    assert again.history == run.history
    assert again.choice == run.choice
    assert_same_leaves(again.state, run.state)


def test_a_checkpoint_interval_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="checkpoint_every = 0 must be at least 1"):
        train_ppo(MARKET, CONFIG, KEY, checkpoint_every=0, quiet=True)
