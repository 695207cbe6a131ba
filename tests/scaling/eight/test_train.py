"""`train_ppo` on eight devices: the program of `data_parallel`, and checkpoints that go on on any number of devices."""

from __future__ import annotations

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade import scale
from jaxrl_trade.train.run import read_plan
from tests.rollout.markets import SMALL, random_market
from tests.scaling.eight.runs import DEVICES, EPISODES, LENGTH, RULES, assert_same, data

MARKET, KEY = random_market(), jax.random.key(2)
CONFIG = jt.PPOConfig.net(
    env=RULES, n_episodes=EPISODES, timesteps_per_episode=LENGTH, updates=2, epochs=1, minibatches=2, **SMALL
)
HALF = dataclasses.replace(CONFIG, updates=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two updates that nothing happened to."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return jt.train_ppo(MARKET, CONFIG, KEY, folder=folder, devices="all", quiet=True)


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole.folder, tmp_path / "run")


def resume(folder, config=CONFIG, **options):
    return jt.train_ppo(MARKET, config, KEY, folder=folder, resume=True, **options)


def devices_of(result):
    return len(result.state.env.account.cash.sharding.device_set)


@pytest.mark.slow
def test_a_run_is_that_of_data_parallel(whole):
    """In float32, and Adam turns rounding into steps of 1e-3 x learning rate at most; another minibatch would be a whole step."""
    state, metrics = scale.data_parallel(CONFIG, MARKET, DEVICES).train(KEY)
    assert_same(whole.state, state, 1e-5)
    np.testing.assert_allclose([row["reward"] for row in whole.history], metrics.reward, rtol=1e-5)


def test_a_resumed_run_is_the_run_that_never_stopped(whole, tmp_path):
    jt.train_ppo(MARKET, HALF, KEY, folder=tmp_path / "run", devices=DEVICES, quiet=True)
    rest = resume(tmp_path / "run", quiet=True)  # on as many devices as before
    assert devices_of(rest) == DEVICES
    assert_same(rest.state, whole.state, 0)
    assert_same(rest.params, whole.params, 0)


@pytest.mark.parametrize("devices", [4, 1])
def test_on_other_devices_a_run_goes_on_with_the_same_state_and_says_so(devices, whole, folder, capsys):
    again = resume(folder, devices=devices)
    assert devices_of(again) == devices
    assert_same(again.state, whole.state, 0)
    said = capsys.readouterr().err
    assert f"device: 8 x cpu -> {devices} x cpu; parameters and optimiser are the run's" in said
    assert (
        f"{devices} x {EPISODES // devices} episodes instead of 8 x 2: minibatches are drawn in another order" in said
    )


def test_the_devices_of_a_run_are_in_its_record(folder):
    assert read_plan(folder).devices == DEVICES
    assert read_plan(folder).device == "8 x cpu"


def test_fewer_devices_than_the_run_had_must_be_asked_for(folder, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 3)
    with pytest.raises(
        ValueError, match=r"was trained on 8 devices, here JAX sees 3; say on how many .* \(--devices 3\)"
    ):
        resume(folder)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (9, r"devices = 9, but JAX sees 8 x cpu; XLA_FLAGS=--xla_force_host_platform_device_count=9 simulates so many"),
        (3, r"n_episodes = 16 cannot be divided over 3 devices"),
        (0, r"devices = 0 must be a whole number of at least 1, or 'all'"),
        (True, r"devices = True must be"),
        ("some", r"devices = 'some' must be"),
    ],
)
def test_devices_that_cannot_be_had_are_told_before_there_is_a_folder(devices, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        jt.train_ppo(MARKET, CONFIG, KEY, folder=tmp_path / "run", devices=devices, quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_result_is_on_one_device_for_whoever_goes_on_with_it(whole):
    assert {len(x.sharding.device_set) for x in jax.tree.leaves((whole.params, whole.policy.params))} == {1}
    assert_same(whole.params, data(whole.state.params), 0)
