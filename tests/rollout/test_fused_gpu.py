"""On a GPU: what the compiled kernels collect is what the scan collects, in every tile and precision."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from tests.rollout.agreement import assert_collections_agree, assert_sampled
from tests.rollout.markets import random_market

pytestmark = pytest.mark.gpu

L, EPISODE = 60, 25
TOLERANCE = {"float32": 1e-5, "tf32": 2e-3, "bfloat16": 2e-2}  # of each array's largest entry
WIDTH = {"float32": 1e-6, "tf32": 1e-3, "bfloat16": 2e-2}  # of a near-tie, SPEC's
RULES = {"episode_length": EPISODE, "diversity_window": 20, "ruin_fraction": 0.9}
PRESETS = {
    "plan": jt.PPOConfig(env=jt.EnvConfig(initial_capital=120.0, **RULES), timesteps_per_episode=L),
    "net": jt.PPOConfig.net(env=jt.EnvConfig.net(leverage=2.0, **RULES), timesteps_per_episode=L),
}


@functools.cache
def market():
    """A walk without near-ties: no limit price within 1e-6 of the low or high that would fill it."""
    offsets = np.unique(np.asarray(jt.ExecutionTable.net().price_offset)) * jt.EnvConfig().spread
    for seed in range(100):
        walk = random_market(n_bars=300, n_features=51, seed=seed)
        close, low, high = (np.asarray(x, np.float64) for x in (walk.close, walk.low, walk.high))
        limits = close[:-1, None] * (1 + np.concatenate([offsets, -offsets]))
        if all(np.abs(limits / price[1:, None] - 1).min() > 1e-6 for price in (low, high)):
            return walk
    raise AssertionError("no market without near-ties")


def case(preset, n_episodes, compute_dtype, seed=0):
    config = dataclasses.replace(PRESETS[preset], n_episodes=n_episodes, compute_dtype=compute_dtype)
    params = jt.init_ppo(jax.random.key(seed), config, 51)
    params.actor["policy_output"]["kernel"] *= 30.0  # the initial policy is nearly uniform
    starts = np.random.default_rng(seed).choice(market().valid_starts(EPISODE), n_episodes)
    return config, params, jt.env.reset(market(), config.env, starts), jax.random.key(seed + 1)


def check(config, params, start, key, results):
    """The scan agrees on the same actions, and they are what the network and the uniform numbers choose."""
    experience, _ = results
    expected = jt.collect_ppo(params, market(), start, key, config, backend="xla", actions=experience.actions)
    assert_collections_agree(results, expected, config, TOLERANCE[config.compute_dtype])
    uniforms = jax.random.uniform(jax.random.split(key, 2)[0], experience.actions.shape)
    assert_sampled(experience, market(), params.actor, uniforms, WIDTH[config.compute_dtype], config.negative_slope)
    assert np.asarray(experience.terminated).any()
    assert np.asarray(experience.truncated).any()


@pytest.mark.parametrize("compute_dtype", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("n_episodes", [128, 1003])  # a lane a block; eight, the last of them ragged
@pytest.mark.parametrize("preset", PRESETS)
def test_compiled_and_scan_agree(preset, n_episodes, compute_dtype):
    config, params, start, key = case(preset, n_episodes, compute_dtype)
    results = jt.collect_ppo(params, market(), start, key, config, backend="pallas")
    check(config, params, start, key, results)
    middle = results[1]  # once more, from the middle of episodes
    check(config, params, middle, key, jt.collect_ppo(params, market(), middle, key, config, backend="pallas"))


@pytest.mark.parametrize("compute_dtype", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("n_episodes", [8203, 16_411])  # the larger tiles, ragged
def test_large_tiles_agree(n_episodes, compute_dtype):
    config, params, start, key = case("net", n_episodes, compute_dtype)
    check(config, params, start, key, jt.collect_ppo(params, market(), start, key, config, backend="pallas"))


@pytest.mark.parametrize("n_episodes", [128, 1003])
def test_forced_actions_agree_and_give_the_same_as_sampling_them(n_episodes):
    config, params, start, key = case("net", n_episodes, "float32")
    sampled = jt.collect_ppo(params, market(), start, key, config, backend="pallas")
    forced = jt.collect_ppo(params, market(), start, key, config, backend="pallas", actions=sampled[0].actions)
    assert_collections_agree(forced, sampled, config, TOLERANCE["float32"])


def test_free_running_lanes_part_at_a_near_tie():
    """Sampled by the kernel and by the scan: up to its first difference a lane is the same, and that one is a tie."""
    config, params, start, key = case("net", 1003, "float32")
    (kernel, _), (scan, _) = (
        jt.collect_ppo(params, market(), start, key, config, backend=backend) for backend in ("pallas", "xla")
    )
    differs = np.asarray(kernel.actions != scan.actions)
    assert differs.any(axis=0).mean() < 0.01  # 60 draws a lane, 1e-6 wide ties at 45 places
    uniforms = jax.random.uniform(jax.random.split(key, 2)[0], differs.shape)
    for experience in (kernel, scan):  # both sides of a tie
        assert_sampled(experience, market(), params.actor, uniforms, WIDTH["float32"], config.negative_slope)


def test_vmap_over_seeds_agrees():
    cases = [case("net", 128, "bfloat16", seed) for seed in range(2)]
    config = cases[0][0]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(own for _, *own in cases))
    together = jax.vmap(lambda p, s, k: jt.collect_ppo(p, market(), s, k, config, backend="pallas"))(*stacked)
    for i, (_, *own) in enumerate(cases):
        check(config, *own, jax.tree.map(lambda x, i=i: x[i], together))


def test_auto_takes_the_kernels_and_repeats_bitwise():
    config, params, start, key = case("net", 1003, "bfloat16")

    def collect(key):
        return jt.collect_ppo(params, market(), start, key, config)

    text = jax.jit(collect).lower(key).compile().as_text()
    assert all(name in text for name in ("rollout", "windowed_entropy", "discounted_sums"))
    jax.tree.map(np.testing.assert_array_equal, collect(key), collect(key))
