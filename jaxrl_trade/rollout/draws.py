"""The random draws of a collection: those that a caller gives, checked at the border, and those that are made."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_trade import collectives
from jaxrl_trade.config import AgentConfig
from jaxrl_trade.env.trading import EnvState, check_actions
from jaxrl_trade.market import Market

Array = jax.Array


def check_draws(
    actions: Any,
    uniforms: Any,
    restart_bars: Any,
    state: EnvState,
    market: Market,
    config: AgentConfig,
    per_choice: tuple[int, ...] = (),
) -> None:
    """Refuses draws that do not fit the collection; None passes.

    Args:
      actions, restart_bars: `[L, N]`.
      uniforms: `[L, N, *per_choice]`.
      state: of the N episodes.
      market: the bars.
      config: of the run, with L.
      per_choice: shape of the uniform numbers that one choice of an action takes.
    Raises:
      ValueError: another shape, or concrete actions or restart bars that are out of range.
    """
    shape = (config.timesteps_per_episode, *state.account.bar.shape)
    wanted = {
        "actions": (actions, shape),
        "uniforms": (uniforms, shape + per_choice),
        "restart_bars": (restart_bars, shape),
    }
    for name, (given, size) in wanted.items():
        if given is not None and jnp.shape(given) != size:
            axes = ", ".join(["L", "N", *map(str, size[2:])])
            raise ValueError(f"{name} has shape {jnp.shape(given)}; this collection takes [{axes}] = {size}")
    if actions is not None:
        check_actions(actions, config.n_actions)
    if restart_bars is not None:
        market.check_starts(restart_bars, config.env.episode_length, "restart_bars")


def complete(
    uniforms: Array | None,
    restart_bars: Array | None,
    key: Array,
    state: EnvState,
    market: Market,
    config: AgentConfig,
    axis: str | None,
    per_choice: tuple[int, ...] = (),
) -> tuple[Array, Array]:
    """The given draws, and in place of None new ones: uniforms `[L, N, *per_choice]` in [0, 1), restart bars `[L, N]`.

    Args:
      uniforms, restart_bars: as `check_draws` lets them pass.
      key: `split(key, 2)` gives the uniforms and the restart bars.
      state: of the N episodes.
      market: the bars.
      config: of the run, with L.
      axis: that all episodes are divided over, see `collectives`.
      per_choice: shape of the uniform numbers that one choice of an action takes.
    """
    shape = (config.timesteps_per_episode, state.account.bar.shape[0])
    key_uniforms, key_restarts = jax.random.split(key, 2)

    def starts(whole: tuple[int, ...]) -> Array:
        return market.draw_starts(key_restarts, whole, config.env.episode_length)

    def numbers(whole: tuple[int, ...]) -> Array:
        return jax.random.uniform(key_uniforms, whole, market.close.dtype)

    if restart_bars is None:
        restart_bars = collectives.share(starts, shape, 1, axis)
    if uniforms is None:
        uniforms = collectives.share(numbers, shape + per_choice, 1, axis)
    return uniforms, restart_bars
