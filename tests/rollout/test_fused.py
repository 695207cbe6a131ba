"""The fused rollout and the kernels of the passes after it, interpreted, collect what the scan collects."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.rollout import hoisted, sequential
from pallas_kernels import entropy, recurrence
from pallas_kernels.rollout_plan import Tiles
from tests.rollout.agreement import assert_collections_agree, assert_sampled, assert_within, forward
from tests.rollout.markets import random_market

N, L, SEEDS = 11, 40, 2
MARKET = random_market(volatility=0.03)
SIZES = {"actor_hidden": (20, 12), "critic_hidden": (8,), "curiosity_hidden": (4,), "minibatches": 1}
RULES = {"barrier_max_bars": 5, "diversity_window": 7}
PLAN = jt.PPOConfig(  # the reserve binds, and a short position can be ruined
    env=jt.EnvConfig(initial_capital=60.0, ruin_fraction=0.85, episode_length=17, **RULES),
    n_episodes=N,
    timesteps_per_episode=L,
    **SIZES,
)
NET = jt.PPOConfig.net(
    env=jt.EnvConfig.net(leverage=2.0, ruin_fraction=0.8, episode_length=7, **RULES),
    n_episodes=N,
    timesteps_per_episode=L,
    **SIZES,
)
ONE, EIGHT = Tiles(lanes=1, warps=4), Tiles(lanes=8, warps=4, columns=16)  # eight: two pieces, a ragged tile


@contextlib.contextmanager
def tiles(tiles):
    """The kernel cut this way, whatever N; the passes after it in groups of two steps, which compile faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("pallas_kernels.rollout"), "choose_tiles", lambda *_: tiles)
        patch.setattr(entropy, "_GROUP", 2)
        patch.setattr(recurrence, "_GROUP", 2)
        yield


def lively(seed, config):
    """Parameters of a policy that prefers some actions: the initial one is nearly uniform."""
    params = jt.init_ppo(jax.random.key(seed), config, MARKET.n_features)
    params.actor["policy_output"]["kernel"] *= 100.0
    return params


def begin(seed, config):
    starts = np.random.default_rng(seed).choice(MARKET.valid_starts(config.env.episode_length), config.n_episodes)
    return jt.env.reset(MARKET, config.env, starts)


def check(config, params, start, key, actual, precise=None, width=1e-6, tolerance=1e-5):
    """The scan with the same actions agrees, and they are what the network and the uniform numbers choose.

    precise: the same config in float32.
    """
    experience, after = actual
    expected = jt.collect_ppo(params, MARKET, start, key, precise or config, backend="xla", actions=experience.actions)
    assert_collections_agree((experience, after), expected, config, tolerance)
    uniforms = jax.random.uniform(jax.random.split(key, 2)[0], experience.actions.shape)
    assert_sampled(experience, MARKET, params.actor, uniforms, width, config.negative_slope)
    ends = np.asarray(experience.terminated | experience.truncated).sum(0)
    assert (ends >= 1).all()
    assert len(np.unique(experience.actions)) > 10


def test_the_plan_preset_agrees_also_from_the_middle_of_episodes():
    params, state = lively(1, PLAN), begin(0, PLAN)
    with tiles(ONE):
        for key in jax.random.split(jax.random.key(2), 2):
            experience, after = jt.collect_ppo(params, MARKET, state, key, PLAN, backend="interpret")
            check(PLAN, params, state, key, (experience, after))
            assert np.asarray(experience.terminated).any()
            assert np.asarray(experience.truncated).any()
            state = after
    is_cut = np.asarray(experience.action) // 9 == 4  # wants the full unit, and buys less: the reserve
    assert (np.asarray(experience.position)[is_cut] < 0.99).any()


@pytest.fixture(scope="module")
def net():
    """Two collections in a row by each of two seeds under vmap: parameters, keys, starts and results."""
    params = [lively(seed, NET) for seed in range(SEEDS)]
    states = [begin(seed, NET) for seed in range(SEEDS)]

    @jax.vmap
    def collect(params, state, key):
        return jt.collect_ppo(params, MARKET, state, key, NET, backend="interpret")

    stacked = jax.tree.map(lambda *x: jnp.stack(x), *params)
    collections = []
    with tiles(EIGHT):
        for i in range(2):
            keys = jax.random.split(jax.random.key(i), SEEDS)
            together = collect(stacked, jax.tree.map(lambda *x: jnp.stack(x), *states), keys)
            results = [jax.tree.map(lambda x, n=n: x[n], together) for n in range(SEEDS)]
            collections += [*zip(params, states, keys, results, strict=True)]
            states = [after for _, after in results]
    return collections


