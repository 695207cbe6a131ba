"""`jaxrl-trade sweep`: from a small file to the chosen setting's test, that test bars decide nothing, and one line for mistakes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import jaxrl_trade as jt
from jaxrl_trade.backtesting.formats import setting_rows
from jaxrl_trade.cli import main, parse
from jaxrl_trade.cli.sweep import SweepDQN, SweepPPO
from jaxrl_trade.cli.train import TrainPPO
from jaxrl_trade.cli.trials import count_trials
from jaxrl_trade.train.result import StoppedError
from jaxrl_trade.train.run import read_facts
from jaxrl_trade.train.sweep_folder import read_plan
from tests.test_cli import SMALL, complaint, write_csv
from tests.train.sweeps import remembered_programs

GRID = ["--learning-rate", "1e-4", "3e-2", "--seeds", "2", "--seed", "5"]


class Swept(NamedTuple):
    file: Path
    folder: Path
    printed: str


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[list[tuple[int, int]]]:
    with remembered_programs() as calls:
        yield calls


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Two learning rates x two seeds."""
    file = write_csv(tmp_path_factory.mktemp("swept") / "mine.csv", 2600)
    folder = file.parent / "sweep"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["sweep", "ppo", str(file), *SMALL, *GRID, "--out", str(folder)]) == 0
    return Swept(file, folder, printed.getvalue())


def result_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "sweep.json").read_text()))


def test_it_ends_with_the_verdict_the_choice_the_tables_and_the_page(swept: Swept) -> None:
    found, lines = result_of(swept.folder), swept.printed.splitlines()
    assert found["verdict"] in lines
    assert found["choice"] in lines
    assert lines[-1] == str(swept.folder / "report.html")
    assert "Chosen on validation bars alone, of 2 settings: learning_rate " in swept.printed
    for text in ("That is the median of 2 seeds", "return on validation", "standard deviation", "costs × 5"):
        assert text in swept.printed
    assert "<html" in (swept.folder / "report.html").read_text()[:200]


def test_the_page_is_of_a_sweep_with_its_settings_and_the_command(swept: Swept) -> None:
    page, found = (swept.folder / "report.html").read_text(), result_of(swept.folder)
    assert "<title>Sweep of mine</title>" in page
    assert "<p>Sweep, the median of 2 seeds, 4 trials, " in page
    assert f"<pre>jaxrl-trade sweep ppo {swept.file} " in page
    body = page[page.index("<h2>Settings and seeds</h2>") :]
    (chosen,) = (setting for setting in found["settings"] if setting["chosen"])
    figure = f"{chosen['total_return']:.2%} ± {chosen['total_return_std']:.2%}"
    assert re.search(
        rf"<tr><th>{chosen['setting']}</th><td>{chosen['learning_rate']:g}</td><td>{figure}<.*?>chosen<", body
    )


def test_a_folder_of_several_runs_names_the_first(swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    line = complaint(capsys, "backtest", swept.folder)
    assert f"is no run folder: it has no run.json; it holds several runs, such as {swept.folder}/chosen/seed-0" in line
    (tmp_path / "walk" / "seed-0" / "fold-1").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"such as .*walk/seed-0/fold-1$"):
        jt.load_policy(tmp_path / "walk")


def test_settings_are_means_and_deviations_of_their_runs_and_the_best_mean_is_chosen(swept: Swept) -> None:
    found = result_of(swept.folder)
    runs, settings = found["runs"], found["settings"]
    assert [(run["setting"], run["seed"]) for run in runs] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [setting["learning_rate"] for setting in settings] == [1e-4, 3e-2]
    for setting in settings:
        own = [run for run in runs if run["setting"] == setting["setting"]]
        for name in ("total_return", "sharpe"):
            values = np.array([run[name] for run in own])
            assert setting[name] == pytest.approx(values.mean())
            assert setting[f"{name}_std"] == pytest.approx(abs(values[0] - values[1]) / np.sqrt(2))
    returns = [setting["total_return"] for setting in settings]
    assert [setting["chosen"] for setting in settings] == [value == max(returns) for value in returns]
    assert json.loads((swept.folder / "median" / "metrics.json").read_text()) == found["median_seed"]


