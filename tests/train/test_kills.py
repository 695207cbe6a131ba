"""Ends that a test cannot fake: signals to a real training process, and a process that is killed outright."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.test_logs import read_board

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # processes of their own, which import, compile and backtest

SMALL = [
    *("--n-episodes", "4", "--timesteps-per-episode", "16", "--episode-length", "64", "--epochs", "1"),
    *("--minibatches", "2", "--actor-hidden", "8", "--critic-hidden", "8", "--checkpoint-every", "5"),
    *("--trials", "1"),  # else the runs beside it are counted, which are not the same for all
]
UPDATES = 200  # with a checkpoint after every fifth: much of the time is spent writing


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first process compiles, the others read."""
    return tmp_path_factory.mktemp("compiled")


def start(cache: Path, *words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jaxrl_trade", "train", "ppo", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
        },
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    return out, err


def wait_for(folder: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    while not list(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def arrays_of(folder: Path, update: int) -> dict[str, Any]:
    """All that the checkpoint after that many updates holds, by name."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore((folder / "checkpoints" / f"update_{update:08d}" / "state").absolute())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_training_with_a_checkpoint_and_a_line_how_to_resume(
    number: signal.Signals, code: int, tmp_path: Path, cache: Path
) -> None:
    folder = tmp_path / "run"
    process = start(cache, *SMALL, "--updates", "1000000", "--out", folder)
    wait_for(folder, "checkpoints/update_*/checkpoint.json", process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert err.splitlines()[-1] == f"resume with: jaxrl-trade train ppo --resume {folder}"
    assert "report.html" not in out
    last = max(int(path.name.removeprefix("update_")) for path in (folder / "checkpoints").iterdir())
    assert rows_of(folder)[-1]["update"] == last  # nothing after the checkpoint was lost
    out, _ = finish(start(cache, "--resume", folder, "--updates", str(last + 1)))
    assert out.splitlines()[-1] == str(folder / "report.html")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, float]:
    """A run that nobody kills, and the seconds from its first file to its end."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    finish(start(cache, *SMALL, "--updates", "1", "--out", folder.parent / "first"))  # compiles
    process = start(cache, *SMALL, "--updates", str(UPDATES), "--out", folder)
    wait_for(folder, "run.json", process)
    began = time.monotonic()
    finish(process)
    return folder, time.monotonic() - began


@pytest.mark.parametrize("seed", range(5))
def test_a_run_killed_at_a_random_moment_goes_on_as_if_nothing_had_happened(
    seed: int, whole: tuple[Path, float], tmp_path: Path, cache: Path
) -> None:
    folder, seconds = tmp_path / "killed", whole[1]
    process = start(cache, *SMALL, "--updates", str(UPDATES), "--out", folder)
    wait_for(folder, "run.json", process)
    moment = np.random.default_rng(seed).uniform(0.0, seconds)
    time.sleep(moment)
    process.kill()
    process.communicate()
    done = len(rows_of(folder)) if (folder / "metrics.jsonl").exists() else 0
    print(f"killed after {moment:.2f} of {seconds:.2f} s, in the log {done} updates")
    out, err = finish(start(cache, "--resume", folder))
    print(err)
    assert out.splitlines()[-1] == str(folder / "report.html")
    assert rows_of(folder) == rows_of(whole[0])  # the validations too
    assert [row["update"] for row in read_board(folder)] == list(range(1, UPDATES + 1))
    for name in ("actor.safetensors", "critic.safetensors", "curiosity.safetensors", "chosen.json"):
        assert (folder / "weights" / name).read_bytes() == (whole[0] / "weights" / name).read_bytes()
    for name in ("config.json", "test/metrics.json"):
        assert (folder / name).read_bytes() == (whole[0] / name).read_bytes()
    actual, expected = arrays_of(folder, UPDATES), arrays_of(whole[0], UPDATES)
    assert set(actual) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def test_of_two_processes_that_resume_one_run_the_second_is_told(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "run"
    finish(start(cache, *SMALL, "--updates", "5", "--out", folder))
    first = start(cache, "--resume", folder, "--updates", "1000000")
    wait_for(folder, "checkpoints/update_*1[05]/checkpoint.json", first)  # it is training
    second = start(cache, "--resume", folder, "--updates", "30")
    _, err = second.communicate(timeout=120)
    assert second.returncode == 2
    lines = [line.split(";")[0] for line in err.splitlines() if " ..." not in line]  # a slow machine says what it does
    assert lines == [f"error: another process is training in {folder}"]
    first.terminate()
    finish(first)
    updates = [row["update"] for row in rows_of(folder)]
    assert updates == list(range(1, len(updates) + 1))
