"""DQN's episodes in one launch, interpreted, are what the scan collects: small networks, and the default one for three steps."""

from __future__ import annotations

import dataclasses
import logging

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.rollout import sequential
from pallas_kernels.rollout_plan import Tiles
from tests.rollout.agreement import assert_collections_agree, assert_explored
from tests.rollout.test_fused import MARKET, RULES, L, N, begin, tiles

EPSILON = 0.4
SIZES = {
    "shared_hidden": (40, 20),
    "head_hidden": 32,
    "curiosity_hidden": (4,),
    "n_episodes": N,
    "timesteps_per_episode": L,
    "learning_starts": 0,
    "backend": "interpret",
}
PLAN = jt.DQNConfig(env=jt.EnvConfig(initial_capital=60.0, ruin_fraction=0.85, episode_length=17, **RULES), **SIZES)
NET = jt.DQNConfig.net(
    env=jt.EnvConfig.net(leverage=2.0, ruin_fraction=0.8, episode_length=7, **RULES), double=True, **SIZES
)
EIGHT = Tiles(lanes=8, warps=4, columns=16)  # a ragged tile
WIDE = Tiles(lanes=16, warps=8, chunk=16, held=1, stages=2)  # a part of one


def lively(seed, config):
    """Parameters of a network that prefers some actions: the initial advantages are nearly equal."""
    params = jt.init_dqn(jax.random.key(seed), config, MARKET.n_features)
    params.dueling["advantage_output"]["kernel"] *= 100.0
    return params


def check(config, params, start, key, actual, tolerance=1e-5):
    """The scan with the same actions agrees, and they are what the network and the uniform numbers choose."""
    experience, _ = actual
    scanned = dataclasses.replace(config, backend="xla")
    expected = jt.collect_dqn(params, MARKET, start, key, scanned, epsilon=EPSILON, actions=experience.actions)
    assert_collections_agree(actual, expected, config, tolerance, of_networks=("rewards", "targets", "td_errors"))
    uniforms = jax.random.uniform(jax.random.split(key, 2)[0], (*experience.actions.shape, 2))
    assert_explored(experience, MARKET, params.dueling, uniforms, EPSILON, tolerance, config.negative_slope)
    assert len(np.unique(experience.actions)) > 10


@pytest.mark.parametrize(
    ("config", "cut"), [(PLAN, EIGHT), (NET, WIDE)], ids=["plan, on chip", "net, read in every step"]
)
def test_a_collection_agrees_also_from_the_middle_of_episodes(config, cut):
    params, state = lively(1, config), begin(0, config)
    with tiles(cut):
        for key in jax.random.split(jax.random.key(2), 2):
            experience, after = jt.collect_dqn(params, MARKET, state, key, config, epsilon=EPSILON)
            check(config, params, state, key, (experience, after))
            assert np.asarray(experience.terminated).any()
            assert np.asarray(experience.truncated).any()
            state = after


def test_vmap_over_seeds_and_bfloat16_agree():
    config = dataclasses.replace(NET, compute_dtype="bfloat16")
    cases = [(lively(seed, NET), begin(seed, NET), jax.random.key(seed)) for seed in range(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *cases)
    with tiles(WIDE):
        together = jax.vmap(lambda p, s, k: jt.collect_dqn(p, MARKET, s, k, config, epsilon=EPSILON))(*stacked)
    for i, case in enumerate(cases):
        check(config, *case, jax.tree.map(lambda x, i=i: x[i], together), tolerance=2e-2)


def test_the_default_network_agrees_and_one_step_of_forced_actions_does():
    sizes = {name: jt.DQNConfig.__dataclass_fields__[name].default for name in ("shared_hidden", "head_hidden")}
    config = dataclasses.replace(PLAN, timesteps_per_episode=4, **sizes)
    params, state, key = lively(1, config), begin(3, config), jax.random.key(0)
    actions = np.random.default_rng(0).integers(0, 45, (1, N))
    experience, after = jt.collect_dqn(params, MARKET, state, key, config, epsilon=EPSILON)
    check(config, params, state, key, (experience, after))
    config = dataclasses.replace(NET, timesteps_per_episode=1, train_every=1)
    params, state = lively(1, config), begin(3, config)
    with tiles(WIDE):
        actual, expected = (
            jt.collect_dqn(params, MARKET, state, key, dataclasses.replace(config, backend=backend), actions=actions)
            for backend in ("interpret", "xla")
        )
    assert_collections_agree(actual, expected, config, 1e-5, of_networks=("log_probs", "targets", "td_errors"))
    np.testing.assert_array_equal(actual[0].actions, actions)


class Own(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.outputs)(x)


def test_a_network_of_the_user_s_own_or_too_wide_is_scanned_and_the_log_says_so(caplog):
    def traced(config):
        params = jt.init_dqn(jax.random.key(0), config, MARKET.n_features)
        state, key = begin(0, config), jax.random.key(1)
        return str(jax.make_jaxpr(lambda: jt.collect_dqn(params, MARKET, state, key, config))())

    sequential._log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="jaxrl_trade"):
        assert "name=rollout" in traced(NET)
        assert "name=rollout" not in traced(dataclasses.replace(NET, backend="xla"))
        assert not caplog.messages
        assert "name=rollout" not in traced(dataclasses.replace(NET, network=Own))
        assert "name=rollout" not in traced(dataclasses.replace(NET, shared_hidden=(300, 20)))
    assert [message.split(": ")[1] for message in caplog.messages] == [
        "the network is the user's own",
        "a layer of 300 units is wider than 256",
    ]
