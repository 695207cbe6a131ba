"""The environment in Gymnasium: it passes Gymnasium's own checks and is, bit for bit, `jt.env.step`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

ID = "jaxrl_trade/Trading-v0"
CONFIG = jt.EnvConfig.net(episode_length=12, diversity_window=5)
SCALES = jt.RewardScales(barrier_scale=0.5, diversity_scale=0.3, risk_weight=2.0)
step = jax.jit(jt.env.step, static_argnames="config")
observe = jax.jit(jt.env.observe, static_argnames="config")


@pytest.fixture(scope="module")
def market() -> jt.Market:
    rng = np.random.default_rng(0)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.02, 60)))
    return jt.Market.from_arrays(rng.normal(size=(60, 4)), close)


def reward_of(outcome: Any) -> np.ndarray:
    """The formula of the environment's page, without the curiosity bonus, in float64."""
    base, label, penalty, drawdown = (
        np.asarray(x, np.float64)
        for x in (outcome.base, outcome.barrier_label, outcome.diversity_penalty, outcome.drawdown)
    )
    return base * (1 + 0.5 * label) + 0.3 * penalty - 2.0 * drawdown


def test_gymnasiums_own_check_passes_without_a_warning(market: jt.Market) -> None:
    check_env(gymnasium.make(ID, bars=market, config=CONFIG).unwrapped)


def test_one_episode_is_env_step(market: jt.Market) -> None:
    env, rng = gymnasium.make(ID, bars=market, config=CONFIG, scales=SCALES), np.random.default_rng(1)
    for start in (0, 20, 47):
        obs, info = env.reset(options={"start": start})
        state = jt.env.reset(market, CONFIG, np.int32(start))
        assert np.array_equal(obs, observe(state, market, config=CONFIG))
        assert info == {"bar": start}
        for k in range(CONFIG.episode_length):
            action = int(rng.integers(CONFIG.n_actions))
            obs, reward, terminated, truncated, info = env.step(action)
            state, outcome = step(state, np.int32(action), np.int32(0), market, config=CONFIG)
            assert np.array_equal(obs, outcome.next_obs)
            np.testing.assert_allclose(reward, reward_of(outcome), rtol=1e-6, atol=1e-6)  # float32, four terms
            assert (terminated, truncated) == (bool(outcome.terminated), bool(outcome.truncated))
            assert info["bar"] == start + k + 1
            assert info["equity_after"] == float(outcome.equity_after)
        assert truncated


def test_n_episodes_are_env_step_and_restart_in_the_step_that_ends_them(market: jt.Market) -> None:
    n = 5
    env = gymnasium.make_vec(ID, num_envs=n, bars=market, config=CONFIG, scales=SCALES)
    starts = np.array([0, 3, 8, 20, 40], np.int32)
    obs, _ = env.reset(seed=3, options={"starts": starts})
    state, rng = jt.env.reset(market, CONFIG, starts), np.random.default_rng(2)
    assert np.array_equal(obs, observe(state, market, config=CONFIG))
    for k in range(2 * CONFIG.episode_length + 1):
        actions = rng.integers(CONFIG.n_actions, size=n)
        obs, rewards, terminated, truncated, info = env.step(actions)
        restarts = np.asarray(info["bar"], np.int32) if truncated.any() else np.zeros(n, np.int32)
        state, outcome = step(state, actions.astype(np.int32), restarts, market, config=CONFIG)
        np.testing.assert_allclose(rewards, reward_of(outcome), rtol=1e-6, atol=1e-6)
        assert np.array_equal(truncated, outcome.truncated)
        assert np.array_equal(terminated, outcome.terminated)
        assert truncated.all() == ((k + 1) % CONFIG.episode_length == 0)
        if truncated.any():
            assert np.array_equal(info["final_obs"], outcome.next_obs)
            assert info["_final_obs"].all()
            assert np.array_equal(obs, observe(state, market, config=CONFIG))
            assert set(restarts.tolist()) <= set(market.valid_starts(CONFIG.episode_length).tolist())
        else:
            assert np.array_equal(obs, outcome.next_obs)
            assert "final_obs" not in info


def test_lanes_that_go_on_are_untouched_by_one_that_is_ruined() -> None:
    close = np.array([100.0, 100.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0])
    market = jt.Market.from_arrays(np.arange(18.0).reshape(9, 2), close)
    config = jt.EnvConfig.net(episode_length=4, leverage=1.0, fill="close", execution=jt.ExecutionTable.plan())
    env = gymnasium.make_vec(ID, num_envs=2, bars=market, config=config)
    env.reset(seed=0, options={"starts": [0, 0]})
    env.step([36, 18])  # all in, and flat
    obs, _, terminated, truncated, info = env.step([36, 18])
    assert terminated.tolist() == [True, False]  # a loss of 95 % ends an account
    assert not truncated.any()
    assert info["_final_obs"].tolist() == [True, False]
    assert info["final_obs"][0][2] < 0.1 < obs[0][2]
    assert np.array_equal(info["final_obs"][1], obs[1])
    assert info["final_info"]["bar"].tolist() == [2, 2]
    assert info["bar"][1] == 2


def test_a_seed_decides_where_episodes_begin(market: jt.Market) -> None:
    env = gymnasium.make(ID, bars=market, config=CONFIG)
    bars = [env.reset(seed=seed)[1]["bar"] for seed in (7, 7, 8, 9, 10)]
    assert bars[0] == bars[1]
    assert len(set(bars)) > 1
    vector = gymnasium.make_vec(ID, num_envs=3, bars=market, config=CONFIG)
    first, again = vector.reset(seed=1)[0], vector.reset(seed=1)[0]
    assert np.array_equal(first, again)


def test_mistakes_are_named(market: jt.Market) -> None:
    env = gymnasium.make(ID, bars=market, config=CONFIG).unwrapped
    with pytest.raises(ValueError, match="none has begun; call reset"):
        env.step(0)
    with pytest.raises(ValueError, match="leaves 11 bars of its instrument, but episode_length is 12"):
        env.reset(options={"start": 48})
    with pytest.raises(ValueError, match="reset knows no option begin; it takes start"):
        env.reset(options={"begin": 4})
    env.reset()
    with pytest.raises(ValueError, match="45 is not in"):
        env.step(45)
    for _ in range(CONFIG.episode_length):
        env.step(0)
    with pytest.raises(ValueError, match="the episode is over"):
        env.step(0)
    vector = gymnasium.make_vec(ID, num_envs=2, bars=market, config=CONFIG)
    with pytest.raises(ValueError, match="there are 2 episodes"):
        vector.reset(options={"starts": [1]})
    with pytest.raises(ValueError, match="bars\\[0\\] is a int; give Bars"):
        gymnasium.make(ID, bars=3)


def test_whichever_is_imported_first_the_environment_is_known() -> None:
    code = "import jaxrl_trade as jt, gymnasium as g; jt.EnvConfig; print(g.spec('jaxrl_trade/Trading-v0').id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ID


def test_observations_are_the_floats_of_the_market(market: jt.Market) -> None:
    space = gymnasium.make(ID, bars=market, config=CONFIG).observation_space
    assert space.dtype == market.features.dtype
    assert space.shape == (7,)
    assert jnp.all(space.high[:4] == market.features.max(0))
