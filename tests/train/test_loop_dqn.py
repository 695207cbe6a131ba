"""DQN in the host loop: the same folder, the same way back from a checkpoint."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.train.dqn import TERMS
from jaxrl_trade.train.loop import NonFiniteError, TrainResult, train_dqn
from jaxrl_trade.train.progress import describe
from jaxrl_trade.train.run import load_config, read_facts
from tests.train import tiny
from tests.train.test_loop import assert_same_leaves, stop_after, without_time

MARKET, KEY = tiny.market(), jax.random.key(0)
CONFIG = jt.DQNConfig.net(
    env=jt.EnvConfig.net(episode_length=tiny.EPISODE),
    n_episodes=4,
    timesteps_per_episode=8,
    updates=4,
    batch_size=16,
    replay_capacity=100,
    learning_starts=32,
    shared_hidden=(8,),
    head_hidden=32,
    curiosity_hidden=(4,),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return train_dqn(MARKET, CONFIG, KEY, MARKET, folder=folder, checkpoint_every=2, quiet=True)


def test_the_folder_says_which_agent_it_holds_and_gives_its_policy_back(run: TrainResult) -> None:
    assert run.folder is not None
    assert read_facts(run.folder)["agent"] == "dqn"
    assert load_config(run.folder) == CONFIG
    assert {p.name for p in (run.folder / "weights").glob("*.safetensors")} == {
        "dueling.safetensors",
        "curiosity.safetensors",
    }
    obs = np.random.default_rng(0).standard_normal((6, tiny.FEATURES + 3)).astype(np.float32)
    np.testing.assert_array_equal(jt.load_policy(run.folder, tiny.NAMES)(obs), run.policy(obs))


def test_every_update_is_a_row_that_a_person_can_read(run: TrainResult) -> None:
    assert [row["update"] for row in run.history] == [1, 2, 3, 4]
    assert [row["env_steps"] for row in run.history] == [32, 64, 96, 128]
    assert "validation_total_return" in run.history[1]
    for part in ("equity", "epsilon", "Q ", "TD ", "EV ", "grad "):
        assert part in describe(run.history[-1], None)


def test_stopping_and_resuming_equals_never_stopping_bit_for_bit(
    run: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {"validation": MARKET, "folder": tmp_path / "run", "checkpoint_every": 2, "quiet": True}
    with monkeypatch.context() as patch:
        stop_after(2, signal.SIGTERM, patch)
        half = train_dqn(MARKET, CONFIG, KEY, **arguments)
    assert (half.stopped_by, len(half.history)) == ("SIGTERM", 2)
    rest = train_dqn(MARKET, CONFIG, KEY, resume=True, **arguments)
    assert without_time(rest.history) == without_time(run.history)
    assert_same_leaves(rest.state, run.state)  # the replay and its priorities too


def test_a_longer_total_keeps_the_schedules_of_the_run(
    run: TrainResult, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run.folder is not None
    folder = shutil.copytree(run.folder, tmp_path / "run")
    longer = train_dqn(MARKET, dataclasses.replace(CONFIG, updates=6), KEY, MARKET, folder=folder, resume=True)
    assert "4 updates: epsilon and the importance exponent stay at their ends after that" in capsys.readouterr().err
    # a line from 0.4 to 1 over the 4 updates that the run began with
    np.testing.assert_allclose(
        [row["importance"] for row in longer.history], [0.4, 0.55, 0.7, 0.85, 1.0, 1.0], rtol=1e-6
    )


def test_a_nan_names_what_it_came_from() -> None:
    config = dataclasses.replace(
        CONFIG, hypers=dataclasses.replace(CONFIG.hypers, gamma=jax.numpy.nan * jax.numpy.ones(()))
    )
    with pytest.raises(NonFiniteError) as caught:
        train_dqn(MARKET, config, KEY, quiet=True)
    assert (caught.value.update, caught.value.term) == (1, TERMS[3])


def test_a_config_of_nothing_is_refused() -> None:
    wrong: Any = jt.EnvConfig()
    with pytest.raises(ValueError, match="config is a EnvConfig; give a DQNConfig"):
        train_dqn(MARKET, wrong, KEY)
