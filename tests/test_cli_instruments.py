"""Several instruments on the command line: a folder, several files, or one file of many symbols."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import jaxrl_trade as jt
from jaxrl_trade.cli import main
from jaxrl_trade.train.run import read_facts

SMALL = [
    *("--n-episodes", "4", "--timesteps-per-episode", "16", "--episode-length", "64", "--epochs", "1"),
    *("--minibatches", "2", "--actor-hidden", "8", "--critic-hidden", "8", "--updates", "2"),
]


def bars(seed: int, n: int, start: str) -> pd.DataFrame:
    """Hourly bars of a random walk."""
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.002, n)))
    open_ = np.append(close[:1], close[:-1])
    index = pd.date_range(start, periods=n, freq="h", name="time", tz="UTC")
    table = {"open": open_, "high": np.maximum(open_, close), "low": np.minimum(open_, close), "close": close}
    return pd.DataFrame({**table, "volume": 1.0}, index=index)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A folder of three instruments, one of which ends before the test bars; a run on them, and what it printed."""
    root = tmp_path_factory.mktemp("several")
    (root / "prices").mkdir()
    bars(0, 3000, "2024-01-01").to_csv(root / "prices" / "LONG.csv")
    bars(1, 2500, "2024-01-20").to_csv(root / "prices" / "LATE.csv")
    bars(2, 700, "2024-01-01").to_csv(root / "prices" / "GONE.csv")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["train", "ppo", *SMALL, "--data", str(root / "prices"), "--out", str(root / "run")]) == 0
    return root / "prices", root / "run", printed.getvalue()


def test_all_instruments_of_a_folder_are_learnt_and_split_at_the_same_moments(places: tuple[Path, Path, str]) -> None:
    prices, run, printed = places
    data = read_facts(run)["data"]
    assert data["paths"] == [str(prices)]
    assert list(data["instruments"]) == ["GONE", "LATE", "LONG"]
    assert read_facts(run)["market"]["instruments"] == ["GONE", "LATE", "LONG"]
    splits = {symbol: record["splits"] for symbol, record in data["instruments"].items()}
    assert splits["GONE"]["test"] is None
    # 70 % of the distinct times with features; LATE's own 320 bars after the cut are left out, as LONG's are
    assert splits["LATE"]["test"]["start_time"] == splits["LONG"]["test"]["start_time"]
    shift = (pd.Timestamp("2024-01-20") - pd.Timestamp("2024-01-01")) // pd.Timedelta("1h")
    assert splits["LONG"]["test"]["first"] == splits["LATE"]["test"]["first"] + shift
    for symbol in ("LATE", "LONG"):
        own, test = jt.load_bars(prices / f"{symbol}.csv"), splits[symbol]["test"]
        assert f"{own.index[test['first']]:%Y-%m-%d %H:%M}" == test["start_time"]
        assert f"{own.index[test['end'] - 1]:%Y-%m-%d %H:%M}" == test["last_time"]
    assert "GONE           2024-01-01 00:00 to 2024-01-30 03:00, 700 bars" in printed
    assert "2 instruments with an account each: " in printed
    assert printed.rstrip().endswith(f"{run}/test/late/report.html\n{run}/test/long/report.html")


def test_each_instrument_is_backtested_as_if_alone(
    places: tuple[Path, Path, str], capsys: pytest.CaptureFixture
) -> None:
    prices, run, _ = places
    assert main(["backtest", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["instruments"]) == {"LATE", "LONG"}
    for symbol, figures in found["instruments"].items():
        assert figures == json.loads((run / "test" / symbol.lower() / "metrics.json").read_text())
        assert main(["backtest", str(run), "--symbol", symbol, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == figures
    totals = [figures["metrics"]["agent"]["total_return"] for figures in found["instruments"].values()]
    assert found["together"]["mean_total_return"] == pytest.approx(np.mean(totals))
    assert main(["backtest", str(run), "--symbol", "LONGS"]) == 2
    assert "did you mean LONG?" in capsys.readouterr().err
    files = [str(prices / f"{symbol}.csv") for symbol in ("LONG", "LATE")]
    assert main(["backtest", str(run), "--data", *files, "--start", "2024-04-20"]) == 0
    assert "2 instruments with an account each: " in capsys.readouterr().out


def test_the_run_goes_on_with_all_of_them_and_notices_a_change_in_one(
    places: tuple[Path, Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    prices, run, _ = places
    moved, again = shutil.copytree(prices, tmp_path / "moved"), shutil.copytree(run, tmp_path / "run")
    words = ["train", "ppo", "--resume", str(again), "--updates", "3", "--data", str(moved), "--json"]
    assert main(words) == 0
    assert set(json.loads(capsys.readouterr().out)["test"]["instruments"]) == {"LATE", "LONG"}
    bars(3, 2500, "2024-01-20").to_csv(moved / "LATE.csv")
    assert main(words) == 2
    assert "does not hold the bars that the run was trained on" in capsys.readouterr().err


def test_a_file_of_many_symbols_is_taken_whole_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "many.csv"
    pd.concat([bars(i, 400, "2024-01-01").assign(symbol=name) for i, name in enumerate(("AAA", "BBB"))]).to_csv(path)
    assert main(["inspect", str(path)]) == 2
    assert "choose one with symbol= (--symbol)" in capsys.readouterr().err
    assert main(["inspect", str(path), "--all-symbols", "--json"]) == 0
    assert [found["symbol"] for found in json.loads(capsys.readouterr().out)] == ["AAA", "BBB"]
    assert main(["inspect", str(path), "--all-symbols", "--symbol", "AAA"]) == 2
    assert "--symbol and --all-symbols exclude each other" in capsys.readouterr().err


def test_a_damaged_record_of_several_is_refused(
    places: tuple[Path, Path, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    again = shutil.copytree(places[1], tmp_path / "run")
    facts = json.loads((again / "run.json").read_text())
    facts["data"]["instruments"]["LATE"]["splits"]["test"] = {"first": "x"}
    (again / "run.json").write_text(json.dumps(facts))
    assert main(["backtest", str(again)]) == 2
    assert "its record of the data has no usable instruments.LATE" in capsys.readouterr().err
