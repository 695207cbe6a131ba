"""Going on with a run is the same as never having stopped, whatever happened meanwhile; what cannot be gone on with says why."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.train import placement
from jaxrl_trade.train.agent import agent_of
from jaxrl_trade.train.checkpoints import Checkpoints
from jaxrl_trade.train.files import locked
from jaxrl_trade.train.loop import TrainResult, train_ppo
from jaxrl_trade.train.provenance import device
from jaxrl_trade.train.run import load_config, read_facts, read_plan
from tests.train import tiny
from tests.train.test_loop import assert_same_leaves, stop_after, without_time

SCHEDULE = 4  # updates
MARKET, CONFIG, KEY = tiny.market(), tiny.config(schedule="linear", updates=SCHEDULE), jax.random.key(3)
LONGER = dataclasses.replace(CONFIG, updates=6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run that nothing happened to, with a checkpoint and a validation after each update."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return train_ppo(MARKET, CONFIG, KEY, MARKET, folder=folder, checkpoint_every=1, quiet=True)


@pytest.fixture
def folder(whole: TrainResult, tmp_path: Path) -> Path:
    """A copy of the whole run."""
    assert whole.folder is not None
    return shutil.copytree(whole.folder, tmp_path / "run")


def resume(folder: Path, config: jt.PPOConfig = CONFIG, **options: Any) -> TrainResult:
    return train_ppo(MARKET, config, KEY, MARKET, folder=folder, resume=True, **options)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return without_time([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def checkpoint(folder: Path, update: int) -> Path:
    return Checkpoints(folder / "checkpoints").path(update)


def test_a_longer_total_keeps_the_schedule_of_the_run(
    whole: TrainResult, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    longer = resume(folder, LONGER)
    assert (
        "schedules keep the length the run began with, 4 updates: the learning rates are 0" in capsys.readouterr().err
    )
    # what never stopped: 6 updates in one program, with a schedule of 4
    static, hypers = agent_of(CONFIG).static(CONFIG), jax.tree.map(jnp.float32, CONFIG.hypers)
    start = placement.init(KEY, MARKET, config=static)
    state, metrics = placement.run_chunk(start, hypers, MARKET, np.int32(6), config=static)
    assert_same_leaves(longer.state, state)
    assert [row["entropy"] for row in longer.history] == metrics.entropy[:6].tolist()
    assert_same_leaves(longer.params, whole.params)  # a line to 0 after 4 updates: nothing is learned in the other two
    assert load_config(folder) == CONFIG
    assert read_plan(folder).updates == 6
    assert rows_of(folder)[:4] == without_time(whole.history)


def test_a_longer_total_can_be_stopped_and_resumed_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = shutil.copytree(folder, folder.parent / "other")
    with monkeypatch.context() as patch:
        stop_after(5, signal.SIGTERM, patch)
        assert resume(folder, LONGER, quiet=True).stopped_by == "SIGTERM"
    resume(folder, LONGER, quiet=True)
    resume(other, LONGER, quiet=True)
    assert rows_of(folder) == rows_of(other)
    assert [entry["after"] for entry in read_facts(folder)["resumed"]] == [4, 5]


def test_validations_and_checkpoints_come_at_the_updates_that_the_run_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    for name in ("stopped", "whole"):
        options: dict[str, Any] = {"folder": tmp_path / name, "quiet": True}
        with monkeypatch.context() as patch:
            if name == "stopped":
                stop_after(1, signal.SIGTERM, patch)
            train_ppo(MARKET, CONFIG, KEY, MARKET, checkpoint_every=3, **options)
        if name == "stopped":
            train_ppo(MARKET, CONFIG, KEY, MARKET, resume=True, **options)
        rows.append(rows_of(tmp_path / name))
    assert rows[0] == rows[1]
    assert ["validation_total_return" in row for row in rows[0]] == [False, False, True, True]


def test_fewer_updates_than_are_done_are_refused(folder: Path) -> None:
    before = (folder / "run.json").read_bytes()
    with pytest.raises(
        ValueError, match=r"updates = 3, but .*run has done 4 already; give a larger total, or 4 to add"
    ):
        resume(folder, dataclasses.replace(CONFIG, updates=3), quiet=True)
    assert (folder / "run.json").read_bytes() == before
    assert len(resume(folder, quiet=True).history) == 4


def without_choice(path: Path) -> None:
    facts = json.loads((path / "checkpoint.json").read_text())["facts"]
    del facts["choice"]
    edit(path / "checkpoint.json", facts=facts)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut off arrays": lambda path: halve(max(path.rglob("*"), key=lambda p: p.stat().st_size * p.is_file())),
    "no arrays": lambda path: shutil.rmtree(path / "state"),
    "cut off facts": lambda path: halve(path / "checkpoint.json"),
    "no facts": lambda path: (path / "checkpoint.json").unlink(),
    "no choice": without_choice,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_told_in_a_line_and_the_one_before_it_goes_on(
    damage: str, whole: TrainResult, folder: Path, capfd: pytest.CaptureFixture
) -> None:
    DAMAGES[damage](checkpoint(folder, 4))
    again = resume(folder)
    lines = capfd.readouterr().err.splitlines()
    assert len([line for line in lines if "update_00000004" in line and "going on from the one before it" in line]) == 1
    assert "resuming after update 3 of 4" in lines
    assert "Traceback" not in "".join(lines)
    assert_same_leaves(again.state, whole.state)
    assert_same_leaves(jt.load_policy(folder, tiny.NAMES).params, whole.policy.params)
    assert again.choice == whole.choice
    assert rows_of(folder) == without_time(whole.history)
    assert resume(folder, quiet=True).history == again.history  # the damaged one has been replaced


def test_a_checkpoint_needs_no_other_one_for_the_chosen_weights(whole: TrainResult, folder: Path) -> None:
    for path in (folder / "checkpoints").iterdir():
        if path != checkpoint(folder, 4):
            shutil.rmtree(path)
    shutil.rmtree(folder / "weights")
    assert_same_leaves(resume(folder, quiet=True).policy.params, whole.policy.params)
    assert_same_leaves(jt.load_policy(folder, tiny.NAMES).params, whole.policy.params)


def test_a_damaged_checkpoint_does_not_outlive_the_next_one(folder: Path) -> None:
    shutil.copytree(checkpoint(folder, 4), checkpoint(folder, 9))
    halve(checkpoint(folder, 9) / "checkpoint.json")
    resume(folder, LONGER, quiet=True)
    assert Checkpoints(folder / "checkpoints").updates()[-2:] == [5, 6]


def test_without_a_checkpoint_that_can_be_read_nothing_is_overwritten(folder: Path) -> None:
    rows = (folder / "metrics.jsonl").read_bytes()
    for update in Checkpoints(folder / "checkpoints").updates():
        halve(checkpoint(folder, update) / "checkpoint.json")
    with pytest.raises(
        OSError, match=r"no checkpoint to resume from \(.*update_00000004.* is damaged.*\); start a new"
    ):
        resume(folder, quiet=True)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(OSError, match=r"no checkpoint to resume from \(there is none\)"):
        resume(folder, quiet=True)
    assert (folder / "metrics.jsonl").read_bytes() == rows


def test_a_run_killed_before_its_first_checkpoint_begins_again(
    whole: TrainResult, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "weights")
    again = resume(folder)
    assert "the run ended before its first checkpoint: it begins again" in capsys.readouterr().err
    assert without_time(again.history) == without_time(whole.history)
    assert_same_leaves(again.state, whole.state)


def test_a_folder_takes_one_process_at_a_time(folder: Path, tmp_path: Path) -> None:
    rows = (folder / "metrics.jsonl").read_bytes()
    (tmp_path / "new").mkdir()
    with locked(folder), locked(tmp_path / "new"):
        with pytest.raises(OSError, match=r"another process is training in .*run; wait until it has ended"):
            resume(folder, LONGER, quiet=True)
        with pytest.raises(OSError, match="another process is training in"):
            train_ppo(MARKET, CONFIG, KEY, folder=tmp_path / "new", quiet=True)
    assert (folder / "metrics.jsonl").read_bytes() == rows
    assert len(resume(folder, quiet=True).history) == 4


def test_the_lock_dies_with_the_process_that_holds_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pathlib, sys, time; from jaxrl_trade.train.files import locked\n"
            "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(OSError, match="another process is training in"), locked(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with locked(tmp_path):
        pass


def test_settings_edited_since_the_run_began_are_refused_with_what_differs(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    edit(folder / "config.json", env={**settings["env"], "spread": 0.5}, updates=9)
    message = (
        r"config\.json was edited since the run began \(env\.spread: 0\.0001 -> 0\.5; updates: 4 -> 9\); undo that, or .*"
        "made longer by resuming it with more updates"
    )
    for read in (lambda: resume(folder, quiet=True), lambda: load_config(folder), lambda: jt.load_policy(folder)):
        with pytest.raises(ValueError, match=message):
            read()


def test_another_key_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"began with another key \(\[0, 3\], this is \[0, 5\]\); resume with its own"):
        train_ppo(MARKET, CONFIG, jax.random.key(5), folder=folder, resume=True, quiet=True)


def test_other_devices_and_versions_are_told_and_recorded_and_the_state_goes_on(
    whole: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    options: dict[str, Any] = {"folder": tmp_path / "run", "checkpoint_every": 1}
    with monkeypatch.context() as patch:
        stop_after(2, signal.SIGTERM, patch)
        train_ppo(MARKET, CONFIG, KEY, MARKET, **options, quiet=True)
    facts = read_facts(tmp_path / "run")
    edit(tmp_path / "run" / "run.json", device="8 x abacus", versions={**facts["versions"], "jax": "0.0.1"})
    rest = train_ppo(MARKET, CONFIG, KEY, MARKET, resume=True, **options)
    now = f"device: 8 x abacus -> {device(1)}; jax: 0.0.1 -> {jax.__version__}"
    assert f"not as before: {now}; parameters and optimiser are the run's" in capsys.readouterr().err
    assert_same_leaves(rest.state, whole.state)
    after = read_facts(tmp_path / "run")
    assert after["device"] == "8 x abacus"  # as it began
    assert [(entry["after"], entry["device"]) for entry in after["resumed"]] == [(2, device(1))]
    resume(tmp_path / "run")
    assert "not as before" not in capsys.readouterr().err


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of its own, and a function that gives it another size."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def size(kib: int, *words: str) -> None:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join([*words, f"size={kib}k"]), "tmpfs", str(disk)],
            check=True,
            capture_output=True,
        )

    try:
        size(64)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system needs more rights")
    yield disk, lambda kib: size(kib, "remount")
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


# KiB; a checkpoint has some 70: full at the first one, at arrays and at facts of the second, at weights, at another one
@pytest.mark.parametrize("size", [40, 150, 230, 340, 400])
def test_a_full_disk_ends_the_run_with_one_line_and_what_was_saved_before_goes_on(
    size: int, whole: TrainResult, small_disk: tuple[Path, Callable[[int], None]], capfd: pytest.CaptureFixture
) -> None:
    disk, resize = small_disk
    resize(size)
    with pytest.raises(OSError, match="No space left on device") as caught:
        train_ppo(MARKET, CONFIG, KEY, MARKET, folder=disk / "run", checkpoint_every=1, quiet=True)
    assert "\n" not in str(caught.value)
    assert str(disk / "run") in str(caught.value)
    assert capfd.readouterr().err == ""
    assert not (disk / "run" / ".weights_partial").exists()
    resize(4000)
    rest = resume(disk / "run", quiet=True)
    assert without_time(rest.history) == without_time(whole.history)
    assert_same_leaves(rest.state, whole.state)
