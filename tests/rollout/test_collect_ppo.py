"""A collection is the environment's own steps, and everything hoisted out of the loop is what a step-by-step account would give."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade import networks
from jaxrl_trade.rollout import hoisted
from tests.rollout.markets import SMALL, random_market

N, L = 6, 40
MARKET = random_market()
PRESETS = {
    "plan": jt.PPOConfig(
        env=jt.EnvConfig(episode_length=17, barrier_max_bars=9, diversity_window=7, initial_capital=400.0),
        n_episodes=N,
        timesteps_per_episode=L,
        **SMALL,
    ),
    "net": jt.PPOConfig.net(
        env=jt.EnvConfig.net(
            episode_length=17, barrier_max_bars=9, diversity_window=7, leverage=3.0, ruin_fraction=0.8
        ),
        n_episodes=N,
        timesteps_per_episode=L,
        **SMALL,
    ),
}


@pytest.fixture(scope="module", params=PRESETS)
def collected(request):
    """The second of two collections, so that windows and episodes begin in the middle; and the same by single steps."""
    config = PRESETS[request.param]
    params = jt.init_ppo(jax.random.key(1), config, MARKET.n_features)
    # a lively policy: the initial one is nearly uniform
    params = dataclasses.replace(params, actor=jax.tree.map(lambda x: 3 * x, params.actor))
    state = jt.env.reset(MARKET, config.env, MARKET.valid_starts(17)[:N])
    _, middle = jt.collect_ppo(params, MARKET, state, jax.random.key(2), config)
    key = jax.random.key(3)
    experience, after = jt.collect_ppo(params, MARKET, middle, key, config)
    steps, observations = [], []
    restarts = MARKET.draw_starts(jax.random.split(key, 2)[1], (L, N), 17)
    step = jax.jit(lambda s, a, r: (jt.env.observe(s, MARKET, config.env), jt.env.step(s, a, r, MARKET, config.env)))
    state = middle
    for t in range(L):
        obs, (state, outcome) = step(state, experience.actions[t], restarts[t])
        observations.append(obs)
        steps.append(outcome)
    outcomes = jax.tree.map(lambda *x: jnp.stack(x), *steps)
    return config, params, experience, after, outcomes, jnp.stack(observations), state


def test_a_collection_is_the_environments_own_steps(collected):
    config, _, experience, after, outcomes, observations, state = collected
    assert int((outcomes.terminated | outcomes.truncated).sum()) >= N  # episodes end inside
    for field in dataclasses.fields(outcomes):
        if field.name != "next_obs":
            expected, actual = getattr(outcomes, field.name), getattr(experience, field.name)
            np.testing.assert_allclose(
                actual, expected, rtol=1e-5, atol=2e-3, err_msg=field.name
            )  # float32, other fusions
    np.testing.assert_allclose(experience.observations(MARKET), observations, rtol=1e-5, atol=1e-6)
    window = lambda s: np.where(np.arange(7) < np.asarray(s.account.step)[:, None], s.window, -1)  # noqa: E731
    np.testing.assert_array_equal(window(after), window(state))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-3), after.account, state.account)


def test_the_portfolio_is_the_observations_last_three_columns(collected):
    _, _, experience, _, _, observations, _ = collected
    np.testing.assert_allclose(experience.portfolio, observations[..., -3:], rtol=1e-5, atol=1e-6)


def test_log_probs_and_values_are_the_networks_on_the_observations(collected):
    config, params, experience, _, outcomes, observations, _ = collected
    logits = np.asarray(networks.actor(config).evaluate(params.actor, observations), np.float64)
    softmax = np.exp(logits - logits.max(-1, keepdims=True))
    chance = softmax / softmax.sum(-1, keepdims=True)
    expected = np.log(np.take_along_axis(chance, np.asarray(experience.actions)[..., None], -1)[..., 0])
    np.testing.assert_allclose(experience.log_probs, expected, atol=2e-5)
    values = networks.critic(config).evaluate(params.critic, observations)[..., 0]
    np.testing.assert_allclose(experience.values, values, atol=2e-5)
    next_values = networks.critic(config).evaluate(params.critic, outcomes.next_obs)[..., 0]
    # V(next_obs) before any reset wherever it is used: not where an episode ends without a bootstrap
    is_end = outcomes.terminated | outcomes.truncated if config.env.time_limit == "terminal" else outcomes.terminated
    np.testing.assert_allclose(np.where(is_end, 0, experience.next_values), np.where(is_end, 0, next_values), atol=2e-5)


def test_actions_are_the_inverse_of_the_cumulative_distribution(collected):
    config, params, experience, _, _, observations, _ = collected
    uniforms = np.asarray(jax.random.uniform(jax.random.split(jax.random.key(3), 2)[0], (L, N)), np.float64)
    logits = np.asarray(networks.actor(config).evaluate(params.actor, observations), np.float64)
    cumulative = np.cumsum(np.exp(logits - logits.max(-1, keepdims=True)), -1)
    expected = np.minimum((cumulative <= (uniforms * cumulative[..., -1])[..., None]).sum(-1), config.n_actions - 1)
    # a near-tie: float32 sums may fall on the other side
    is_near = np.abs(uniforms[..., None] - cumulative / cumulative[..., -1:]).min(-1) < 1e-5
    assert is_near.mean() < 0.05
    np.testing.assert_array_equal(np.asarray(experience.actions)[~is_near], expected[~is_near])


def test_the_reward_is_the_sum_of_its_parts(collected):
    config, params, experience, _, outcomes, observations, _ = collected
    s = config.hypers.reward
    bonus = _bonus(params.curiosity, experience, config)
    np.testing.assert_allclose(experience.curiosity_bonus, bonus, rtol=1e-4, atol=1e-6)
    expected = (
        np.asarray(outcomes.base, np.float64) * (1 + s.barrier_scale * np.asarray(outcomes.barrier_label))
        + s.diversity_scale * np.asarray(outcomes.diversity_penalty)
        + s.curiosity_scale * bonus
        - s.risk_weight * np.asarray(outcomes.drawdown)
    )
    np.testing.assert_allclose(experience.rewards, expected, rtol=1e-4, atol=1e-3)


def test_advantages_follow_the_time_limit(collected):
    config, _, experience, _, outcomes, _, _ = collected
    terminated = outcomes.terminated | (outcomes.truncated & (config.env.time_limit == "terminal"))
    gamma, lam = config.hypers.gamma, config.hypers.gae_lambda
    r, v, nv = (np.asarray(x, np.float64) for x in (experience.rewards, experience.values, experience.next_values))
    expected, ahead = np.zeros((L, N)), np.zeros(N)
    for t in reversed(range(L)):
        delta = r[t] + gamma * np.where(terminated[t], 0, nv[t]) - v[t]
        ahead = delta + gamma * lam * np.where(terminated[t] | outcomes.truncated[t], 0, ahead)
        expected[t] = ahead
    np.testing.assert_allclose(experience.advantages, expected, rtol=1e-4, atol=1e-3)


def test_flatten_lays_episode_after_episode(collected):
    _, _, experience, _, outcomes, observations, _ = collected
    batch = experience.flatten(MARKET)
    assert batch.states.shape == (N * L, MARKET.n_features + 3)
    np.testing.assert_array_equal(batch.actions.reshape(N, L).T, experience.actions)
    np.testing.assert_array_equal(batch.dones.reshape(N, L).T, outcomes.terminated | outcomes.truncated)
    np.testing.assert_allclose(batch.states.reshape(N, L, -1)[2, 5], observations[5, 2], rtol=1e-5, atol=1e-6)


def test_a_table_of_curiosity_and_single_rows_give_the_same_bonus(collected, monkeypatch):
    config, params, experience, _, _, _, _ = collected
    scales = jt.RewardScales(curiosity_max_reward=np.inf)
    t = experience.transitions
    long = jax.tree.map(lambda x: jnp.tile(x, (4, 1)), t)  # 960 transitions and 3 x 120 rows: through the table
    by_table = hoisted.curiosity_bonus(params.curiosity, MARKET, long, scales, config)[:L]
    by_row = hoisted.curiosity_bonus(params.curiosity, MARKET, t, scales, config)
    np.testing.assert_allclose(by_table, by_row, rtol=1e-5)


def test_large_passes_in_chunks_give_the_same_values(collected, monkeypatch):
    config, params, experience, _, _, _, _ = collected
    for most in ("MAX_ROWS", "CPU_ROWS"):
        monkeypatch.setattr(hoisted, most, 7 * N)  # 40 steps: five chunks of 7, and 5 left over
    value, next_value = hoisted.values(params.critic, experience.transitions, MARKET, config, "auto")
    np.testing.assert_allclose(value, experience.values, atol=1e-6)
    np.testing.assert_allclose(next_value, experience.next_values, atol=1e-6)


def test_forced_actions_and_given_draws_are_used():
    config = PRESETS["net"]
    params = jt.init_ppo(jax.random.key(1), config, MARKET.n_features)
    state = jt.env.reset(MARKET, config.env, np.zeros(N, int))
    actions = np.random.default_rng(0).integers(0, 45, (L, N))
    restarts = np.full((L, N), 23)
    experience, after = jt.collect_ppo(
        params, MARKET, state, jax.random.key(0), config, actions=actions, restart_bars=restarts
    )
    np.testing.assert_array_equal(experience.actions, actions)
    done = np.asarray(experience.terminated | experience.truncated)
    assert done.any()
    assert (np.asarray(experience.bar)[1:][done[:-1]] == 23).all()
    again, _ = jt.collect_ppo(
        params, MARKET, state, jax.random.key(0), config, uniforms=np.zeros((L, N)), restart_bars=restarts
    )
    assert not np.asarray(again.actions).any()  # u = 0 is the first action


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"actions": np.full((L, N), 45)}, r"action\[0\] = 45 is not in \[0, 45\)"),
        ({"actions": np.zeros((N, L), int)}, rf"actions has shape \({N}, {L}\); .* \[L, N\] = \({L}, {N}\)"),
        ({"actions": 0}, r"actions has shape \(\)"),
        ({"uniforms": np.zeros((L - 1, N))}, rf"uniforms has shape \({L - 1}, {N}\)"),
        ({"restart_bars": np.zeros(N, int)}, rf"restart_bars has shape \({N},\)"),
        ({"restart_bars": np.full((L, N), 110)}, r"restart_bars\[0\] = 110 leaves 9 bars .* episode_length is 17"),
    ],
)
def test_draws_out_of_range_are_refused(arguments, message):
    config = PRESETS["net"]
    params = jt.init_ppo(jax.random.key(1), config, MARKET.n_features)
    state = jt.env.reset(MARKET, config.env, np.zeros(N, int))
    with pytest.raises(ValueError, match=message):
        jt.collect_ppo(params, MARKET, state, jax.random.key(0), config, **arguments)


@pytest.mark.parametrize("rewards", [None, 0.0, np.zeros(3), np.zeros((N, L))])
def test_rewards_of_another_shape_are_refused(rewards):
    config = dataclasses.replace(PRESETS["net"], reward_fn=lambda *_: rewards)
    params = jt.init_ppo(jax.random.key(1), config, MARKET.n_features)
    state = jt.env.reset(MARKET, config.env, np.zeros(N, int))
    with pytest.raises(ValueError, match=rf"reward_fn gives rewards of shape .*; it must .* \[L, N\] = \({L}, {N}\)"):
        jt.collect_ppo(params, MARKET, state, jax.random.key(0), config)


def _bonus(params, experience, config):
    """The bonus from SPEC section 7, in NumPy float64."""
    features = np.asarray(MARKET.features, np.float64)
    bar = np.asarray(experience.bar)
    exposure = np.asarray(config.env.execution.exposure)[np.asarray(experience.actions)]
    x = np.concatenate([features[bar], np.eye(3)[np.sign(exposure).astype(int) + 1]], -1)
    first, last = (
        {k: np.asarray(v, np.float64) for k, v in params[name].items()}
        for name in ("forward_layer_0", "forward_output")
    )
    h = x @ first["kernel"] + first["bias"]
    forecast = np.where(h > 0, h, 0.01 * h) @ last["kernel"] + last["bias"]
    return np.minimum(((forecast - features[bar + 1]) ** 2).mean(-1), config.hypers.reward.curiosity_max_reward)
