"""Stable-Baselines3 trains on the environment as it is, and its own check finds nothing. `make test-peers` runs this."""

from __future__ import annotations

import numpy as np
import pytest

import jaxrl_trade as jt

pytest.importorskip("stable_baselines3")

import gymnasium
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_checker import check_env

pytestmark = pytest.mark.peers
ID, CONFIG = "jaxrl_trade/Trading-v0", jt.EnvConfig.net(episode_length=32)


@pytest.fixture(scope="module")
def market() -> jt.Market:
    rng = np.random.default_rng(0)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.005, 200)))
    return jt.Market.from_arrays(rng.normal(size=(200, 5)), close)


def test_its_own_check_passes(market: jt.Market) -> None:
    check_env(gymnasium.make(ID, bars=market, config=CONFIG).unwrapped)


def test_ppo_trains_on_it_unchanged(market: jt.Market) -> None:
    model = PPO(
        "MlpPolicy",
        gymnasium.make(ID, bars=market, config=CONFIG),
        n_steps=128,
        batch_size=32,
        n_epochs=2,
        seed=0,
        device="cpu",
    )
    before = [p.detach().numpy().copy() for p in model.policy.parameters()]
    model.learn(256)
    after = [p.detach().numpy() for p in model.policy.parameters()]
    assert model.num_timesteps == 256
    assert all(np.isfinite(p).all() for p in after)
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert model.ep_info_buffer is not None
    assert [info["l"] for info in model.ep_info_buffer] == [32] * 8


def test_dqn_trains_on_it_unchanged(market: jt.Market) -> None:
    env = gymnasium.make(ID, bars=market, config=CONFIG)
    model = DQN("MlpPolicy", env, learning_starts=32, batch_size=16, buffer_size=200, seed=0, device="cpu")
    assert model.learn(100).num_timesteps == 100