def test_the_net_preset_agrees_under_vmap_over_seeds(net):
    for params, start, key, results in net:
        check(NET, params, start, key, results)
        experience, _ = results
        assert np.asarray(experience.terminated).any()
        assert (np.asarray(experience.truncated).sum(0) > 2).any()  # several in a lane


def test_a_truncated_episode_is_worth_what_its_next_observation_is(net):
    """next_values against a plain loop: the critic at what followed each step, before any restart."""
    params, _, _, (experience, _) = net[-1]
    obs, features = np.asarray(experience.observations(MARKET), np.float64), np.asarray(MARKET.features, np.float64)
    expected = np.zeros((L, N))
    for t, n in np.ndindex(L, N):
        if t + 1 < L and not (experience.terminated[t, n] or experience.truncated[t, n]):
            following = obs[t + 1, n]
        else:
            account = (
                experience.equity_after[t, n] / NET.env.initial_capital,
                experience.position[t, n] / experience.max_position[t, n],
                NET.env.spread,
            )
            following = np.concatenate([features[experience.bar[t, n] + 1], account])
        expected[t, n] = forward(params.critic, following, NET.negative_slope)[0]
    is_used = ~np.asarray(experience.terminated)
    actual = np.asarray(experience.next_values)
    assert_within("next_values", actual[is_used], expected[is_used], 1e-5 * np.abs(expected).max())


def test_bfloat16_agrees_with_float32_to_its_precision(net):
    config = dataclasses.replace(NET, compute_dtype="bfloat16")
    params, start, key, _ = net[-1]
    with tiles(EIGHT):
        results = jt.collect_ppo(params, MARKET, start, key, config, backend="interpret")
    check(config, params, start, key, results, precise=NET, width=2e-2, tolerance=2e-2)


def test_one_step_of_forced_actions_agrees():
    config = dataclasses.replace(NET, timesteps_per_episode=1)
    params, state, key = lively(1, config), begin(3, config), jax.random.key(0)
    actions = np.random.default_rng(0).integers(0, 45, (1, N))
    with tiles(EIGHT):
        actual, expected = (
            jt.collect_ppo(params, MARKET, state, key, config, backend=backend, actions=actions)
            for backend in ("interpret", "xla")
        )
    assert_collections_agree(actual, expected, config, 1e-5)
    np.testing.assert_array_equal(actual[0].actions, actions)


@pytest.mark.slow
@pytest.mark.parametrize("preset", [PLAN, NET], ids=["plan", "net"])
def test_a_long_collection_agrees(preset):
    config = dataclasses.replace(preset, n_episodes=3, timesteps_per_episode=1100)
    params, state, key = lively(1, config), begin(0, config), jax.random.key(2)
    results = jt.collect_ppo(params, MARKET, state, key, config, backend="interpret")
    check(config, params, state, key, results)


def test_a_network_that_is_too_wide_is_scanned_and_the_log_says_so_once(caplog):
    config = dataclasses.replace(NET, actor_hidden=(300,))
    params, state = jt.init_ppo(jax.random.key(0), config, MARKET.n_features), begin(0, config)

    def traced(config):
        draws = jnp.zeros((config.timesteps_per_episode, N))
        arguments = (params.actor, MARKET, state.account, draws, jnp.zeros_like(draws, int))
        return str(jax.make_jaxpr(lambda *a: sequential.rollout_actor(*a, config, "interpret"))(*arguments))

    sequential._log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="jaxrl_trade"):
        assert "name=rollout" not in traced(config)
        assert "name=rollout" not in traced(dataclasses.replace(config, timesteps_per_episode=3))
        (record,) = caplog.records
        assert "a layer of 300 units is wider than 256" in record.getMessage()
        config = dataclasses.replace(config, actor_hidden=(256,))
        params = jt.init_ppo(jax.random.key(0), config, MARKET.n_features)
        assert "name=rollout" in traced(config)
        assert len(caplog.records) == 1


@pytest.mark.parametrize(("length", "episode"), [(1, 1), (1, 5), (9, 1), (40, 7), (41, 7), (43, 100)])
def test_every_truncation_finds_its_own_row(length, episode):
    """Lanes that are truncated as often as the episode's length allows, less often, and never."""
    rng = np.random.default_rng(length)
    truncated = np.zeros((length, 6), bool)
    for n in range(5):
        t = rng.integers(0, episode) if n else 0
        while t < length:
            truncated[t, n] = True
            t += episode + (rng.integers(0, episode) if n > 1 else 0)
    order, row = map(np.asarray, hoisted._cuts(jnp.asarray(truncated), episode))
    assert row.shape == (1 + (length - 1) // episode, 6)
    assert ((row >= 0) & (row < length)).all()
    assert ((order >= 0) & (order < len(row))).all()
    t, n = np.nonzero(truncated)
    np.testing.assert_array_equal(row[order[t, n], n], t)
