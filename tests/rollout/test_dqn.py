"""A DQN collection is the environment's own steps; its memory refers to what they saw, and its targets are the formula's."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade import networks
from jaxrl_trade.config import DQNConfig
from jaxrl_trade.rollout import collect_dqn
from jaxrl_trade.rollout.dqn import explore, explored
from tests.rollout.markets import random_market

N, L, EPISODE, GAMMA = 5, 24, 11, 0.99
MARKET = random_market()
SMALL = {"shared_hidden": (8, 8), "head_hidden": 32, "curiosity_hidden": (4,)}
RULES = {"episode_length": EPISODE, "diversity_window": 7}
SIZES = {"n_episodes": N, "timesteps_per_episode": L, "replay_capacity": 512, "learning_starts": 0, **SMALL}
CONFIGS = {
    "terminal": DQNConfig(env=jt.EnvConfig(**RULES), **SIZES),
    "bootstrap, double": DQNConfig.net(
        env=jt.EnvConfig.net(leverage=3.0, ruin_fraction=0.8, **RULES), double=True, **SIZES
    ),
}


@dataclasses.dataclass
class Case:
    """A collection with given draws, and the same by single steps of the environment."""

    config: DQNConfig
    online: dict
    target: dict
    uniforms: np.ndarray
    experience: object
    observations: np.ndarray  # [L, N, K], acted on
    following: np.ndarray  # [L, N, K], before any restart
    outcomes: object
    after: object
    state: object


@pytest.fixture(scope="module", params=CONFIGS)
def case(request):
    config = CONFIGS[request.param]
    params, other = (networks.init_dqn(jax.random.key(i), config, MARKET.n_features) for i in (1, 2))
    # lively advantages: the initial ones are nearly equal
    for p in (params, other):
        p.dueling["advantage_output"]["kernel"] *= 100.0
    rng = np.random.default_rng(3)
    uniforms = rng.random((L, N, 2)).astype(np.float32)
    starts = MARKET.valid_starts(EPISODE)
    restarts = rng.choice(starts, (L, N)).astype(np.int32)
    state = jt.env.reset(MARKET, config.env, starts[:N])
    experience, after = collect_dqn(
        params,
        MARKET,
        state,
        jax.random.key(4),
        config,
        target=other.dueling,
        epsilon=0.5,
        uniforms=uniforms,
        restart_bars=restarts,
    )

    def step(state, draws):
        action, restart = draws
        obs = jt.env.observe(state, MARKET, config.env)
        state, outcome = jt.env.step(state, action, restart, MARKET, config.env)
        return state, (obs, outcome)

    state, (observations, outcomes) = jax.jit(lambda s, d: jax.lax.scan(step, s, d))(
        state, (experience.actions, jnp.asarray(restarts))
    )
    return Case(
        config=config,
        online=params.dueling,
        target=other.dueling,
        uniforms=uniforms,
        experience=experience,
        observations=np.asarray(observations),
        following=np.asarray(outcomes.next_obs),
        outcomes=outcomes,
        after=after,
        state=state,
    )


def test_a_collection_is_the_environment_s_own_steps(case):
    t = case.experience.transitions
    assert int((case.outcomes.terminated | case.outcomes.truncated).sum()) >= N  # episodes end inside
    for name in ("terminated", "truncated", "barrier_label"):
        np.testing.assert_array_equal(getattr(t, name), getattr(case.outcomes, name))
    np.testing.assert_allclose(t.equity_after, case.outcomes.equity_after, rtol=1e-6)  # two programs of one arithmetic
    np.testing.assert_allclose(t.base, case.outcomes.base, atol=1e-3)  # 1000 x log return, float32
    np.testing.assert_allclose(t.diversity_penalty, case.outcomes.diversity_penalty, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), case.after, case.state)


def test_actions_are_random_below_epsilon_and_greedy_above_it(case):
    u1, u2 = case.uniforms[..., 0], case.uniforms[..., 1]
    q = plain_q(case, case.online, case.observations)
    actual = np.asarray(case.experience.actions)
    is_random = u1 < np.float32(0.5)
    assert 0.2 < is_random.mean() < 0.8
    np.testing.assert_array_equal(actual[is_random], np.minimum(np.floor(u2 * 45), 44)[is_random])
    clear = np.sort(q, axis=-1)[..., -1] - np.sort(q, axis=-1)[..., -2] > 1e-4  # elsewhere rounding may choose
    assert clear.mean() > 0.5
    np.testing.assert_array_equal(actual[~is_random & clear], q.argmax(-1)[~is_random & clear])


def test_log_probs_are_those_of_the_epsilon_greedy_policy(case):
    q = plain_q(case, case.online, case.observations)
    clear = np.sort(q, axis=-1)[..., -1] - np.sort(q, axis=-1)[..., -2] > 1e-4
    is_greedy = np.asarray(case.experience.actions) == q.argmax(-1)
    expected = np.log(np.where(is_greedy, 0.5, 0.0) + 0.5 / 45)
    np.testing.assert_allclose(np.asarray(case.experience.log_prob)[clear], expected[clear], rtol=1e-5)


def test_the_memory_refers_to_what_was_seen_and_to_what_followed_the_bundle(case):
    memory, env = case.experience.memory, case.config.env
    np.testing.assert_allclose(memory.seen.observe(MARKET, env), case.observations, rtol=1e-5, atol=1e-6)
    last = last_rows(case)
    expected = np.take_along_axis(case.following, last[..., None], axis=0)
    np.testing.assert_allclose(memory.then.observe(MARKET, env), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(memory.action, case.experience.actions)


def test_rewards_are_bundled_and_a_truncated_episode_bootstraps_unless_its_time_limit_is_terminal(case):
    t, last = case.experience.transitions, last_rows(case)
    rewards, row = np.asarray(case.experience.rewards, np.float64), np.arange(L)[:, None]
    steps = last - row + 1
    total = sum(
        np.where(k < steps, GAMMA**k * np.take_along_axis(rewards, np.minimum(row + k, L - 1) + 0 * last, 0), 0)
        for k in range(3)
    )
    np.testing.assert_allclose(case.experience.memory.reward, total, rtol=1e-4, atol=1e-4)  # float32
    ends = np.asarray(t.terminated)
    if case.config.env.time_limit == "terminal":
        ends = ends | np.asarray(t.truncated)
    discount = np.where(np.take_along_axis(ends, last, 0), 0, GAMMA**steps)
    np.testing.assert_allclose(case.experience.memory.discount, discount, rtol=1e-5)
    assert np.asarray(t.truncated).any()


def test_targets_and_td_errors_are_the_formula_s(case):
    memory = case.experience.memory
    following = np.take_along_axis(case.following, last_rows(case)[..., None], axis=0)
    target_q = plain_q(case, case.target, following)
    chooser = plain_q(case, case.online, following) if case.config.double else target_q
    best = np.take_along_axis(target_q, chooser.argmax(-1)[..., None], -1)[..., 0]
    y = np.asarray(memory.reward) + np.asarray(memory.discount) * best
    q = plain_q(case, case.online, case.observations)
    taken = np.take_along_axis(q, np.asarray(memory.action)[..., None], -1)[..., 0]
    np.testing.assert_allclose(case.experience.targets, y, rtol=1e-4, atol=1e-3)  # float32; values around 10
    np.testing.assert_allclose(case.experience.td_errors, taken - y, rtol=1e-4, atol=1e-3)


def test_forced_actions_are_taken_and_the_draws_come_from_the_key():
    config = CONFIGS["terminal"]
    params = networks.init_dqn(jax.random.key(1), config, MARKET.n_features)
    state = jt.env.reset(MARKET, config.env, MARKET.valid_starts(EPISODE)[:N])
    key = jax.random.key(5)
    forced = np.random.default_rng(6).integers(0, 45, (L, N))
    experience, _ = collect_dqn(params, MARKET, state, key, config, actions=forced)
    np.testing.assert_array_equal(experience.actions, forced)
    drawn, _ = collect_dqn(params, MARKET, state, key, config)
    key_uniforms, key_restarts = jax.random.split(key, 2)
    given, _ = collect_dqn(
        params,
        MARKET,
        state,
        jax.random.key(6),
        config,
        uniforms=jax.random.uniform(key_uniforms, (L, N, 2)),
        restart_bars=MARKET.draw_starts(key_restarts, (L, N), EPISODE),
    )
    jax.tree.map(np.testing.assert_array_equal, given, drawn)


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        ({"actions": np.full((L, N), 45)}, r"action\[0\] = 45 is not in \[0, 45\)"),
        ({"actions": np.zeros((N, L), int)}, rf"actions has shape \({N}, {L}\); .* \[L, N\] = \({L}, {N}\)"),
        ({"actions": 0}, r"actions has shape \(\)"),
        ({"uniforms": np.zeros((L, N))}, rf"uniforms has shape \({L}, {N}\); .* \[L, N, 2\] = \({L}, {N}, 2\)"),
        ({"uniforms": np.zeros((L, N, 3))}, rf"uniforms has shape \({L}, {N}, 3\)"),
        ({"restart_bars": np.zeros(N, int)}, rf"restart_bars has shape \({N},\); .* \[L, N\] = \({L}, {N}\)"),
        ({"restart_bars": np.full((L, N), 115)}, r"restart_bars\[0\] = 115 leaves 4 bars .* episode_length is 11"),
    ],
)
def test_draws_that_do_not_fit_are_refused(draws, message):
    config = CONFIGS["terminal"]
    params = networks.init_dqn(jax.random.key(1), config, MARKET.n_features)
    state = jt.env.reset(MARKET, config.env, MARKET.valid_starts(EPISODE)[:N])
    with pytest.raises(ValueError, match=message):
        collect_dqn(params, MARKET, state, jax.random.key(5), config, **draws)


def test_exploration_reaches_every_action_and_the_greedy_one_is_left_to_the_rollout():
    uniforms = jnp.array([[0.0, 0.0], [0.29, 0.999], [0.0, np.nextafter(np.float32(1), 0)], [0.3, 0.9]])
    np.testing.assert_array_equal(explore(uniforms, 0.3, 4), [0, 3, 3, -1])
    np.testing.assert_array_equal(explore(jnp.zeros((4, 2)), 0.0, 4), [-1] * 4)
    of_greedy = jnp.array([0.0, -np.inf])  # the greedy action and another
    np.testing.assert_allclose(np.exp(explored(of_greedy, 0.3, 4)), [0.775, 0.075], rtol=1e-5)
    np.testing.assert_array_equal(explored(of_greedy, 0.0, 4), of_greedy)


def plain_q(case: Case, weights: dict, obs: np.ndarray) -> np.ndarray:
    return np.asarray(networks.dueling(case.config).apply({"params": weights}, obs))


def last_rows(case: Case) -> np.ndarray:
    """Row of the last of up to 3 steps bundled, `[L, N]`."""
    done = np.asarray(case.outcomes.terminated | case.outcomes.truncated)
    last = np.zeros((L, N), int)
    for t, n in np.ndindex(L, N):
        last[t, n] = next((k for k in range(t, min(t + 2, L - 1)) if done[k, n]), min(t + 2, L - 1))
    return last
