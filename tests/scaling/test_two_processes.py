"""Two processes of two devices each train what one process with four trains, and stop and fail together."""

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
import orbax.checkpoint as ocp
import pytest

from tests.scaling.run_together import CONFIGS, UPDATES
from tests.test_hosts import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # processes of their own, which import and compile

ROOT = Path(__file__).parents[2]
SMALL = [
    *("--n-episodes", "4", "--timesteps-per-episode", "16", "--episode-length", "64", "--epochs", "1"),
    *("--minibatches", "2", "--actor-hidden", "8", "--critic-hidden", "8", "--checkpoint-every", "5"),
]


def start(devices: int, *words: str | Path, **environment: str) -> subprocess.Popen[str]:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, words)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", **environment},
    )


def start_both(*words: str | Path) -> list[subprocess.Popen[str]]:
    place = f"localhost:{free_port()}"
    return [
        start(2, "jaxrl_trade", *words, "--coordinator", place, "--num-processes", "2", "--process-id", str(i))
        for i in range(2)
    ]


def finish(*processes: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    try:
        ends = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, _told(out), _told(err)) for process, (out, err) in zip(processes, ends, strict=True)]


def _told(text: str) -> str:
    """Without the lines of XLA's collectives on CPUs, and without those that only a slow machine says."""
    return "".join(line for line in text.splitlines(True) if "[Gloo]" not in line and " ..." not in line)


def arrays_of(run: Path) -> dict[str, Any]:
    """All that the last checkpoint holds, by name."""
    path = run / "checkpoints" / f"update_{UPDATES:08d}"
    leaves = json.loads((path / "checkpoint.json").read_text())["leaves"]
    like = {name: np.zeros(shape, dtype) for name, (shape, dtype) in leaves.items() if 0 not in shape}
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore((path / "state").absolute(), like)


def rows_of(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def spoken(end: tuple[int, str, str]) -> list[str]:
    """The lines of a process that has ended, without those that Gloo writes on a busy machine."""
    return [line for said in end[1:] for line in said.splitlines() if "peer ranks" not in line]


def test_two_processes_train_what_one_with_their_devices_trains(tmp_path: Path) -> None:
    """Two updates and a checkpoint, then a third from it: weights, optimisers, episodes, replays, draws and metrics."""
    program, x64 = "tests.scaling.run_together", {"JAX_ENABLE_X64": "1"}
    place = f"localhost:{free_port()}"
    both = [start(2, program, tmp_path / "two", place, "2", str(i), **x64) for i in range(2)]
    one = start(4, program, tmp_path / "one", **x64)
    ends = finish(*both, one)
    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    assert spoken(ends[1]) == []  # process 0 alone speaks
    for agent in CONFIGS:
        two, alone = (arrays_of(tmp_path / name / agent) for name in ("two", "one"))
        assert set(two) == set(alone)
        for name, expected in alone.items():
            np.testing.assert_allclose(two[name], expected, rtol=1e-10, atol=1e-10, err_msg=name)
        rows, wanted = rows_of(tmp_path / "two" / agent), rows_of(tmp_path / "one" / agent)
        assert [row["update"] for row in rows] == list(range(1, UPDATES + 1))
        for row, other in zip(rows, wanted, strict=True):
            np.testing.assert_allclose(list(row.values()), list(other.values()), rtol=1e-10, atol=1e-10)
        parts = {path.name for path in (tmp_path / "two" / agent / "checkpoints").rglob("ocdbt.process_*")}
        assert parts == {"ocdbt.process_0", "ocdbt.process_1"}  # each wrote its own


def test_a_signal_to_one_ends_both_with_a_checkpoint_and_process_0_says_how_to_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    both = start_both("train", "ppo", *SMALL, "--updates", "1000000", "--out", run)
    while not list(run.glob("checkpoints/update_*/checkpoint.json")):
        assert [process.poll() for process in both] == [None, None], finish(*both)
        time.sleep(0.1)
    both[1].send_signal(signal.SIGTERM)
    first, second = finish(*both)
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert first[2].splitlines()[-1] == f"resume with: jaxrl-trade train ppo --resume {run}"
    assert spoken(second) == []
    last = max(int(path.name.removeprefix("update_")) for path in (run / "checkpoints").iterdir())
    assert [row["update"] for row in rows_of(run)] == list(range(1, last + 1))


def test_what_one_of_them_cannot_do_ends_both_with_a_line(tmp_path: Path) -> None:
    place = f"localhost:{free_port()}"
    words = [
        "jaxrl_trade",
        "train",
        "ppo",
        *SMALL,
        "--out",
        tmp_path / "run",
        "--coordinator",
        place,
        "--num-processes",
        "2",
    ]
    both = [start(2, *words, "--process-id", "0"), start(2, *words, "--process-id", "1", "--seed", "2")]
    line = "error: process 1 was given something else than process 0 (key: [0, 0] -> [0, 2]); start all of them alike"
    assert [(code, err.splitlines()[-1]) for code, _, err in finish(*both)] == [(2, line)] * 2
    assert not (tmp_path / "run").exists()
