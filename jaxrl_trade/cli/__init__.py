"""The command line: `jaxrl-trade train ppo`, `train dqn`, `backtest`, `walk-forward`, `sweep ppo`, `sweep dqn`, `inspect`.

Finds the command, parses its flags, turns errors into a line.

A command is a frozen dataclass whose fields are its flags and whose `run(command_line)` returns the exit code; a new one is a
line in `COMMANDS`, with its examples in `usage.EXAMPLES`. Exit codes: `usage.EXIT_CODES`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from jaxrl_trade import spelling
from jaxrl_trade.cli import compile_cache
from jaxrl_trade.cli.usage import PROGRAM, examples, usage
from jaxrl_trade.patience import working

MISTAKE, FAULT, INTERRUPTED, UNREAD = 2, 70, 130, 141
# words -> where its class is, and what --help says of it
COMMANDS: dict[tuple[str, ...], tuple[str, str]] = {
    ("train", "ppo"): ("jaxrl_trade.cli.train:TrainPPO", "train a PPO agent and backtest it on bars it never saw"),
    ("train", "dqn"): ("jaxrl_trade.cli.train:TrainDQN", "train a dueling DQN and backtest it on bars it never saw"),
    ("backtest",): ("jaxrl_trade.cli.backtest:Backtest", "backtest a trained run, on its test bars or on another file"),
    ("walk-forward",): (
        "jaxrl_trade.cli.walk_forward:WalkForward",
        "train anew for each of several folds, test all of them in a row",
    ),
    ("sweep", "ppo"): (
        "jaxrl_trade.cli.sweep:SweepPPO",
        "train a grid of hyperparameters side by side, choose on validation bars, test the chosen",
    ),
    ("sweep", "dqn"): ("jaxrl_trade.cli.sweep:SweepDQN", "the same with a dueling DQN"),
    ("inspect",): (
        "jaxrl_trade.cli.inspect:Inspect",
        "say what is in a price file, and check the features for look-ahead",
    ),
}


class UsageError(ValueError):
    """Arguments that name no command, or that the command does not take."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code.

    Args:
      argv: the words after the program's name; None takes those of this process, whose compiled programs are then kept.
    """
    if argv is None:
        _end_at_once_on_interrupt()
        compile_cache.enable()
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    try:
        _print_anything()
        code = _run([word for word in argv if word != "--debug"])
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `jaxrl-trade --help | head`
        _write_no_more()
        return UNREAD
    except Exception as error:
        return _failed(error, debug, "--json" in argv)


def _failed(error: Exception, debug: bool, as_json: bool) -> int:
    """Says what went wrong; the exit code."""
    line = _line(error)
    code = FAULT if line is None else MISTAKE
    if debug or line is None:
        traceback.print_exception(error)
    else:
        print(f"error: {line}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": line or f"{type(error).__name__}: {error}", "exit_code": code}))
    return code


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help") or (argv[0] in ("train", "sweep") and argv[1:] in (["-h"], ["--help"])):
        print(usage(COMMANDS))
        return 0
    if argv[0] == "--version":
        print(f"{PROGRAM} {importlib.import_module('jaxrl_trade').__version__}")
        return 0
    words, kind = _command(argv)
    try:
        command = parse(kind, argv[len(words) :], shlex.join([PROGRAM, *words]))
    except SystemExit:  # --help
        print(examples(words))
        return 0
    return command.run(shlex.join([PROGRAM, *argv]))


def parse(kind: Any, words: list[str], program: str) -> Any:
    """A command's dataclass from its words; `--help` prints and leaves.

    Raises:
      UsageError: words that it does not take, in one line.
    """
    import tyro

    _refuse_empty(words, program)
    if hasattr(kind, "choose"):
        kind, default = kind.choose(words)
        options: dict[str, Any] = {} if default is None else {"default": default}
    else:
        options = {}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                kind,
                args=words,
                prog=program,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
                **options,
            )
    except SystemExit as end:
        if not end.code:
            raise
        text = complaint.getvalue()
        raise UsageError(f"{_unboxed(text)}{_meant_flag(text)} (see {program} --help)") from None


def _refuse_empty(words: list[str], program: str) -> None:
    """An empty text would be the current folder, or no name at all: what an unset variable of a shell leaves behind."""
    parts = [part for word in words for part in word.split("=", 1)]
    if "" in parts:
        before = ["the first argument", *parts][parts.index("")]
        raise UsageError(f"{before} is given an empty text; name something, or leave it out (see {program} --help)")


def _command(argv: list[str]) -> tuple[tuple[str, ...], Any]:
    for words, (place, _) in COMMANDS.items():
        if tuple(argv[: len(words)]) == words:
            module, name = place.split(":")
            with working("starting") if sys.stderr.isatty() else contextlib.nullcontext():
                return words, getattr(importlib.import_module(module), name)
    known = [" ".join(words) for words in COMMANDS]
    whole = spelling.nearest(" ".join(argv[:2]), known) if len(argv) > 1 else None
    first = spelling.nearest(argv[0], {words[0] for words in COMMANDS})
    near = [whole] if whole else [name for name in known if name.split()[0] == first]
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; the commands are {', '.join(known)}"
    raise UsageError(f"there is no command {shlex.join(argv[:2])!r}{hint} (see {PROGRAM} --help)")


def _line(error: Exception) -> str | None:
    """What a person is told of an error; None of one that is a fault of the program."""
    is_device = type(error).__name__ == "JaxRuntimeError"  # by name: its import would start JAX for `inspect`
    if isinstance(error, MemoryError) or (is_device and "RESOURCE_EXHAUSTED" in str(error)):
        return "out of memory; lower --n-episodes, --timesteps-per-episode, the widths of the networks, or --at-once of a sweep"
    if isinstance(error, OSError) and error.strerror:  # the system's, not ours
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if isinstance(error, (ValueError, OSError, ImportError, FloatingPointError)):
        return " ".join(str(error).split()) or type(error).__name__
    return None


def _write_no_more() -> None:
    """Lets the interpreter's own last flush of stdout go nowhere, where there is a file to be exchanged."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_at_once_on_interrupt() -> None:
    """Lets Ctrl-C end this process, save while training, which handles it: imports may swallow a KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell or a caller wants something else
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _print_anything() -> None:
    """Makes a terminal that cannot show a character show another, not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _meant_flag(text: str) -> str:
    """The flags that tyro thinks were meant, in a few words."""
    _, _, below = text.partition("Perhaps you meant")
    flags = list(dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][\w-]*", below.partition("helptext")[0])))
    return f"; did you mean {' or '.join(flags[:2])}?" if flags else ""


def _unboxed(text: str) -> str:
    """The first paragraph of tyro's complaint, as one line: framed below its title, or ruled where the terminal has no frames."""
    inner = re.sub(r"\x1b\[[0-9;]*m", "", text).strip()
    body = [line.strip(" │|╰╯╭╮") for line in inner.splitlines()[1:]]
    paragraph: list[str] = []
    for line in body:
        if set(line) <= set("─-"):
            if paragraph:
                break
        else:
            paragraph.append(line)
    return " ".join(paragraph).rstrip(".") or "the arguments were not understood"
