"""On a GPU: what the compiled kernel collects for DQN is what the scan collects, in every precision."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from tests.rollout.agreement import assert_collections_agree, assert_explored
from tests.rollout.test_fused_gpu import EPISODE, RULES, TOLERANCE, L, market

pytestmark = pytest.mark.gpu

EPSILON = 0.3
OF_NETWORKS = ("rewards", "targets", "td_errors")
PRESETS = {
    "plan": jt.DQNConfig(env=jt.EnvConfig(initial_capital=120.0, **RULES), timesteps_per_episode=L),
    "net": jt.DQNConfig.net(env=jt.EnvConfig.net(leverage=2.0, **RULES), timesteps_per_episode=L),
}


def case(preset, n_episodes, compute_dtype, seed=0):
    sizes = {"n_episodes": n_episodes, "replay_capacity": 2**20, "compute_dtype": compute_dtype}
    config = dataclasses.replace(PRESETS[preset], backend="pallas", **sizes)
    params = jt.init_dqn(jax.random.key(seed), config, 51)
    params.dueling["advantage_output"]["kernel"] *= 100.0  # the initial advantages are nearly equal
    starts = np.random.default_rng(seed).choice(market().valid_starts(EPISODE), n_episodes)
    return config, params, jt.env.reset(market(), config.env, starts), jax.random.key(seed + 1)


def collect(config, params, start, key, **more):
    return jt.collect_dqn(params, market(), start, key, config, epsilon=EPSILON, **more)


def check(config, params, start, key, results):
    """The scan agrees on the same actions, and they are what the network and the uniform numbers choose."""
    experience, _ = results
    tolerance = TOLERANCE[config.compute_dtype]
    scanned = dataclasses.replace(config, backend="xla")
    expected = collect(scanned, params, start, key, actions=experience.actions)
    assert_collections_agree(results, expected, config, tolerance, of_networks=OF_NETWORKS)
    uniforms = jax.random.uniform(jax.random.split(key, 2)[0], (*experience.actions.shape, 2))
    assert_explored(experience, market(), params.dueling, uniforms, EPSILON, tolerance, config.negative_slope)
    assert np.asarray(experience.terminated).any()
    assert np.asarray(experience.truncated).any()


@pytest.mark.parametrize("compute_dtype", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize(("preset", "n_episodes"), [("plan", 128), ("net", 1003), ("net", 8203)])
def test_compiled_and_scan_agree(preset, n_episodes, compute_dtype):
    config, params, start, key = case(preset, n_episodes, compute_dtype)
    results = collect(config, params, start, key)
    check(config, params, start, key, results)
    middle = results[1]  # once more, from the middle of episodes
    check(config, params, middle, key, collect(config, params, middle, key))


def test_forced_actions_give_the_same_as_choosing_them():
    config, params, start, key = case("net", 1003, "float32")
    chosen = collect(config, params, start, key)
    forced = collect(config, params, start, key, actions=chosen[0].actions)
    assert_collections_agree(forced, chosen, config, TOLERANCE["float32"], of_networks=OF_NETWORKS)
    np.testing.assert_allclose(forced[0].transitions.log_prob, chosen[0].transitions.log_prob, rtol=1e-6)


def test_vmap_over_seeds_agrees():
    cases = [case("net", 128, "bfloat16", seed) for seed in range(2)]
    config = cases[0][0]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(own for _, *own in cases))
    together = jax.vmap(lambda p, s, k: collect(config, p, s, k))(*stacked)
    for i, (_, *own) in enumerate(cases):
        check(config, *own, jax.tree.map(lambda x, i=i: x[i], together))


def test_auto_takes_the_kernel_and_repeats_bitwise():
    config, params, start, key = case("net", 1003, "bfloat16")
    config = dataclasses.replace(config, backend="auto")

    def collected(key):
        return collect(config, params, start, key)

    assert "rollout" in jax.jit(collected).lower(key).compile().as_text()
    jax.tree.map(np.testing.assert_array_equal, collected(key), collected(key))
