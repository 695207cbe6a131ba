"""Walk-forward from a small file: where the folds lie, that no future reaches them, that complete folds stay, and the command."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.backtesting import WalkForwardReport
from jaxrl_trade.backtesting.folds import plan_folds
from jaxrl_trade.bars import Bars
from jaxrl_trade.cli import main
from jaxrl_trade.cli.trials import count_trials
from jaxrl_trade.train import placement
from jaxrl_trade.train import walk_forward as module
from jaxrl_trade.train.result import StoppedError
from jaxrl_trade.train.run import load_config, read_facts
from tests.test_cli import SMALL, complaint, write_csv

FOLDS = {"folds": 2, "out_of_sample": 0.2}
FLAGS = [*SMALL, "--folds", "2", "--out-of-sample", "0.2", "--seeds", "2"]
KEY = jax.random.key(0)


class Walk(NamedTuple):
    file: Path
    folder: Path
    bars: Bars
    config: jt.PPOConfig
    report: WalkForwardReport
    programs: int  # compiled for the training of all folds and seeds


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """Two seeds of two folds by the command, and the report that the function makes of the same folder."""
    file = write_csv(tmp_path_factory.mktemp("walk") / "mine.csv", 1300)
    folder = file.parent / "walk"
    before = placement.run_chunk._cache_size()
    assert main(["walk-forward", str(file), *FLAGS, "--out", str(folder)]) == 0
    programs = placement.run_chunk._cache_size() - before
    bars, config = jt.load_bars(file), load_config(folder / "seed-0" / "fold-1")
    report = jt.walk_forward(bars, config, KEY, **FOLDS, seeds=2, folder=folder, quiet=True)
    return Walk(file, folder, bars, config, report, programs)


def plan() -> Any:
    return plan_folds(1300, 320, 2, 0.2, 320)


def test_folds_are_of_one_length_with_gaps_and_their_tests_follow_one_another() -> None:
    folds = plan_folds(n_bars=5000, warmup=320, folds=4, out_of_sample=0.5, embargo=300)
    for fold in folds:
        assert fold.validation.first - fold.train.end == fold.test.first - fold.validation.end == 300
        assert fold.test.end - fold.test.first == 4680 // 2 // 4
    lengths = {(f.train.end - f.train.first, f.validation.end - f.validation.first) for f in folds}
    assert len(lengths) == 1
    train, validation = lengths.pop()
    assert validation / train == pytest.approx(0.15 / 0.7, abs=0.01)
    assert all(a.test.end == b.test.first for a, b in itertools.pairwise(folds))
    assert folds[0].train.first == 320
    assert folds[-1].test.end == 4999  # the last bar marks the last decision


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folds": 0}, "folds = 0 must be a whole number"),
        ({"out_of_sample": 1.0}, "out_of_sample = 1.0 must be a fraction"),
        ({"embargo": -1}, "embargo = -1 must be 0 bars or more"),
        ({"n_bars": 1000}, "1,000 bars are too few for 4 folds"),
        ({"folds": 2000}, "too few for 2000 folds"),
    ],
)
def test_folds_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_folds(**{"n_bars": 5000, "warmup": 320, "folds": 4, "out_of_sample": 0.5, "embargo": 320, **arguments})


def test_one_compiled_program_trains_every_fold_and_seed(walk: Walk) -> None:
    assert walk.programs == 1


def test_the_test_stretches_are_one_account_and_one_backtest_of_each_policy(walk: Walk) -> None:
    folder, report = walk.folder, walk.report
    folds = plan()
    first, middle, end = folds[0].test.first, folds[1].test.first, folds[1].test.end
    stitched = report.reports[1]
    assert stitched.equity.index[0] == walk.bars.index[first]
    assert stitched.equity.index[-1] == walk.bars.index[end]
    alone = jt.backtest(
        jt.load_policy(folder / "seed-1" / "fold-1"), walk.bars, walk.config, first, middle + 1, costs=()
    )
    np.testing.assert_allclose(stitched.equity.iloc[: middle - first + 1], alone.equity, rtol=1e-9)
    hold = report.equity["buy_and_hold"]
    assert (1 + report.folds["buy_and_hold"]).prod() == pytest.approx(hold.iloc[-1] / hold.iloc[0])


def test_the_tables_are_sums_over_folds_and_seeds(walk: Walk) -> None:
    report = walk.report
    curves = report.equity[["seed 0", "seed 1"]].to_numpy()
    half = (len(curves) - 1) // 2
    first = curves[half] / curves[0] - 1
    assert report.folds.loc[1, "agent"] == pytest.approx(first.mean())
    assert report.folds.loc[1, ["low", "high"]].tolist() == pytest.approx(sorted(first))
    assert report.folds["trades"].sum() == pytest.approx(np.mean([len(r.trades) for r in report.reports]))
    np.testing.assert_allclose(report.seeds["total_return"], curves[-1] / curves[0] - 1)
    assert report.median.equity.iloc[-1] == curves[-1].min()  # the lower one of two
    assert report.median.deflated.trials == 2


def test_its_seeds_are_trials_for_itself_its_folds_and_whoever_is_tested_beside_it(walk: Walk) -> None:
    assert read_facts(walk.folder / "seed-0" / "fold-1")["trials"] == 2
    assert count_trials(walk.folder.parent / "next", walk.bars.sha256) == 1 + 2
    assert count_trials(walk.folder, walk.bars.sha256, own=2) == 2
    assert count_trials(walk.folder.parent / "next", "other bars") == 1
    with pytest.raises(ValueError, match="trials = 1 must be a whole number from 2, the seeds of this one"):
        jt.walk_forward(walk.bars, walk.config, KEY, **FOLDS, seeds=2, trials=1)


def test_the_words_name_the_median_the_spread_and_the_folds(walk: Walk) -> None:
    report = walk.report
    assert report.verdict.startswith(report.median.verdict)
    assert "That is the median of 2 seeds: " in report.verdict
    text = report.summary()
    for words in ("seeds ahead", "standard deviation", "costs × 5", "buy and hold"):
        assert words in text


def test_complete_folds_are_kept_and_a_missing_one_is_trained_again(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = walk.folder, walk.report
    trained = []

    def watched(*arguments: Any, **options: Any) -> Any:
        trained.append(options["folder"])
        return train_agent(*arguments, **options)

    train_agent = module.train_agent
    monkeypatch.setattr(module, "train_agent", watched)
    missing = folder / "seed-0" / "fold-2"
    for path in sorted(missing.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = jt.walk_forward(walk.bars, walk.config, KEY, **FOLDS, seeds=2, folder=folder, quiet=True)
    assert trained == [missing]
    np.testing.assert_array_equal(again.equity, report.equity)


def test_no_weights_have_seen_anything_of_their_test_bars(walk: Walk, tmp_path: Path) -> None:
    """Other prices from the second fold's test bars on leave the weights of both folds as they are."""
    start, frame = plan()[1].test.first, walk.bars.frame.copy()
    frame.iloc[start:, :4] *= np.linspace(1.0, 2.0, len(frame) - start)[:, None]
    other = Bars.from_frame(frame, symbol="mine")
    changed = jt.walk_forward(other, walk.config, KEY, **FOLDS, folder=tmp_path, quiet=True)
    for fold in ("fold-1", "fold-2"):
        mine, theirs = (place / "seed-0" / fold / "weights" / "actor.safetensors" for place in (tmp_path, walk.folder))
        assert mine.read_bytes() == theirs.read_bytes()
    half = (len(walk.report.equity) - 1) // 2
    np.testing.assert_allclose(
        changed.equity["seed 0"].iloc[:half], walk.report.equity["seed 0"].iloc[:half], rtol=1e-9
    )
    assert changed.equity["buy_and_hold"].iloc[-1] > 1.5 * walk.report.equity["buy_and_hold"].iloc[-1]


