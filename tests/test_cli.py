"""The command line, in this process: a small run from bars to report, and one line for every mistake."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from jax.errors import JaxRuntimeError

import jaxrl_trade as jt
from jaxrl_trade.cli import COMMANDS, _unboxed, main, parse
from jaxrl_trade.cli.trials import count_trials
from jaxrl_trade.cli.usage import EXAMPLES
from jaxrl_trade.train import loop
from jaxrl_trade.train.files import locked
from jaxrl_trade.train.run import load_config, read_facts, read_plan

SMALL = [
    *("--n-episodes", "4", "--timesteps-per-episode", "16", "--episode-length", "64", "--epochs", "1"),
    *("--minibatches", "2", "--actor-hidden", "8", "--critic-hidden", "8", "--updates", "2"),
]


def write_csv(path: Path, n: int = 400, **columns: Any) -> Path:
    """Hourly bars of a random walk; `columns` replaces some."""
    rng = np.random.default_rng(0)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.002, n)))
    open_ = np.append(close[:1], close[:-1])
    table = {
        "time": [str(np.datetime64("2024-01-01T00:00") + np.timedelta64(i, "h")) for i in range(n)],
        "open": open_,
        "high": np.maximum(open_, close) * 1.001,
        "low": np.minimum(open_, close) * 0.999,
        "close": close,
        "volume": rng.integers(1, 100, n),
        **columns,
    }
    table = {name: column for name, column in table.items() if column is not None}
    rows = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    path.write_text("\n".join([",".join(table), *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on the bundled sample, and what it printed."""
    folder = tmp_path_factory.mktemp("cli") / "demo"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["train", "ppo", *SMALL, "--out", str(folder), "--learning-rate", "0.001"]) == 0
    return folder, printed.getvalue()


def complaint(capsys: pytest.CaptureFixture, *words: str | Path) -> str:
    """The one line on stderr of a command that fails."""
    assert main([str(word) for word in words]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if " ..." not in line]  # a slow machine says what it is at
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def test_train_ends_with_the_table_the_verdict_and_the_path_of_the_report(demo: tuple[Path, str]) -> None:
    folder, printed = demo
    lines = printed.splitlines()
    assert lines[-1] == str(folder / "report.html")
    assert "are few" not in printed  # 565 bars and more than 20 days
    assert any("buy and hold on EURUSD" in line and line.startswith("The agent") for line in lines)
    for text in (
        "6,225 read, 6,225 kept",
        "51 of 5,905 bars",
        "buy and hold",
        "always flat",
        "random timing",
        "Sharpe",
    ):
        assert text in printed
    assert "<html" in (folder / "report.html").read_text()[:200]
    assert {path.name for path in (folder / "test").iterdir()} == {"equity.parquet", "trades.parquet", "metrics.json"}


