"""A sweep on several devices: begun on two, stopped, gone on with on four, it is what one run after the other is."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.train.grid import with_setting
from jaxrl_trade.train.progress import Progress
from jaxrl_trade.train.result import StoppedError
from jaxrl_trade.train.sweep_folder import read_plan
from tests.train import tiny

CONFIG, RATES = tiny.config(updates=2), (1e-4, 3e-2)


def sweep(folder: Path, **options: Any) -> Any:
    keys = jax.random.split(jax.random.key(3), 2)
    validation = tiny.market(bars=100, seed=1)
    return jt.sweep(
        tiny.market(), CONFIG, {"learning_rate": RATES}, keys, validation, folder=folder, quiet=True, **options
    )


@pytest.mark.slow
def test_a_sweep_goes_on_on_another_number_of_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", lambda *rows, is_first: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(StoppedError):
            sweep(tmp_path, devices=2)
    assert (read_plan(tmp_path)["devices"], read_plan(tmp_path)["runs_at_once"]) == (2, 4)
    result = sweep(tmp_path, devices=4)
    config = with_setting(CONFIG, {"learning_rate": RATES[result.chosen]})
    train = jax.jit(jt.make_train_ppo(config, tiny.market()))
    for key, policy in zip(jax.random.split(jax.random.key(3), 2), result.policies, strict=True):
        alone, _ = train(key)
        # float32, 2 updates of Adam
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6), policy.params, alone.params.actor
        )


def test_devices_that_do_not_divide_the_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="at_once = 4 must be a whole number of runs, at least 1 and a multiple of 3, the devices"
    ):
        sweep(tmp_path, devices=3, at_once=4)