def test_files_hold_the_tables(walk: Walk, tmp_path: Path) -> None:
    report = walk.report
    saved = json.loads((report.save(tmp_path) / "walk_forward.json").read_text())
    assert saved == json.loads(json.dumps(report.as_dict()))
    assert [fold["ahead"] for fold in saved["folds"]] == report.folds["ahead"].tolist()
    assert saved["mean"]["total_return"] == pytest.approx(report.seeds["total_return"].mean())
    assert {path.name for path in tmp_path.iterdir()} == {
        "walk_forward.json",
        "equity.parquet",
        "folds.parquet",
        "median",
    }


def test_a_file_that_cannot_be_written_leaves_the_one_before(
    walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in walk.report.save(tmp_path).iterdir() if path.is_file()}

    def half(table: Any, path: Path) -> None:
        Path(path).write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(walk.report.folds), "to_parquet", half)
    monkeypatch.setattr(type(walk.report.median), "save", lambda *arguments: None)
    with pytest.raises(OSError, match="No space left on device"):
        walk.report.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_something_else_than_bars_and_no_seed_are_refused(walk: Walk) -> None:
    with pytest.raises(ValueError, match="bars is a list; give Bars"):
        jt.walk_forward([walk.bars], walk.config, KEY)
    with pytest.raises(ValueError, match="seeds = 0 must be a whole number"):
        jt.walk_forward(walk.bars, walk.config, KEY, seeds=0)