def test_train_keeps_what_reproduces_the_run(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    config, facts = load_config(folder), read_facts(folder)
    assert config.hypers.learning_rate == 0.001
    assert config.env == jt.EnvConfig.net(episode_length=64)
    assert facts["command"].startswith("jaxrl-trade train ppo --n-episodes 4")
    assert facts["data"]["sha256"] == jt.sample_bars().sha256
    assert facts["feature_version"] == 1
    splits = facts["data"]["splits"]
    # 5,905 bars with features, of 6,225: 70 % are 4,134, and a split begins 320 bars after the one before it ends
    assert (splits["train"]["first"], splits["train"]["end"]) == (320, 320 + 4134)
    assert splits["validation"]["first"] == splits["train"]["end"] + 320
    assert splits["test"]["first"] == splits["validation"]["end"] + 320
    assert splits["test"]["end"] == 6225


def test_the_policy_of_a_run_acts_on_the_newest_bars(demo: tuple[Path, str]) -> None:
    policy, bars = jt.load_policy(demo[0]), jt.sample_bars()
    decision = policy.act(bars, now="2017-12-29 22:00")
    assert str(decision.time) == "2017-12-29 21:00:00+00:00"
    assert decision.action == int(np.argmax(policy(decision.obs[None])))
    assert policy.origin is not None
    assert policy.origin.steps == (60, 2940, 3000, 900, 2880)  # minutes: an hour, weekends, Christmas


def test_backtest_repeats_the_test_of_the_run(demo: tuple[Path, str], capsys: pytest.CaptureFixture) -> None:
    folder, _ = demo
    assert main(["backtest", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((folder / "test" / "metrics.json").read_text())


def test_the_trials_are_the_runs_beside_on_the_same_bars_until_told_otherwise(
    demo: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder, _ = demo
    assert read_facts(folder)["trials"] == 1
    assert count_trials(folder.parent / "next", jt.sample_bars().sha256) == 2
    assert count_trials(folder, jt.sample_bars().sha256) == 1
    assert count_trials(folder.parent / "next", "other bars") == 1
    assert count_trials(tmp_path / "not" / "yet", "bars") == 1
    assert main(["backtest", str(folder), "--trials", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deflated_sharpe"]["trials"] == 7
    assert (
        complaint(capsys, "backtest", folder, "--trials", "0")
        == "error: trials = 0 must be at least 1: this run is one of them"
    )


def test_backtest_takes_all_of_another_file_or_a_range_of_it(
    demo: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder, _ = demo
    other = write_csv(tmp_path / "other.csv", 420)
    assert main(["backtest", str(folder), "--data", str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["symbol"], found["bars"]) == ("other", 100)  # 320 warm the features up
    words = ["--start", "2024-01-15", "--end", "2024-01-16", "--sampled", "--out", str(tmp_path / "out")]
    assert main(["backtest", str(folder), "--data", str(other), *words]) == 0
    out = capsys.readouterr().out
    assert "on other from 2024-01-15 to 2024-01-15" in out
    assert out.splitlines()[-1] == str(tmp_path / "out" / "report.html")
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"report.html", "equity.parquet", "trades.parquet"}


def test_a_range_that_was_trained_on_is_no_evidence(demo: tuple[Path, str], capsys: pytest.CaptureFixture) -> None:
    words = ["backtest", str(demo[0]), "--start", "2017-11-01"]
    splits = read_facts(demo[0])["data"]["splits"]
    index = jt.sample_bars().index
    seen = splits["validation"]["end"] - int((index < "2017-11-01").sum())
    n = len(index) - int((index < "2017-11-01").sum())
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"but {seen} of {n:,} bars were seen in training, so it is no evidence." in out.splitlines()[0]
    assert f"\n{seen} of {n:,} bars seen  " in out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seen_bars"] == seen


def test_a_newer_export_is_tested_behind_what_the_run_has_seen(
    demo: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    frame = jt.sample_bars().frame
    whole, old = tmp_path / "export.csv", tmp_path / "old.csv"  # neither names the instrument: its closes tell
    frame.rename_axis("time").to_csv(whole)
    frame[:"2017-11-09"].rename_axis("time").to_csv(old)
    assert main(["backtest", str(demo[0]), "--data", str(whole), "--json"]) == 0
    captured = capsys.readouterr()
    found, own = json.loads(captured.out), json.loads((demo[0] / "test" / "metrics.json").read_text())
    assert (found["start"], found["metrics"]["agent"], found["seen_bars"]) == (own["start"], own["metrics"]["agent"], 0)
    assert (
        "the backtest begins on 2017-11-27 17:00: the run has seen export from 2017-01-19 to 2017-11-08" in captured.err
    )
    line = complaint(capsys, "backtest", demo[0], "--data", old)
    assert "has no unseen bars: the run has seen old from 2017-01-19 to 2017-11-08, and the 320 bars after" in line
    assert main(["backtest", str(demo[0]), "--data", str(old), "--start", "2017-11-06"]) == 0
    assert "bars were seen in training, so it is no evidence" in capsys.readouterr().out


def test_another_file_is_read_as_the_runs_own_was_where_no_flag_says_otherwise(
    demo: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = shutil.copytree(demo[0], tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text())
    options = {"symbol": "own", "tz": "America/New_York", "columns": {"close": "Last"}, "day_first": False}
    (folder / "run.json").write_text(json.dumps({**facts, "data": {**facts["data"], "options": options}}))
    prices = np.linspace(100.0, 110.0, 400)
    newer = write_csv(tmp_path / "newer.csv", open=prices, close=None, high=prices, low=prices, Last=prices)
    assert main(["backtest", str(folder), "--data", str(newer), "--json"]) == 0
    found = capsys.readouterr()
    flags = "--tz America/New_York, --columns close=Last, --month-first"
    assert f"note: read as the run's own bars were, with {flags}\n" in found.err
    assert main(["backtest", str(folder), "--data", str(newer), "--json", "--tz", "UTC"]) == 0
    other = capsys.readouterr()
    assert "with --columns close=Last, --month-first\n" in other.err
    starts = [pd.Timestamp(json.loads(text)["start"]) for text in (found.out, other.out)]
    assert starts[0] - starts[1] == pd.Timedelta(hours=5)


def test_backtest_notes_when_another_file_covers_the_time_trained_on(
    demo: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    hours = np.datetime64("2017-05-01T00:00") + np.arange(400) * np.timedelta64(1, "h")
    same_time = write_csv(tmp_path / "same.csv", time=hours)
    assert main(["backtest", str(demo[0]), "--data", str(same_time)]) == 0
    assert "shares time with the bars that the agent was trained and chosen on (2017-01-" in capsys.readouterr().err
    later = write_csv(tmp_path / "later.csv")  # of 2024
    assert main(["backtest", str(demo[0]), "--data", str(later)]) == 0
    assert "shares time" not in capsys.readouterr().err


def test_resume_goes_on_with_the_runs_own_settings(demo: tuple[Path, str], capsys: pytest.CaptureFixture) -> None:
    folder, _ = demo
    assert main(["train", "ppo", "--resume", str(folder), "--updates", "3"]) == 0
    captured = capsys.readouterr()
    assert "resuming after update 2 of 3" in captured.err
    assert captured.out.splitlines()[-1] == str(folder / "report.html")
    assert (load_config(folder).updates, read_plan(folder).updates) == (2, 3)  # as it began, and as it is planned now
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    assert "--learning-rate" in complaint(capsys, "train", "ppo", "--resume", folder, "--learning-rate", "1")


def test_what_cannot_be_resumed_is_told_in_one_line(
    demo: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = shutil.copytree(demo[0], tmp_path / "run")
    words = ("train", "ppo", "--resume", folder)
    assert f"updates = 1, but {folder} has done" in complaint(capsys, *words, "--updates", "1")
    with locked(folder):
        assert f"another process is training in {folder}" in complaint(capsys, *words, "--updates", "9")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "epochs": 7}))
    assert "config.json was edited since the run began (epochs: 1 -> 7)" in complaint(capsys, *words)
    assert "config.json was edited since the run began (epochs: 1 -> 7)" in complaint(capsys, "backtest", folder)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_stopped_training_says_how_to_resume(
    demo: tuple[Path, str],  # has compiled it
    number: signal.Signals,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    del demo
    write = loop.MetricsLog.write

    def write_and_raise(self: loop.MetricsLog, rows: list[dict[str, Any]]) -> None:
        write(self, rows)
        signal.raise_signal(number)

    monkeypatch.setattr(loop.MetricsLog, "write", write_and_raise)
    folder = tmp_path / "run"
    assert main(["train", "ppo", *SMALL, "--out", str(folder)]) == code
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == f"resume with: jaxrl-trade train ppo --resume {folder}"
    assert not (folder / "report.html").exists()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["update_00000001"]


def test_an_explicit_folder_that_holds_a_run_is_refused(demo: tuple[Path, str], capsys: pytest.CaptureFixture) -> None:
    line = complaint(capsys, "train", "ppo", *SMALL, "--out", demo[0])
    assert f"already holds a run; resume it (--resume {demo[0]})" in line


def test_the_default_folder_is_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxrl_trade.cli.train import fresh_folder

    monkeypatch.chdir(tmp_path)
    names = [fresh_folder("ppo-BTC/USD-net") for _ in range(3)]
    assert [str(name) for name in names] == [f"runs/ppo-btc-usd-net{suffix}" for suffix in ("", "-2", "-3")]


def test_a_run_from_another_feature_list_is_refused(
    demo: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    facts = json.loads((demo[0] / "run.json").read_text())
    names = facts["feature_names"]
    for name in ("config.json", "run.json"):
        (tmp_path / name).write_text((demo[0] / name).read_text())
    (tmp_path / "run.json").write_text(
        json.dumps({**facts, "feature_names": ["rsi_9" if n == "rsi_7" else n for n in names]})
    )
    assert "was trained on another feature list: it also has rsi_9; it lacks rsi_7" in complaint(
        capsys, "backtest", tmp_path
    )


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"splits": {}}, "splits.train, splits.validation, splits.test"),
        ({"path": 5}, "path"),
        ({"options": {"colour": 1}}, "options.colour"),
        ({"options": None, "sha256": None}, "options, sha256"),
    ],
)
def test_a_damaged_record_of_the_data_is_refused(
    demo: tuple[Path, str], changes: dict[str, Any], missing: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = shutil.copytree(demo[0], tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "data": {**facts["data"], **changes}}))
    for words in (["backtest", folder], ["train", "ppo", "--resume", folder]):
        assert f"its record of the data has no usable {missing}" in complaint(capsys, *words)
    (folder / "run.json").write_text(json.dumps({**facts, "data": None}))
    assert "the run began in Python; resume it there" in complaint(capsys, "train", "ppo", "--resume", folder)
    (folder / "run.json").write_text(json.dumps({**facts, "seed": "x"}))
    assert "seed = 'x' must be a whole number" in complaint(capsys, "train", "ppo", "--resume", folder)


def test_a_start_outside_the_data_is_refused(demo: tuple[Path, str], capsys: pytest.CaptureFixture) -> None:
    line = complaint(capsys, "backtest", demo[0], "--start", "2031-01-01")
    assert "2031-01-01" in line
    assert "2017-12-29" in line  # where the data ends
    assert "2017-06-01" in complaint(capsys, "backtest", demo[0], "--start", "2017-07-01", "--end", "2017-06-01")
    assert "neither a date" in complaint(capsys, "backtest", demo[0], "--start", "soon")


def test_backtest_of_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert "is no run folder" in complaint(capsys, "backtest", tmp_path / "nothing")


def test_a_file_that_changed_since_training_is_refused(
    demo: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = write_csv(tmp_path / "other.csv")
    assert "it has changed since" in complaint(capsys, "train", "ppo", "--resume", demo[0], "--data", other)


@pytest.mark.parametrize("command", [("train", "ppo", "--data"), ("inspect",)])
def test_a_bad_file_gets_one_clear_line(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    missing, empty = tmp_path / "missing.csv", tmp_path / "empty.csv"
    empty.touch()
    assert f"there is no file {missing}" in complaint(capsys, *command, missing)
    assert f"{empty} is empty" in complaint(capsys, *command, empty)
    (tmp_path / "nothing").mkdir()
    assert f"no price file in the folder {tmp_path / 'nothing'}" in complaint(capsys, *command, tmp_path / "nothing")
    no_close = write_csv(tmp_path / "no_close.csv", close=None)
    assert "close" in complaint(capsys, *command, no_close)
    prices = [100.0] * 400
    text = write_csv(tmp_path / "text.csv", open=[*prices[:7], "cheap", *prices[8:]])
    line = complaint(capsys, *command, text)
    assert "'cheap'" in line
    assert "open" in line


def test_too_few_bars_are_refused_before_a_folder_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = write_csv(tmp_path / "few.csv", 300)
    assert "has 300 bars; the features' warm-up" in complaint(capsys, "train", "ppo", "--data", few)
    assert main(["train", "ppo", "--episode-length", "5000"]) == 2
    assert "too few for one episode of 5000 bars" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["train", "-h"]])
def test_help_lists_the_commands(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(words) == 0
    assert re.search(r"train ppo +train a PPO agent", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["trian"],
            "there is no command 'trian'; did you mean train ppo or train dqn?",
        ),
        (["train"], "there is no command 'train'; did you mean train ppo or train dqn?"),
        (["x"], "the commands are train ppo, train dqn, backtest, walk-forward, sweep ppo, sweep dqn, inspect"),
        (["train", "ppo", "--learnin-rate", "1"], "Unrecognized options: --learnin-rate"),
        (["train", "ppo", "--learning-rate", "fast"], "could not convert string to float: 'fast'"),
        (["train", "ppo", "--preset", "gross"], "invalid choice 'gross'"),
        (["train", "ppo", "--epochs", "0"], "epochs = 0 must be a"),
        (["train", "ppo", "--seed", "-1"], "seed = -1 must be a whole number of at least 0"),
        (["train", "ppo", "--seed", str(2**70)], "must be a whole number of at least 0, and below 2**32"),
        (["backtest", "run", "--seed", "-1"], "seed = -1 must be a whole number of at least 0"),
        (["train", "ppo", "--gamma", "2"], "gamma = 2.0 must be a number in [0, 1]"),
        (["train", "ppo", "--learning-rate", "nan"], "learning_rate = nan must be a number"),
        (["train", "ppo", "--actor-hidden"], "actor_hidden = () must hold at least one width"),
        (["train", "ppo", "--tz", "UTC"], "tz says how to read a file, but no --data was given"),
        (["train", "ppo", "--day-first", "--month-first"], "--day-first and --month-first exclude each other"),
        (["train", "ppo", "--out", ""], "--out is given an empty text; name something, or leave it out"),
        (["train", "dqn", "--out="], "--out is given an empty text"),
        (["train", "ppo", "--resume", ""], "--resume is given an empty text"),
        (["backtest", "run", "--out", ""], "--out is given an empty text"),
        (["inspect", ""], "the first argument is given an empty text"),
        (["inspect"], "FILE"),
        (["inspect", "x.csv", "--columns", "close"], "--columns 'close': write role=column pairs"),
    ],
)
def test_a_mistake_in_the_arguments_gets_one_clear_line(
    words: list[str], text: str, capsys: pytest.CaptureFixture
) -> None:
    assert text in complaint(capsys, *words)


def test_a_run_that_cannot_begin_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "ppo", *SMALL, "--checkpoint-every", "0"]) == 2
    assert "checkpoint_every = 0 must be at least 1 update" in capsys.readouterr().err
    assert not list((tmp_path / "runs").iterdir())


def test_a_very_long_name_makes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxrl_trade.cli.reports import LONGEST_NAME
    from jaxrl_trade.cli.train import fresh_folder

    monkeypatch.chdir(tmp_path)
    assert len(fresh_folder("ppo-" + "x" * 500).name) == LONGEST_NAME


def test_complaints_are_one_line_where_a_terminal_has_no_frames() -> None:
    framed = (
        "╭─ Unrecognized options ─╮\n│ Unrecognized options: --x │\n│ ───── │\n│ For full helptext, run y │\n╰───╯\n"
    )
    ruled = " Unrecognized options \n ------ \n  Unrecognized options: --x \n  ----\n  For full helptext, run y \n  \n"
    assert _unboxed(framed) == _unboxed(ruled) == "Unrecognized options: --x"


def test_the_report_is_written_before_anything_can_go_wrong_with_the_terminal(
    demo: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["backtest", str(demo[0]), "--out", str(tmp_path / "out")]) == 141  # as whom SIGPIPE ended
    assert (tmp_path / "out" / "report.html").exists()


def test_a_terminal_that_lacks_a_character_shows_another(
    demo: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", poor)
    assert main(["backtest", str(demo[0])]) == 0
    poor.seek(0)
    assert "Sharpe" in poor.read()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "out of memory; lower --n-episodes"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes"), "out of memory; lower --n-episodes"),
        (JaxRuntimeError("INTERNAL: something"), None),
        (KeyError("x"), None),
    ],
)
def test_running_out_of_memory_is_told_and_a_fault_of_the_program_keeps_its_traceback(
    error: Exception, text: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("jaxrl_trade.cli.inspect.load_all", fail)
    if text is None:
        assert main(["inspect", "x.csv"]) == 70
        assert capsys.readouterr().err.startswith("Traceback")
    else:
        assert text in complaint(capsys, "inspect", "x.csv")


def test_platforms_that_jax_lacks_are_named(demo: tuple[Path, str]) -> None:
    words = [sys.executable, "-m", "jaxrl_trade", "backtest", str(demo[0])]
    done = subprocess.run(
        words, env={**os.environ, "JAX_PLATFORMS": "abacus"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: JAX finds no device for JAX_PLATFORMS='abacus' (Unable to initialize backend")
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture) -> None:
    assert main(["inspect", "nothing.csv", "--debug"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "FileNotFoundError: there is no file nothing.csv"


def test_a_mistake_is_json_too_where_that_is_asked_for(capsys: pytest.CaptureFixture) -> None:
    assert main(["inspect", "nothing.csv", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"error": "there is no file nothing.csv", "exit_code": 2}
    assert captured.err == "error: there is no file nothing.csv\n"


@pytest.mark.parametrize("words", [["--help"], ["train", "ppo", "--help"], ["inspect", "--help"]])
def test_who_stops_reading_sees_no_error(words: list[str]) -> None:
    command = [sys.executable, "-m", "jaxrl_trade", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything is written
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["train", "ppo", "--upates", "3"], "did you mean --updates?"),
        (["trian", "ppo"], "did you mean train ppo?"),
        (["bakctest", "runs/x"], "did you mean backtest?"),
        (["inspect", "prizes.csv"], "did you mean prices.csv?"),
        (["inspect", "many.csv", "--symbol", "appl"], "did you mean AAPL?"),
        (["backtest", "runs/dmeo"], "did you mean runs/demo?"),
        (["train", "ppo", "--reward", "my.py:rewards"], "did you mean reward?"),
        (["train", "ppo", "--reward", "may.py:reward"], "did you mean my.py?"),
    ],
)
def test_wrong_names_are_answered_with_the_nearest_right_one(
    words: list[str], meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prices.csv").write_text("")
    Path("many.csv").write_text(
        "time,symbol,open,high,low,close\n2024-01-01,AAPL,1,1,1,1\n2024-01-02,AAPL,1,1,1,1\n2024-01-01,MSFT,1,1,1,1\n2024-01-02,MSFT,1,1,1,1\n"
    )
    Path("runs/demo").mkdir(parents=True)
    Path("my.py").write_text("def reward(): ...\n")
    assert meant.replace("my.py?", f"{tmp_path / 'my.py'}?") in complaint(capsys, *words)


def test_help_teaches_by_examples_that_are_understood(capsys: pytest.CaptureFixture) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for text in ("for example", "jaxrl-trade inspect btc.csv", "exit codes", "130  ended by Ctrl-C", "--debug"):
        assert text in out
    assert set(EXAMPLES) == set(COMMANDS)
    for words, examples in EXAMPLES.items():
        for example, _ in examples:
            given = shlex.split(example.split(" > ")[0])
            assert tuple(given[: len(words)]) == words
            module, name = COMMANDS[words][0].split(":")
            parse(getattr(importlib.import_module(module), name), given[len(words) :], "jaxrl-trade")
    assert main(["backtest", "--help"]) == 0
    out = capsys.readouterr().out
    assert "jaxrl-trade backtest runs/btc --json" in out
    assert "--sampled" in out


def test_inspect_says_what_is_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write_csv(tmp_path / "bars.csv", 400)
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "400 read, 400 kept" in out
    assert "bar size       1 hour\n" in out
    assert main(["inspect", str(path), "--json", "--lookahead"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows_kept"], found["bar_size_seconds"], found["sha256"]) == (400, 3600, jt.load_bars(path).sha256)
    assert found["lookahead"]["ok"]


def test_inspect_fails_where_a_feature_looks_ahead(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jaxrl_trade.bars import check_lookahead

    path = write_csv(tmp_path / "bars.csv", 400)
    cheat = lambda bars, rows: check_lookahead(bars, rows, lambda b: b.frame["close"].shift(-1).fillna(0.0))  # noqa: E731
    monkeypatch.setattr("jaxrl_trade.bars.check_lookahead", cheat)
    assert main(["inspect", str(path), "--lookahead"]) == 1
    assert "look-ahead in" in capsys.readouterr().out


@pytest.mark.parametrize("agent", ["PPO", "DQN"])
@pytest.mark.parametrize("preset", ["net", "plan"])
def test_the_flags_default_to_the_preset(preset: str, agent: str) -> None:
    from jaxrl_trade.cli import parse, train

    kind = getattr(train, f"Train{agent}")
    words = [] if preset == "net" else [f"--preset={preset}"]
    config = parse(kind, words, "x").config()
    assert config == kind.short_run(preset)
    usual = {
        "net": {"PPO": jt.PPOConfig.net, "DQN": jt.DQNConfig.net},
        "plan": {"PPO": jt.PPOConfig, "DQN": jt.DQNConfig},
    }
    assert config.env == usual[preset][agent]().env
    assert config.hypers.reward == usual[preset][agent]().hypers.reward


def test_flags_of_dqn_reach_its_config() -> None:
    from jaxrl_trade.cli import parse
    from jaxrl_trade.cli.train import TrainDQN

    words = ["--double", "--n-step", "5", "--tau", "0.1", "--leverage", "2", "--risk-weight", "0.5"]
    config = parse(TrainDQN, words, "x").config()
    assert (config.double, config.n_step, config.hypers.tau) == (True, 5, 0.1)
    assert (config.env.leverage, config.hypers.reward.risk_weight) == (2.0, 0.5)


def test_help_lists_the_commands_and_the_flags(capsys: pytest.CaptureFixture) -> None:
    assert main([]) == main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(" ".join(words) in out for words in COMMANDS)
    assert "train ppo --resume runs/btc" in out
    assert main(["train", "ppo", "--help"]) == 0
    out = capsys.readouterr().out
    for flag in ("--data", "--preset", "--symbol", "--tz", "--day-first", "--updates", "--seed", "--n-episodes"):
        assert flag in out
    for flag in ("--timesteps-per-episode", "--compute-dtype", "--out", "--learning-rate"):
        assert flag in out
    assert "│ --resume RUN " in out or "  --resume RUN " in out  # among the flags, not only in prose
    assert main(["train", "dqn", "--resume", "run", "--help"]) == 0
    assert "the schedules keep the length that the run began with" in " ".join(capsys.readouterr().out.split())


def test_python_dash_m_is_the_same_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl_trade", "inspect", str(tmp_path / "nothing.csv")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: there is no file {tmp_path / 'nothing.csv'}\n"


@pytest.mark.parametrize("delay", [0.05, 0.4])  # seconds, of some three until the run begins
def test_an_interrupt_amid_the_imports_ends_the_command_without_a_traceback(delay: float, tmp_path: Path) -> None:
    # a shell starts what it puts into the background with interrupts ignored; these tests may run there
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = heard + "import jaxrl_trade.cli as cli; print('ready', flush=True); cli.main()"
    words = [sys.executable, "-c", code, "train", "ppo", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (-signal.SIGINT, "")  # 130 to a shell


def test_the_fewest_bars_that_can_be_split_are_named_and_are_enough() -> None:
    from jaxrl_trade.cli.prepared import prepare

    bars = jt.sample_bars()
    with pytest.raises(ValueError, match=r"has 2,466 bars; .* need at least 2,467"):
        prepare([bars.head(2_466)])
    prepared = prepare([bars.head(2_467)])
    (only,) = prepared.instruments
    assert all(kept is not None and kept.end - kept.first >= 2 for kept in only.ranges.values())
    lines = prepared.lines()[-4:]
    assert [line.split()[0] for line in lines] == ["validation", "warning:", "test", "warning:"]
    assert lines[1].endswith(" are few to choose weights by; bring more, or take jaxrl-trade walk-forward")
    kept = only.ranges["test"]
    assert kept is not None
    days = len(set(bars.index[kept.first : kept.end].date))
    assert f"warning: {kept.end - kept.first} bars on {days} days are few to judge by" in lines[3]


def test_training_prints_its_result_as_json(
    demo: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(demo[0], folder)
    assert main(["train", "ppo", "--resume", str(folder), "--updates", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["updates"], found["stopped_by"]) == (str(folder), 3, None)
    assert found["report"] == str(folder / "report.html")
    assert found["test"] == json.loads((folder / "test" / "metrics.json").read_text())
