"""Arguments of another kind are named before anything is computed: what came, and what was wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl_trade as jt
from tests.train import tiny

MARKET, KEY = tiny.market(), jax.random.key(0)
PPO, DQN = tiny.config(), jt.DQNConfig(env=jt.EnvConfig(episode_length=tiny.EPISODE))
ANY: Any = None  # a type checker would refuse these calls


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jt.train_ppo(MARKET, PPO, ANY or 0), r"key is 0; give a typed key, such as jax\.random\.key\(0\)"),
        (lambda: jt.train_dqn(MARKET, DQN, ANY or 7), r"key is 7; give a typed key"),
        (
            lambda: jt.train_ppo(MARKET, PPO, jax.random.PRNGKey(0)),
            r"key is an array of uint32 \[2\]; give a typed key",
        ),
        (
            lambda: jt.train_ppo(MARKET, PPO, jax.random.split(KEY, 3)),
            r"key holds keys of shape \(3,\), a run takes one",
        ),
        (lambda: jt.train_ppo(MARKET, ANY or DQN, KEY), r"config is a DQNConfig; give a PPOConfig"),
        (lambda: jt.train_dqn(MARKET, ANY or PPO, KEY), r"config is a PPOConfig; give a DQNConfig"),
        (
            lambda: jt.train_ppo(ANY or np.zeros(3), PPO, KEY),
            r"market is a ndarray; give a Market, such as Market\.from_bars",
        ),
        (lambda: jt.train_ppo(MARKET, PPO, KEY, ANY or "val"), r"validation is 'val'; give a Market"),
        (lambda: jt.train_ppo(MARKET, PPO, KEY, folder=""), r"folder = '' names no folder; None writes no files"),
        (lambda: jt.train_ppo(MARKET, PPO, KEY, resume=True), r"resume = True needs the folder of the run to resume"),
        (lambda: jt.make_train_ppo(ANY or jt.EnvConfig(), MARKET), r"config is a EnvConfig; give a PPOConfig"),
        (lambda: jt.make_train_dqn(ANY or PPO, MARKET), r"config is a PPOConfig; give a DQNConfig"),
        (lambda: jt.make_train_ppo(PPO, ANY or PPO), r"market is a PPOConfig; give a Market"),
        (lambda: jt.make_train_ppo(PPO, MARKET)(ANY or 0), r"key is 0; give a typed key"),
        (
            lambda: jt.make_train_ppo(PPO, MARKET)(KEY, ANY or {"clip": 0.1}),
            r"hypers is a dict; give a PPOHypers, such as",
        ),
        (lambda: jt.make_train_ppo(PPO, MARKET)(KEY, ANY or 1e-3), r"hypers is 0\.001; give a PPOHypers"),
        (lambda: jt.make_train_dqn(DQN, MARKET)(KEY, ANY or PPO.hypers), r"hypers is a PPOHypers; give a DQNHypers"),
        (
            lambda: jt.make_train_ppo(PPO, MARKET)(KEY, dataclasses.replace(PPO.hypers, gamma=ANY or np.full(3, 0.9))),
            r"hypers\.gamma has shape \(3,\), a run takes a number; jax\.vmap trains with several at once",
        ),
        (lambda: jax.jit(jt.make_train_dqn(DQN, MARKET))(0), r"key is an array of int32 \[\]; give a typed key"),
    ],
)
def test_an_argument_of_another_kind_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
