"""The settings of a sweep, and one line for every grid that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.train.grid import settings_of, stacked, sweepable, with_setting

PPO, DQN = jt.PPOConfig.net(), jt.DQNConfig.net()


def test_every_combination_is_a_setting_the_last_name_fastest() -> None:
    settings = settings_of({"learning_rate": (1e-4, 1e-3), "risk_weight": (0, 0.5)}, PPO)
    assert [tuple(setting.items()) for setting in settings] == [
        (("learning_rate", rate), ("risk_weight", weight)) for rate in (1e-4, 1e-3) for weight in (0.0, 0.5)
    ]
    config = with_setting(PPO, settings[1])
    assert (config.hypers.learning_rate, config.hypers.reward.risk_weight) == (1e-4, 0.5)
    assert config.hypers.reward.barrier_scale == PPO.hypers.reward.barrier_scale
    assert with_setting(config, {"learning_rate": 3e-4, "risk_weight": 0.1}) == PPO


def test_runs_are_stacked_in_the_leaves_of_the_hyperparameters() -> None:
    hypers = stacked(DQN, [{"tau": 0.1, "huber_delta": 1.0}, {"tau": 0.2, "huber_delta": 1.0}])
    np.testing.assert_array_equal(hypers.tau, [0.1, 0.2])
    np.testing.assert_array_equal(hypers.gamma, [0.99, 0.99])
    np.testing.assert_array_equal(hypers.reward.diversity_scale, [0.01, 0.01])


@pytest.mark.parametrize(("config", "others"), [(PPO, {"reward"}), (DQN, {"reward", "huber_delta"})])
def test_whatever_is_traced_can_be_swept_and_nothing_else(config: Any, others: set[str]) -> None:
    fields = {**vars(config.hypers), **vars(config.hypers.reward)}
    assert set(sweepable(config)) == set(fields) - others


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"lerning_rate": (1, 2)}, "PPO has no hyperparameter 'lerning_rate'; did you mean learning_rate?"),
        ({"xyz": (1, 2)}, "PPO has no hyperparameter 'xyz'; it has learning_rate, "),
        ({"n_episodes": (8, 16)}, "n_episodes cannot be swept: it is compiled into the program"),
        ({"spread": (0.0, 0.1)}, "spread cannot be swept"),
        ({}, "the grid holds a single setting, so there is nothing to choose"),
        ({"gamma": (0.9,), "clip": (0.1,)}, "the grid holds a single setting"),
        ({"gamma": ()}, r"gamma = \(\) must hold one value or more"),
        ({"gamma": 0.9}, "gamma = 0.9 must hold one value or more"),
        ({"gamma": "09"}, "gamma = '09' must hold one value or more"),
        ({"gamma": ("0", "1")}, "gamma holds '0', which is no number"),
        ({"gamma": (0.9, True)}, "gamma holds True, which is no number"),
        ({"gamma": (0.9, 1.5)}, r"hypers.gamma = 1.5 must be a number in \[0, 1\]"),
        ({"gamma": (0.9, float("nan"))}, "hypers.gamma = nan must be a number"),
        ({"gamma": (0.0, 0.5, 0)}, "gamma holds 0 2 times; give each value once"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(grid: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings_of(grid, PPO)


def test_what_the_loss_kernel_is_compiled_with_cannot_be_swept() -> None:
    with pytest.raises(ValueError, match="huber_delta cannot be swept"):
        settings_of({"huber_delta": (1.0, 2.0)}, DQN)
