"""Walk-forward on a small file: where the folds lie, that nothing of the future reaches them, and that complete folds are kept."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.backtesting.folds import plan_folds
from jaxrl_trade.train import walk_forward as module
from tests.backtesting.tracks import bars_of, random_walk
from tests.train.tiny import NETWORKS

KEY = jax.random.key(0)
BARS = bars_of(random_walk(5, 1300), symbol="WALK")


def config(**changes: Any) -> jt.PPOConfig:
    rules = jt.EnvConfig.net(episode_length=32)
    sizes = {"n_episodes": 4, "timesteps_per_episode": 16, "updates": 2, "epochs": 1, "minibatches": 2}
    return jt.PPOConfig.net(**{"env": rules, **sizes, **NETWORKS, **changes})


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Two seeds of two folds, and the folder of their runs."""
    folder = tmp_path_factory.mktemp("walk") / "w"
    report = jt.walk_forward(
        BARS, config(), KEY, folds=2, seeds=2, embargo=320, out_of_sample=0.2, folder=folder, quiet=True
    )
    return folder, report


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


def test_the_test_stretches_are_one_account_and_one_backtest_of_each_policy(walked: tuple[Path, Any]) -> None:
    folder, report = walked
    folds = plan_folds(1300, 320, 2, 0.2, 320)
    first, middle, end = folds[0].test.first, folds[1].test.first, folds[1].test.end
    stitched = report.reports[1]
    assert stitched.equity.index[0] == BARS.index[first]
    assert stitched.equity.index[-1] == BARS.index[end]
    alone = jt.backtest(jt.load_policy(folder / "seed-1" / "fold-1"), BARS, config(), first, middle + 1, costs=())
    np.testing.assert_allclose(stitched.equity.iloc[: middle - first + 1], alone.equity, rtol=1e-9)
    hold = report.equity["buy_and_hold"]
    assert (1 + report.folds["buy_and_hold"]).prod() == pytest.approx(hold.iloc[-1] / hold.iloc[0])


def test_the_tables_are_sums_over_folds_and_seeds(walked: tuple[Path, Any]) -> None:
    _, report = walked
    curves = report.equity[["seed 0", "seed 1"]].to_numpy()
    half = (len(curves) - 1) // 2
    first = curves[half] / curves[0] - 1
    assert report.folds.loc[1, "agent"] == pytest.approx(first.mean())
    assert report.folds.loc[1, ["low", "high"]].tolist() == pytest.approx(sorted(first))
    assert report.folds["trades"].sum() == pytest.approx(np.mean([len(r.trades) for r in report.reports]))
    np.testing.assert_allclose(report.seeds["total_return"], curves[-1] / curves[0] - 1)
    assert report.median.equity.iloc[-1] == curves[-1].min()  # the lower one of two
    assert report.median.deflated.trials == 2


def test_the_words_name_the_median_the_spread_and_the_folds(walked: tuple[Path, Any]) -> None:
    _, report = walked
    assert report.verdict.startswith(report.median.verdict)
    assert "That is the median of 2 seeds: " in report.verdict
    text = report.summary()
    for words in ("seeds ahead", "standard deviation", "costs × 5", "buy and hold"):
        assert words in text


def test_complete_folds_are_kept_and_a_missing_one_is_trained_again(
    walked: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = walked
    trained = []

    def watched(*arguments: Any, **options: Any) -> Any:
        trained.append(options["folder"])
        return train_agent(*arguments, **options)

    train_agent = module.train_agent
    monkeypatch.setattr(module, "train_agent", watched)
    missing = folder / "seed-0" / "fold-2"
    for path in sorted(missing.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = jt.walk_forward(BARS, config(), KEY, folds=2, seeds=2, out_of_sample=0.2, folder=folder, quiet=True)
    assert trained == [missing]
    np.testing.assert_array_equal(again.equity, report.equity)
    with pytest.raises(ValueError, match="was trained with other settings"):
        jt.walk_forward(BARS, config(epochs=2), KEY, folds=2, seeds=2, out_of_sample=0.2, folder=folder, quiet=True)


def test_no_policy_has_seen_anything_of_its_test_bars(walked: tuple[Path, Any]) -> None:
    """Other prices from the second fold's test on change neither the first nor the second fold's weights."""
    folder, report = walked
    start = plan_folds(1300, 320, 2, 0.2, 320)[1].test.first
    prices = BARS.frame["close"].to_numpy().copy()
    prices[start:] *= np.linspace(1.0, 2.0, len(prices) - start)
    changed = bars_of(prices, symbol="WALK")
    other = jt.walk_forward(changed, config(), KEY, folds=2, seeds=1, out_of_sample=0.2, quiet=True)
    half = (len(report.equity) - 1) // 2
    np.testing.assert_array_equal(other.equity["seed 0"].iloc[:half], report.equity["seed 0"].iloc[:half])
    assert other.equity["seed 0"].iloc[-1] != report.equity["seed 0"].iloc[-1]


def test_files_hold_the_tables(walked: tuple[Path, Any], tmp_path: Path) -> None:
    _, report = walked
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


def test_something_else_than_bars_and_no_seed_are_refused() -> None:
    with pytest.raises(ValueError, match="bars is a list; give Bars"):
        jt.walk_forward([BARS], config(), KEY)
    with pytest.raises(ValueError, match="seeds = 0 must be a whole number"):
        jt.walk_forward(BARS, config(), KEY, seeds=0)
