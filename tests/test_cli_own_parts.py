"""Parts of the user's own on the command line: trained with, kept with the run, refused once their file has changed."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.cli import main
from jaxrl_trade.parts import Part
from jaxrl_trade.train.run import load_config, read_facts

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_parts.py"
SMALL = [
    *("--n-episodes", "4", "--timesteps-per-episode", "16", "--episode-length", "64", "--epochs", "1"),
    *("--minibatches", "2", "--updates", "2"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of the example, and its file, a copy that may be changed."""
    folder = tmp_path_factory.mktemp("own")
    file = shutil.copy(EXAMPLE, folder / "mine.py")
    names = {name: name for name in ("reward", "features", "actions", "mask")} | {"network": "Network"}
    own = [word for flag, name in names.items() for word in (f"--{flag}", f"{file}:{name}")]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["train", "ppo", *SMALL, "--out", str(folder / "run"), *own]) == 0
    assert "features       6 of 6,161 bars" in printed.getvalue()  # 64 fill the windows
    return folder / "run", file


def complaint(capsys: pytest.CaptureFixture) -> str:
    """The one line on stderr, but for what a slow machine says it is at."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if " ..." not in line]
    return line


def test_the_run_keeps_every_part(run: tuple[Path, Path]) -> None:
    folder, file = run
    config, facts = load_config(folder), read_facts(folder)
    assert facts["feature_names"] == ["momentum_1", "momentum_4", "momentum_16", "momentum_64", "day_sin", "day_cos"]
    assert (facts["features_by"]["path"], facts["features_by"]["name"]) == (str(file), "features")
    assert str(config.reward_fn) == f"{file}:reward"
    assert str(config.env.mask) == f"{file}:mask"
    assert (
        config.env.execution.exposure == (0.0,) * 4 + (0.5,) * 4 + (1.0,) * 4
    )  # three market orders and a full ioc each
    assert not any(config.env.execution.is_maker)
    policy = jt.load_policy(folder)
    assert policy.params["Dense_0"]["kernel"].shape == (6 + 3, 64)
    assert policy.params["Dense_2"]["bias"].shape == (config.n_actions,)


def test_it_is_backtested_and_acts_with_its_own_features(run: tuple[Path, Path], capsys: pytest.CaptureFixture) -> None:
    folder, file = run
    assert main(["backtest", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((folder / "test" / "metrics.json").read_text())
    bars = jt.sample_bars()
    obs = jt.load_policy(folder).act(bars).obs
    whole = jt.Market.from_bars(bars, features=Part.of(f"{file}:features")).features[-1]
    assert obs.shape == (9,)
    np.testing.assert_allclose(obs[:6], whole, atol=1e-3)


def test_it_is_resumed_with_its_parts_and_refused_once_the_file_has_changed(
    run: tuple[Path, Path], capsys: pytest.CaptureFixture
) -> None:
    folder, file = run
    source = file.read_text()
    file.write_text(source.replace("0.05 * turnover", "0.06 * turnover"))
    try:
        for words in (["train", "ppo", "--resume", str(folder), "--updates", "3"], ["backtest", str(folder)]):
            assert main(words) == 2
            assert complaint(capsys).startswith(f"error: {file} has changed since the run began (sha256 ")
    finally:
        file.write_text(source)
    assert main(["train", "ppo", "--resume", str(folder), "--updates", "3"]) == 0
    assert "resuming after update 2 of 3" in capsys.readouterr().err


BROKEN = """
import flax.linen as nn
def typo(transitions, scales, market, env):
    return transitions.bass
def one(transitions, scales, market, env):
    return transitions.base.sum()
class Wide(nn.Module):
    outputs: int
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x)
class Mixed(nn.Module):
    outputs: int
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.outputs, kernel_init=nn.initializers.zeros)(x)
        return x - x.mean(axis=0) if x.ndim > 1 else x
class Leaving(nn.Module):
    outputs: int
    @nn.compact
    def __call__(self, x):
        raise SystemExit(0)
def leaving(*arguments):
    import sys
    sys.exit()
def future(bars):
    return bars.frame[["close"]].shift(-1).ffill()
def price(account, execution, close):
    return close
def words(bars):
    return [["a"]] * len(bars)
def table(preset):
    return 3
"""


@pytest.mark.parametrize(
    ("flag", "name", "message"),
    [
        ("--reward", "typo", "fails in line 4: AttributeError: 'Transitions' object has no attribute 'bass'"),
        ("--reward", "one", "reward_fn gives rewards of shape ()"),
        ("--network", "Wide", "network Wide gives (3,) for one observation (54,); it must give (45,)"),
        ("--network", "Mixed", "Mixed mixes the observations of a batch"),
        ("--network", "Leaving", "Leaving fails: SystemExit: 0"),
        ("--reward", "leaving", "leaving fails in line 25: SystemExit"),
        ("--features", "leaving", "leaving fails in line 25: SystemExit"),
        ("--features", "future", "future knows the future: look-ahead in close"),
        ("--features", "words", "features words gives no table of numbers"),
        ("--mask", "price", "mask gives float32 of shape (4,); it must give a bool for each episode, (4,)"),
        ("--actions", "table", "table gives a int; it must be, or return, a jaxrl_trade.ExecutionTable"),
        (
            "--actions",
            "tables",
            "has no tables; it has nn, typo, one, Wide, Mixed, Leaving, leaving, future, price, words, table",
        ),
        ("--reward", "nn", "it must be a function or a class"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_run(
    flag: str, name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text(BROKEN)
    assert main(["train", "ppo", *SMALL, flag, f"broken.py:{name}"]) == 2
    assert message in complaint(capsys)
    assert not list(tmp_path.glob("runs/*"))