def test_the_chosen_seeds_alone_are_tested_and_every_run_counts_as_a_trial(
    swept: Swept, capsys: pytest.CaptureFixture
) -> None:
    found = result_of(swept.folder)
    totals = []
    for seed in range(2):
        assert main(["backtest", str(swept.folder / "chosen" / f"seed-{seed}"), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["deflated_sharpe"]["trials"] == found["trials"] == 4
        totals.append(report["metrics"]["agent"]["total_return"])
    assert [seed["total_return"] for seed in found["seeds"]] == pytest.approx(totals)
    assert found["mean"]["total_return"] == pytest.approx(np.mean(totals))
    assert found["median_seed"]["metrics"]["agent"]["total_return"] == pytest.approx(min(totals))  # the lower of two
    start = read_plan(swept.folder)["data"]["splits"]["test"]["start_time"]
    assert found["median_seed"]["start"][:16].replace("T", " ") == start


def test_whoever_is_tested_beside_a_sweep_counts_its_runs(swept: Swept, tmp_path: Path) -> None:
    sha256 = read_plan(swept.folder)["data"]["sha256"]
    shutil.copytree(swept.folder, tmp_path / "sweep")
    assert count_trials(tmp_path / "next", sha256) == 1 + 4
    assert count_trials(tmp_path / "next", sha256, own=6) == 6 + 4
    assert count_trials(tmp_path / "sweep", sha256, own=4) == 4
    assert count_trials(tmp_path / "next", "other bars") == 1
    (tmp_path / "sweep" / "sweep.json").write_text("{")
    assert count_trials(tmp_path / "next", sha256) == 1


def test_a_second_sweep_counts_the_first(swept: Swept, tmp_path: Path) -> None:
    shutil.copytree(swept.folder, tmp_path / "first")
    assert main(["sweep", "ppo", str(swept.file), *SMALL, *GRID, "--out", str(tmp_path / "second")]) == 0
    assert result_of(tmp_path / "second")["trials"] == 8
    assert read_facts(tmp_path / "second" / "chosen" / "seed-0")["trials"] == 8


def test_a_seed_is_that_of_the_training_command(swept: Swept) -> None:
    """`--seed 5 --seeds 2` are the runs of `train --seed 5` and `--seed 6`."""
    import jax

    assert read_plan(swept.folder)["keys"] == [jax.random.key_data(jax.random.key(seed)).tolist() for seed in (5, 6)]


def test_other_test_bars_change_neither_the_choice_nor_the_weights(swept: Swept, tmp_path: Path) -> None:
    start = read_plan(swept.folder)["data"]["splits"]["test"]["first"]
    table = pd.read_csv(swept.file)
    table.loc[start:, ["open", "high", "low", "close"]] *= np.linspace(1.0, 1.5, len(table) - start)[:, None]
    table.to_csv(tmp_path / "mine.csv", index=False)
    other = tmp_path / "sweep"
    assert main(["sweep", "ppo", str(tmp_path / "mine.csv"), *SMALL, *GRID, "--out", str(other)]) == 0
    before, after = result_of(swept.folder), result_of(other)
    assert after["settings"] == before["settings"]
    assert after["runs"] == before["runs"]
    hold = [found["median_seed"]["metrics"]["buy and hold"]["total_return"] for found in (before, after)]
    assert hold[1] > hold[0] + 0.3
    for seed in ("seed-0", "seed-1"):
        mine, theirs = (folder / "chosen" / seed / "weights" / "actor.safetensors" for folder in (swept.folder, other))
        assert mine.read_bytes() == theirs.read_bytes()


def test_resumed_when_complete_it_says_the_same_also_of_a_file_that_moved(
    swept: Swept, programs: list[tuple[int, int]], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = shutil.copytree(swept.folder, tmp_path / "sweep")
    before = result_of(folder)
    programs.clear()
    moved = shutil.copy(swept.file, tmp_path / "mine.csv")
    shutil.rmtree(folder / "chosen")  # as where it was stopped before
    assert main(["sweep", "ppo", str(moved), "--resume", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in before} == before == result_of(folder)
    assert (found["run"], found["report"], found["symbol"]) == (str(folder), str(folder / "report.html"), "mine")
    assert (found["sha256"], found["start"]) == (read_plan(folder)["data"]["sha256"], before["median_seed"]["start"])
    assert not programs
    assert main(["backtest", str(folder / "chosen" / "seed-1")]) == 0


def test_a_sweep_of_another_agent_is_refused(swept: Swept, capsys: pytest.CaptureFixture) -> None:
    message = f"is of PPO, not of DQN; go on with: jaxrl-trade sweep ppo --resume {swept.folder}"
    assert message in complaint(capsys, "sweep", "dqn", "--resume", swept.folder)
    run = swept.folder / "chosen" / "seed-0"
    message = f"is of PPO, not of DQN; go on with: jaxrl-trade train ppo --resume {run}"
    assert message in complaint(capsys, "train", "dqn", "--resume", run)


def test_a_changed_file_or_grid_is_refused(swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lines = swept.file.read_text().splitlines()
    (tmp_path / "mine.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert "it has changed since" in complaint(capsys, "sweep", "ppo", tmp_path / "mine.csv", "--resume", swept.folder)
    grid = ["--learning-rate", "1e-4", "1e-3", "--seeds", "2", "--seed", "5"]
    assert main(["sweep", "ppo", str(swept.file), *SMALL, *grid, "--out", str(swept.folder)]) == 2
    assert "holds a sweep of other settings (grid.learning_rate: " in capsys.readouterr().err.splitlines()[-1]
    words = [str(tmp_path / "mine.csv"), *SMALL, *GRID, "--out", str(swept.folder)]
    assert main(["sweep", "ppo", *words]) == 2
    assert "holds a sweep of other bars" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", 130), ("SIGTERM", 0)])
def test_a_stopped_sweep_says_how_to_go_on(
    swept: Swept, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, signal: str, code: int
) -> None:
    def stopped(*arguments: Any, **options: Any) -> Any:
        raise StoppedError(signal, options["folder"])

    monkeypatch.setattr("jaxrl_trade.cli.sweep.sweep", stopped)
    assert main(["sweep", "ppo", "--resume", str(swept.folder)]) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"go on with: jaxrl-trade sweep ppo --resume {swept.folder}"


def test_flags_have_the_defaults_of_training_and_those_with_several_values_are_the_grid() -> None:
    command = parse(SweepPPO, ["--gamma", "0.9", "0.99", "--risk-weight", "0", "1", "--clip", "0.1"], "x")
    assert command.grid() == {"gamma": (0.9, 0.99), "risk_weight": (0.0, 1.0)}
    assert command.config() == parse(TrainPPO, ["--gamma", "0.9", "--risk-weight", "0", "--clip", "0.1"], "x").config()
    dqn = parse(SweepDQN, ["--tau", "0.1", "0.2", "--huber-delta", "2", "--preset", "plan"], "x")
    assert dqn.grid() == {"tau": (0.1, 0.2)}
    assert dqn.config() == jt.DQNConfig(updates=200, hypers=jt.DQNHypers(tau=0.1, huber_delta=2.0))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning-rate", "1e-4"], "the grid holds a single setting"),
        (["--lerning-rate", "1", "2"], "did you mean --learning-rate?"),
        (["--n-episodes", "4", "8", "--gamma", "0.9", "0.8"], "n_episodes cannot be swept"),
        (["--gamma", "0.9", "2"], "hypers.gamma = 2.0 must be a number in [0, 1]"),
        (["--gamma"], "--gamma is given no value"),
        (["--gamma", "0.9", "0.8", "--seeds", "0"], "seeds = 0 must be at least 1"),
        (["--gamma", "0.9", "0.8", "--seeds", "4294967297"], "2 settings x 4294967297 seeds are 8,589,934,594 runs"),
        (
            ["--gamma", "0.9", "0.8", "--seed", "4294967295", "--seeds", "2"],
            "seed = 4294967295 and the 1 after it must",
        ),
        (["--gamma", "0.9", "0.8", "--seed", "-1"], "seed = -1 must be a whole number of at least 0"),
        (["--gamma", "0.9", "0.8", "--all-symbols"], "Unrecognized options: --all-symbols"),
        (["--resume", "nowhere"], "nowhere is no run folder: it has no plan.json"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_read(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in complaint(capsys, "sweep", "ppo", *words)
    assert not list(tmp_path.iterdir())


def test_what_cannot_begin_leaves_no_folder(
    swept: Swept, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "ppo", str(swept.file), *SMALL, *GRID, "--at-once", "0"]) == 2
    assert "at_once = 0 must be a whole number" in capsys.readouterr().err.splitlines()[-1]
    assert not list((tmp_path / "runs").iterdir())


def test_help_of_the_word_alone_lists_the_commands(capsys: pytest.CaptureFixture) -> None:
    assert main(["sweep", "--help"]) == 0
    assert "sweep ppo" in capsys.readouterr().out
    assert "did you mean sweep ppo or sweep dqn?" in complaint(capsys, "sweep")


def test_the_table_is_sorted_and_says_what_was_chosen_and_what_diverged() -> None:
    columns = ["gamma", "total_return", "total_return_std", "sharpe", "sharpe_std", "trades", "diverged", "chosen"]
    nan = float("nan")
    settings = pd.DataFrame(
        [
            [0.9, 0.01, 0.002, 1.0, 0.5, 10.0, 0, False],
            [0.95, nan, nan, nan, nan, nan, 2, False],
            [0.99, 0.02, nan, 2.0, nan, 12.0, 0, True],
        ],
        columns=columns,
        index=[1, 2, 3],
    )
    heads, rows = setting_rows(settings, ["gamma"])
    assert heads == ["setting", "gamma", "return on validation", "Sharpe", "trades", ""]
    assert rows == [
        ["3", "0.99", "2.00%", "2.00", "12", "chosen"],
        ["1", "0.9", "1.00% ± 0.20%", "1.00 ± 0.50", "10", ""],
        ["2", "0.95", "–", "–", "–", "2 diverged"],
    ]
    assert len(setting_rows(settings, ["gamma"], most=2)[1]) == 2
