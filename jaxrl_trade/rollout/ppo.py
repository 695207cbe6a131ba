"""Experience collection for PPO: the rollout, then everything that follows it, down to advantages and returns."""

from __future__ import annotations

import functools
from typing import Any, get_args

import jax
import jax.numpy as jnp

from jaxrl_trade.advantages import gae
from jaxrl_trade.config import Backend, PPOConfig, PPOHypers
from jaxrl_trade.env import diversity
from jaxrl_trade.env.trading import EnvState
from jaxrl_trade.market import Market
from jaxrl_trade.networks import PPOParams
from jaxrl_trade.rollout import hoisted, sequential
from jaxrl_trade.rollout.draws import check_draws, complete
from jaxrl_trade.rollout.experience import Experience

Array = jax.Array


def collect_ppo(
    params: PPOParams,
    market: Market,
    state: EnvState,
    key: Array,
    config: PPOConfig,
    hypers: PPOHypers | None = None,
    backend: Backend = "auto",
    actions: Any = None,
    uniforms: Any = None,
    restart_bars: Any = None,
    axis: str | None = None,
) -> tuple[Experience, EnvState]:
    """L = `config.timesteps_per_episode` steps of the N episodes in `state`, complete with advantages.

    Args:
      params: weights of actor, critic and curiosity model.
      market: the bars.
      state: where the episodes stand, from `env.reset` or the last collection.
      key: typed key of the draws; `split(key, 2)` gives the uniforms and the restart bars.
      config: of the run.
      hypers: traced hyperparameters; None takes the config's.
      backend: of the rollout and the passes after it: "auto" takes the fused kernels on a GPU and XLA (`lax.scan`) elsewhere;
        "pallas", "interpret" and "xla" are as in `pallas_kernels`.
      actions: `[L, N]` int32, forces the actions; None samples them.
      uniforms: `[L, N]` in [0, 1), instead of drawing them.
      restart_bars: `[L, N]` int32 valid starts, instead of drawing them.
      axis: that all episodes are divided over, see `collectives`; these N get the draws they would get beside the others.

    Returns:
      The experience, and the state to go on from.

    Raises:
      ValueError: an unknown backend, draws of another shape than `[L, N]`, or concrete actions or restart bars that are out of
        range.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend = {backend!r} must be one of {', '.join(map(repr, get_args(Backend)))}")
    check_draws(actions, uniforms, restart_bars, state, market, config)
    hypers = config.hypers if hypers is None else hypers
    return _collect(
        params, market, state, key, hypers, actions, uniforms, restart_bars, config=config, backend=backend, axis=axis
    )


@functools.partial(jax.jit, static_argnames=("config", "backend", "axis"))
def _collect(
    params: PPOParams,
    market: Market,
    state: EnvState,
    key: Array,
    hypers: PPOHypers,
    actions: Array | None,
    uniforms: Array | None,
    restart_bars: Array | None,
    *,
    config: PPOConfig,
    backend: Backend,
    axis: str | None,
) -> tuple[Experience, EnvState]:
    env = config.env
    uniforms, restart_bars = complete(uniforms, restart_bars, key, state, market, config, axis)
    draws = uniforms if actions is None else jnp.asarray(actions, jnp.int32)
    account, steps = sequential.rollout_actor(params.actor, market, state.account, draws, restart_bars, config, backend)
    t = hoisted.transitions(steps, state.account, state.window, market, config, backend)
    t, rewards = hoisted.rewarded(t, params.curiosity, market, hypers.reward, config)
    values, next_values = hoisted.values(params.critic, t, market, config, backend)
    ends = t.terminated if env.time_limit == "bootstrap" else t.terminated | t.truncated
    advantages, returns = gae(rewards, values, next_values, ends, t.truncated, hypers.gamma, hypers.gae_lambda, backend)
    experience = Experience(
        transitions=t,
        rewards=rewards,
        values=values,
        next_values=next_values,
        advantages=advantages,
        returns=returns,
        env=env,
    )
    window = diversity.window_after(t.action, account.step, state.window)
    return experience, EnvState(account=account, window=window)
