"""Draws that a caller gives to a collection, checked at the border."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl_trade.config import AgentConfig
from jaxrl_trade.env.trading import EnvState, check_actions
from jaxrl_trade.market import Market


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
