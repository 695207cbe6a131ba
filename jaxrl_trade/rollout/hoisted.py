"""What does not decide the next action, computed after the loop in large passes: values, curiosity, diversity, reward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

import pallas_kernels as pk
from jaxrl_trade import networks
from jaxrl_trade.config import AgentConfig, Backend, PPOConfig, RewardScales
from jaxrl_trade.env import diversity, reward
from jaxrl_trade.env.account import Account
from jaxrl_trade.market import Market
from jaxrl_trade.networks.factory import DIRECTIONS
from jaxrl_trade.rollout import lanes
from jaxrl_trade.rollout.experience import Transitions
from jaxrl_trade.rollout.memory import Reference, seen, then

Array = jax.Array
Rows = TypeVar("Rows")
MAX_ROWS = 1 << 18  # rows a pass takes at once: bounds the memory of its activations
CPU_ROWS = 1 << 11  # on a CPU: their activations stay in its caches, a fifth of the critic's time


def transitions(
    steps: pk.Steps, start: Account, window: Array, market: Market, config: AgentConfig, backend: Backend
) -> Transitions:
    """The rollout's steps `[L, N]` with the reward's parts that need no network (the curiosity bonus is 0 so far).

    Args:
      steps: of the rollout.
      start: the account it began with.
      window: `[N, W]`, the diversity window before the collection.
      market: the bars.
      config: of the run.
      backend: of the entropy kernel.
    """
    env, dtype = config.env, market.close.dtype
    account = lanes.account_of(steps, start, market, env)
    prices = market.prices_at(account["bar"])
    return Transitions(
        **account,
        action=steps.actions,
        log_prob=steps.log_probs,
        base=reward.base(
            account["equity_before"],
            account["equity_after"],
            account["position"],
            account["max_position"],
            prices.close,
            prices.next_close,
            account["cost"] + account["slippage"],
            env,
        ),
        diversity_penalty=diversity.penalties(steps.actions, account["step"], window, env.n_actions, dtype, backend),
        curiosity_bonus=jnp.zeros_like(account["equity_before"]),
        drawdown=reward.drawdown(account["equity_before"], env),
    )


def rewarded(
    t: Transitions, curiosity: Any, market: Market, scales: RewardScales, config: AgentConfig
) -> tuple[Transitions, Array]:
    """The transitions with their curiosity bonus, and the rewards `[L, N]` that the config's `reward_fn` makes of them.

    Args:
      t: of `transitions`.
      curiosity: weights of the curiosity model.
      market: the bars.
      scales: of the reward's parts.
      config: of the run.
    Raises:
      ValueError: rewards of another shape.
    """
    t = dataclasses.replace(t, curiosity_bonus=curiosity_bonus(curiosity, market, t, scales, config))
    rewards = (config.reward_fn or spec_reward)(t, scales, market, config.env)
    shape = None if rewards is None else jnp.shape(rewards)
    if shape != t.bar.shape:
        raise ValueError(
            f"reward_fn gives rewards of shape {shape}; it must give one for each step of each episode, [L, N] = {t.bar.shape}"
        )
    return t, jnp.asarray(rewards, t.base.dtype)


def spec_reward(t: Transitions, scales: Any, market: Market, env: Any) -> Array:
    """The default `reward_fn`: base (1 + barrier) + diversity + curiosity - drawdown; `[L, N]`, see `env.reward.total`."""
    del market, env
    return reward.total(t.base, t.barrier_label, t.diversity_penalty, t.curiosity_bonus, t.drawdown, scales)


def directions(t: Transitions, config: AgentConfig) -> Array:
    """0, 1 or 2 `[L, N]`: the action's exposure is short, flat or long."""
    exposure = config.env.execution.arrays().exposure
    return jnp.sign(exposure).astype(jnp.int32)[t.action] + 1


