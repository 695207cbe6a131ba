"""Runs the blocks of a page: Python and `jaxrl-trade` in this process, where compiled programs are at hand, the rest in bash."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from jaxrl_trade.cli import main
from tests.docs.pages import ROOT, Block

# put behind a command's own flags: of two values the last one counts
_SMALL = ["--n-episodes", "4", "--timesteps-per-episode", "16", "--updates", "2", "--episode-length", "64"]
_SMALL_PPO = [*_SMALL, "--epochs", "1", "--minibatches", "2", "--actor-hidden", "8", "--critic-hidden", "8"]
_SMALL_DQN = [*_SMALL, "--batch-size", "16", "--replay-capacity", "256", "--learning-starts", "64"]
_SMALL_DQN += ["--shared-hidden", "8", "--head-hidden", "8"]


def run(block: Block, folder: Path, names: dict[str, Any]) -> None:
    """Runs a block in a folder, which is the current one.

    Args:
      block: of a page.
      folder: of that page.
      names: of the page's Python blocks, which it extends.
    """
    code = block.small()
    if setup := block.markers.get("setup"):
        exec(compile(textwrap.dedent(setup), f"{block} (setup)", "exec"), names)
    if block.language == "python":
        lines_before = "\n" * (block.line - 1)  # so that a traceback names the line of the page
        exec(compile(lines_before + code, str(block.page), "exec"), names)
    elif block.language == "shell":
        for line in commands(code):
            _run_line(line, folder, str(block))


def commands(code: str) -> list[str]:
    """The commands of a shell block that is a plain list of them, one a line, continued by a backslash."""
    lines = code.replace("\\\n", " ").splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


def small(words: list[str]) -> list[str]:
    """The words of a `jaxrl-trade` command with flags that make it quick."""
    trains = words[0] in ("train", "walk-forward", "sweep")
    if not trains or "--resume" in words or "--help" in words:
        return words
    return [*words, *(_SMALL_DQN if "dqn" in words else _SMALL_PPO)]


def _run_line(line: str, folder: Path, where: str) -> None:
    program, *words = shlex.split(line, comments=True)
    if program == "jaxrl-trade" and not set("|><&;$") & set(line.partition(" #")[0]):
        code, said = main(small(words)), ""
    else:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        code, said = done.returncode, done.stdout + done.stderr
    assert code == 0, f"{where}: {line.strip()} ended with {code}\n{said}"