def test_the_folder_holds_the_report_and_a_run_for_each_fold(walk: Walk) -> None:
    found = {path.name for path in walk.folder.iterdir()}
    assert found == {
        "seed-0",
        "seed-1",
        "walk.json",
        "walk_forward.json",
        "equity.parquet",
        "folds.parquet",
        "median",
        "report.html",
    }
    assert "Walk-forward, " in (walk.folder / "report.html").read_text()
    run = walk.folder / "seed-1" / "fold-2"
    assert load_config(run).env.episode_length == 64
    facts = read_facts(run)
    assert facts["command"].startswith(f"jaxrl-trade walk-forward {walk.file}")
    saved = json.loads((walk.folder / "walk_forward.json").read_text())
    assert len(saved["folds"]) == 2
    assert saved["folds"][1]["test_start"][:16].replace("T", " ") == facts["data"]["splits"]["test"]["start_time"]


def test_begun_again_it_trains_nothing_and_says_the_same(
    walk: Walk, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "train_agent", None)
    before = json.loads((walk.folder / "walk_forward.json").read_text())
    assert main(["walk-forward", str(walk.file), *FLAGS, "--out", str(walk.folder), "--json"]) == 0
    captured = capsys.readouterr()
    found, said = json.loads(captured.out), [line for line in captured.err.splitlines() if line.startswith("seed ")]
    assert [line.split(":")[0] for line in said] == [
        f"seed {seed} ({seed + 1} of 2), fold {fold} of 2" for seed in (0, 1) for fold in (1, 2)
    ]
    assert all(line.endswith(", kept") for line in said)
    assert {name: found[name] for name in before} == before
    assert (found["run"], found["report"]) == (str(walk.folder), str(walk.folder / "report.html"))
    assert (found["symbol"], found["sha256"]) == ("mine", walk.bars.sha256)
    assert (found["start"], found["end"]) == (before["median_seed"]["start"], before["median_seed"]["end"])


@pytest.mark.parametrize("stretch", ["train", "validation", "test"])
def test_a_file_with_one_other_close_and_other_folds_are_refused(walk: Walk, stretch: str) -> None:
    frame = walk.bars.frame.copy()
    frame.iloc[getattr(plan()[1], stretch).end - 1, 3] *= 1.00001
    other = Bars.from_frame(frame, symbol="mine")
    with pytest.raises(ValueError, match=r"walk holds a walk-forward of other bars: the file has changed since; go on"):
        jt.walk_forward(other, walk.config, KEY, **FOLDS, seeds=2, folder=walk.folder, quiet=True)
    with pytest.raises(ValueError, match="holds a walk-forward of other folds"):
        jt.walk_forward(walk.bars, walk.config, KEY, folds=3, out_of_sample=0.2, folder=walk.folder, quiet=True)


