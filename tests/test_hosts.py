"""Processes that train together: what they are told wrongly is one line, what one of them meets is met by all.

Two processes train what one with their devices trains in tests/scaling/test_two_processes.py.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from jaxrl_trade import hosts
from jaxrl_trade.cli import main


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            ("localhost", 2, 0),
            r"--coordinator 'localhost' must be HOST:PORT of process 0, such as 10\.0\.0\.1:1234, or auto",
        ),
        (("localhost:port", 2, 0), r"must be HOST:PORT"),
        (("localhost:70000", 2, 0), r"must be HOST:PORT"),
        (("localhost:1234", None, 0), r"--coordinator localhost:1234 also needs --num-processes and --process-id"),
        (("localhost:1234", 2, None), r"also needs --num-processes and --process-id"),
        (("localhost:1234", 2, 2), r"--process-id 2 of --num-processes 2: ids go from 0 to one below the number"),
        (("localhost:1234", 0, 0), r"--process-id 0 of --num-processes 0"),
        (("no-such-host.invalid:1234", 2, 1), r"nobody knows the host 'no-such-host\.invalid'"),
        (("auto", 2, 1), r"--coordinator auto finds out what --num-processes and --process-id would say; leave it out"),
        (("auto", None, None), r"JAX finds no cluster here .*; give HOST:PORT, --num-processes and --process-id"),
    ],
)
def test_a_place_among_several_that_cannot_be_is_told(place, message):
    with pytest.raises(ValueError, match=message):
        hosts.join(*place)


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("", 0)) as server:
        place = f"localhost:{server.getsockname()[1]}"
        with pytest.raises(OSError, match=rf"{place}: process 0 cannot listen there \(Address already in use\)"):
            hosts.join(place, 2, 0)


@pytest.mark.parametrize("words", [["--process-id", "1"], ["--num-processes", "2"]])
@pytest.mark.parametrize("resume", [[], ["--resume", "run"]])
def test_the_command_line_wants_a_coordinator(words, resume, capsys):
    assert main(["train", "ppo", *resume, *words]) == 2
    assert capsys.readouterr().err == (
        f"error: {' '.join(words)} says which of several processes this is, but not where they meet; add --coordinator "
        "HOST:PORT of process 0\n"
    )


@pytest.mark.parametrize(("tasks", "is_told"), [("4", True), ("1", False)])
def test_tasks_of_a_cluster_that_were_not_brought_together_are_told(tasks, is_told, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
    assert main(["train", "ppo", "--seed", "-1"]) == 2
    note = "note: SLURM runs this command 4 times, each a run of its own; --coordinator auto makes them one"
    assert (capsys.readouterr().err.splitlines()[0] == note) == is_told


def test_a_process_alone_is_told_what_it_says():
    assert (hosts.count(), hosts.is_first()) == (1, True)
    value = object()  # not even JSON
    assert hosts.exchange(value) == [value]
    assert hosts.from_first(lambda: value) is value
    with pytest.raises(KeyError, match="own"), hosts.together():
        raise KeyError("own")


@pytest.mark.parametrize(
    ("process", "line"),
    [
        (
            0,
            "error: {place}: within 1 s not all other processes came; start them, and see that they reach this host and port",
        ),
        (
            1,
            "error: {place}: within 1 s process 1 got no answer; start process 0 there, and see that this host reaches it",
        ),
    ],
)
def test_who_waits_in_vain_ends_with_a_line(process, line):
    place = f"127.0.0.1:{free_port()}"
    code = f"from jaxrl_trade import hosts; hosts.join({place!r}, 2, {process}, timeout=1)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert (done.returncode, done.stderr.splitlines()) == (2, [line.format(place=place)])


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