def prediction_errors(params: Any, market: Market, bar: Array, direction: Array, config: AgentConfig) -> Array:
    """Mean squared error `[...]` of the forecast of the next bar's features, for bars and directions `[...]`.

    0 at an instrument's last bar, which nothing follows.
    """
    model = networks.curiosity(config, market.n_features)
    seen = market.features_at(bar)[..., : model.outputs]
    target = market.features_at(bar + 1)[..., : model.outputs]
    one_hot = jax.nn.one_hot(direction, DIRECTIONS, dtype=seen.dtype)
    forecast = model.from_projection(params, model.project(params, seen), one_hot)
    error = jnp.mean((forecast - target) ** 2, axis=-1)
    return jnp.where(market.is_last(bar), 0.0, error)


def curiosity_bonus(params: Any, market: Market, t: Transitions, scales: RewardScales, config: AgentConfig) -> Array:
    """min(prediction error, curiosity_max_reward), `[L, N]`: through a `[T, 3]` table where that has fewer rows."""
    direction = directions(t, config)
    if DIRECTIONS * market.n_bars <= t.bar.size:
        bars = jnp.arange(market.n_bars)[:, None]
        table = prediction_errors(params, market, bars, jnp.arange(DIRECTIONS), config)
        errors = table[t.bar, direction]
    else:
        rows = t.bar.reshape(-1), direction.reshape(-1)
        errors = in_chunks(lambda r: prediction_errors(params, market, *r, config), rows, MAX_ROWS).reshape(t.bar.shape)
    return jnp.minimum(errors, scales.curiosity_max_reward)


def values(params: Any, t: Transitions, market: Market, config: PPOConfig, backend: Backend) -> tuple[Array, Array]:
    """V(obs_t) and V(next_obs_t before any restart), `[L, N]` each; the second is arbitrary where `time_limit` never looks.

    Within an episode V(next_obs_t) is V(obs_{t+1}); only what a truncation or the collection's end cuts off is valued apart.
    """
    env, (length, n_episodes) = config.env, t.bar.shape
    is_cut = env.time_limit == "bootstrap"
    order, cuts = _cuts(t.truncated, env.episode_length) if is_cut else (None, jnp.zeros((0, n_episodes), jnp.int32))
    apart = then(t, jnp.concatenate([jnp.full((1, n_episodes), length - 1), cuts]), market, env)
    rows = jax.tree.map(lambda x, y: jnp.concatenate([x, y]).reshape(-1), seen(t, env), apart)
    value = critic_values(params, rows, market, config, backend).reshape(-1, n_episodes)
    next_value = value[1 : length + 1]
    if order is not None:
        next_value = jnp.where(t.truncated, jnp.take_along_axis(value[length + 1 :], order, axis=0), next_value)
    return value[:length], next_value


def _cuts(truncated: Array, episode_length: int) -> tuple[Array, Array]:
    """Where each lane is truncated: for every row which of its cuts comes next, `[L, N]`, and each cut's row, `[K, N]`.

    A lane is truncated at most once in every episode_length steps, hence K; cuts that do not exist lie in the last row.
    """
    length = len(truncated)
    most = 1 + (length - 1) // episode_length
    done = jnp.cumsum(truncated, axis=0)
    before = done - truncated
    row = jnp.stack([(done <= k).sum(0) for k in range(most)])
    return jnp.minimum(before, most - 1), jnp.minimum(row, length - 1)


def critic_values(params: Any, rows: Reference, market: Market, config: PPOConfig, backend: Backend) -> Array:
    """V `[B]` of observations that are referred to: in one launch where there is a kernel, else MAX_ROWS at a time."""
    critic = networks.critic(config)
    account = jnp.stack([rows.equity, rows.position, jnp.full_like(rows.equity, config.env.spread)], axis=-1)
    value = critic.evaluate_gathered(params, pk.Gathered(market.features, rows.bar, account), backend)
    if value is not None:
        return value[:, 0]

    def evaluate(part: Reference) -> Array:
        return critic.evaluate(params, part.observe(market, config.env), "xla")[..., 0]

    return in_chunks(evaluate, rows, CPU_ROWS if jax.default_backend() == "cpu" else MAX_ROWS)


def in_chunks(function: Callable[[Rows], Array], rows: Rows, most: int) -> Array:
    """`function` over rows, a pytree of `[B]`, at most `most` of them at a time."""
    if jax.tree.leaves(rows)[0].size <= most:
        return function(rows)
    return jax.lax.map(function, rows, batch_size=most)
