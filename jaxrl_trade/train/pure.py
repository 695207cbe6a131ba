"""A whole run as one pure function of its key, whatever the agent: no host, no files, any transformation applies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxrl_trade.market import Market
from jaxrl_trade.train.arguments import check_config, check_hypers, check_key, check_market

Array = jax.Array


def make_train(
    kind: type, init_state: Callable[..., Any], update_step: Callable[..., Any], config: Any, market: Market
) -> Callable[[Array, Any], tuple[Any, Any]]:
    """`train(key, hypers=None) -> state, metrics [updates]` of an agent.

    Args:
      kind: of the config.
      init_state: (key, market, config) -> state.
      update_step: (state, hypers, market, config) -> state, metrics.
      config, market: of the run.
    Raises:
      ValueError: arguments of another kind, or a market without a valid start for the config's episodes.
    """
    check_config(config, kind)
    check_market("market", market)
    market.valid_starts(config.env.episode_length)

    def train(key: Array, hypers: Any = None) -> tuple[Any, Any]:
        check_key(key)
        hypers = config.hypers if hypers is None else hypers
        check_hypers(hypers, config)
        return run_updates(update_step, init_state(key, market, config), hypers, market, config, config.updates)

    return train


def run_updates(
    update_step: Callable[..., Any],
    state: Any,
    hypers: Any,
    market: Market,
    config: Any,
    updates: int,
    actions: Array | None = None,
) -> tuple[Any, Any]:
    """`updates` update steps in one program; metrics `[updates]`. `actions [updates, L, N]` forces the actions (tests)."""
    return jax.lax.scan(lambda s, a: update_step(s, hypers, market, config, a), state, actions, length=updates)