def test_a_folder_of_something_else_and_a_file_are_refused(
    walk: Walk, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "plan.json").write_text("{}")
    for out, message in ((tmp_path, "holds something else than a walk-forward (plan.json)"), (walk.file, "is a file")):
        assert main(["walk-forward", str(walk.file), *FLAGS, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_fold_is_backtested_on_its_own_test_bars(walk: Walk, capsys: pytest.CaptureFixture) -> None:
    run = walk.folder / "seed-0" / "fold-1"
    assert main(["backtest", str(run), "--json"]) == 0
    start = json.loads(capsys.readouterr().out)["start"]
    assert start[:16].replace("T", " ") == read_facts(run)["data"]["splits"]["test"]["start_time"]


def test_a_fold_is_not_resumed_by_itself(walk: Walk, capsys: pytest.CaptureFixture) -> None:
    message = complaint(capsys, "train", "ppo", "--resume", walk.folder / "seed-0" / "fold-1")
    assert "is fold 1 of a walk-forward, which goes on as a whole" in message
    assert message.endswith(f") with --out {walk.folder}")


def test_a_dqn_has_its_own_flags(capsys: pytest.CaptureFixture) -> None:
    assert main(["walk-forward", "--agent", "dqn", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--replay-capacity" in text
    assert "--gae-lambda" not in text
    assert main(["walk-forward", "--help"]) == 0
    assert "--gae-lambda" in capsys.readouterr().out


def test_a_fold_that_is_stopped_ends_the_walk(walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = SimpleNamespace(stopped_by="SIGTERM")
    monkeypatch.setattr(module, "train_agent", lambda *arguments, **options: stopped)
    with pytest.raises(StoppedError, match=rf"stopped by SIGTERM; call it again with folder='{tmp_path}' to go on"):
        jt.walk_forward(walk.bars, walk.config, KEY, **FOLDS, folder=tmp_path, quiet=True)
    with pytest.raises(StoppedError, match="nothing was saved: no folder was given"):
        jt.walk_forward(walk.bars, walk.config, KEY, **FOLDS, quiet=True)


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", 130), ("SIGTERM", 0)])
def test_a_stopped_walk_says_how_to_go_on(
    walk: Walk, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, signal: str, code: int
) -> None:
    def stopped(*arguments: Any, **options: Any) -> Any:
        raise StoppedError(signal, tmp_path)

    monkeypatch.setattr(module, "_policy", stopped)
    monkeypatch.chdir(tmp_path)
    assert main(["walk-forward", str(walk.file), *FLAGS]) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        f"go on with: jaxrl-trade walk-forward {walk.file} {' '.join(FLAGS)} --out runs/walk-ppo-mine-net"
    )


def test_mistakes_are_one_line(
    walk: Walk, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ["--out", tmp_path / "x"]
    assert "folds = 0 must be" in complaint(capsys, "walk-forward", walk.file, "--folds", "0", *out)
    assert "too few for 4 folds" in complaint(capsys, "walk-forward", walk.file, "--out-of-sample", "0.9", *out)
    assert "trials = 0 must be" in complaint(capsys, "walk-forward", walk.file, "--trials", "0", *out)
    for command in (["walk-forward"], ["train", "ppo"]):
        message = complaint(capsys, *command, "--trials", "2000000000", *out)
        assert "trials = 2000000000 must be at most 1,000,000,000" in message
    assert "Unrecognized options: --all-symbols" in complaint(capsys, "walk-forward", "--all-symbols", *out)
    monkeypatch.chdir(tmp_path)
    assert "folds = 0 must be" in complaint(capsys, "walk-forward", walk.file, "--folds", "0")
    assert not list((tmp_path / "runs").iterdir())
    assert main(["walk-forward", str(walk.file), *FLAGS, "--gamma", "0.5", "--out", str(walk.folder)]) == 2
    assert "was trained with other settings (hypers.gamma" in capsys.readouterr().err.splitlines()[-1]
