"""Ends that a test cannot fake: signals to a real training process, and a process that is killed outright."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # each test compiles twice, in processes of its own

SMALL = [
    *("--n-episodes", "4", "--timesteps-per-episode", "16", "--episode-length", "64", "--epochs", "1"),
    *("--minibatches", "2", "--actor-hidden", "8", "--critic-hidden", "8", "--checkpoint-every", "5"),
]


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jaxrl_trade", "train", "ppo", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str]) -> None:
    while not list((folder / "checkpoints").glob("update_*/checkpoint.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_training_with_a_checkpoint_and_a_line_how_to_resume(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(*SMALL, "--updates", "1000000", "--out", str(folder))
    wait_for_checkpoint(folder, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert err.splitlines()[-1] == f"resume with: jaxrl-trade train ppo --resume {folder}"
    assert "report.html" not in out
    last = max(int(path.name.removeprefix("update_")) for path in (folder / "checkpoints").iterdir())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["update"] == last  # nothing after the checkpoint was lost

    resumed = start("--resume", str(folder), "--updates", str(last + 1))
    out, err = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, err
    assert out.splitlines()[-1] == str(folder / "report.html")


def test_a_run_killed_outright_goes_on_from_its_last_checkpoint_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(*SMALL, "--updates", "1000000", "--out", str(killed))
    wait_for_checkpoint(killed, process)
    time.sleep(1.0)
    process.kill()
    process.communicate()
    last = max(int(path.name.removeprefix("update_")) for path in (killed / "checkpoints").glob("update_*"))
    goal = str(last + 7)
    for words in (["--resume", str(killed), "--updates", goal], [*SMALL, "--updates", goal, "--out", str(whole)]):
        done = start(*words, "--checkpoint-every", "5") if words[0] == "--resume" else start(*words)
        _, err = done.communicate(timeout=400)
        assert done.returncode == 0, err
    rows = [
        [
            {name: value for name, value in json.loads(line).items() if name != "seconds" and "validation" not in name}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in (killed, whole)
    ]
    assert rows[0] == rows[1]
