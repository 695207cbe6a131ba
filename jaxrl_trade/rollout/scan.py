"""The sequential part of a collection as a `lax.scan`: actor, sampling and account, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl_trade import networks
from jaxrl_trade.config import EnvConfig, PPOConfig
from jaxrl_trade.env import account as accounts
from jaxrl_trade.env.trading import look_up
from jaxrl_trade.market import Market
from jaxrl_trade.rollout import sampling

Array = jax.Array
Policy = Callable[[Array, Array], Array]  # bar [N], account values [N, 3] -> logits [N, A]
Choose = Callable[[Array, Any], Array]  # logits [N, A], the step's draw -> action [N]


class SplitNetwork(Protocol):
    """A network whose first layer splits into a part of the bar and a part of the account; see `networks.mlp`."""

    def project(self, params: Any, features: Array) -> Array:
        """The features' part of the first layer."""

    def from_projection(self, params: Any, projected: Array, account_values: Array) -> Array:
        """The outputs, from that part and the account values."""


def rollout(
    policy: Policy,
    choose: Choose,
    market: Market,
    account: accounts.Account,
    draws: Any,
    restart_bars: Array,
    config: EnvConfig,
) -> tuple[accounts.Account, dict[str, Array]]:
    """Trades L steps of N episodes.

    Args:
      policy: logits of a bar and the account values.
      choose: the action, from logits and one step's draw.
      market: the bars.
      account: where the episodes stand.
      draws: pytree with leading axis L, handed to `choose` step by step.
      restart_bars: `[L, N]` int32, where an episode that ends at that step starts afresh.
      config: the account's rules.

    Returns:
      The account after L steps, and per step `[L, N]`: the fields of `StepOutcome`, and bar, step, action, log_prob,
      position_before, max_position.
    """
    table = config.execution.arrays(market.close.dtype)

    def step(before: accounts.Account, inputs: tuple[Any, Array]) -> tuple[accounts.Account, dict[str, Array]]:
        draw, restart_bar = inputs
        prices = market.prices_at(before.bar)
        equity = before.cash + before.position * prices.close
        relative = accounts.portfolio(equity, before.position, before.max_position, config)
        logits = policy(before.bar, jnp.stack([*relative, jnp.full_like(equity, config.spread)], axis=-1))
        action = choose(logits, draw)
        moved, outcome = accounts.advance(before, look_up(table, action), prices, config)
        done = outcome.terminated | outcome.truncated
        after = accounts.restart_where(done, moved, restart_bar, market.close_at(restart_bar), config)
        record = outcome._asdict() | {
            "bar": before.bar,
            "step": before.step,
            "action": action,
            "log_prob": sampling.log_prob(logits, action),
            "position_before": before.position,
            "max_position": before.max_position,
        }
        return after, record

    inside = jnp.clip(jnp.asarray(restart_bars, jnp.int32), 0, market.n_bars - 1)
    return jax.lax.scan(step, account, (draws, inside))


def actor_policy(params: Any, market: Market, n_rows: int, config: PPOConfig) -> Policy:
    """The actor as a policy; see `network_policy`."""
    return network_policy(networks.actor(config), params, market, n_rows)


def network_policy(network: SplitNetwork, params: Any, market: Market, n_rows: int) -> Policy:
    """A network, with the features' part of its first layer taken out of the loop where that is less work.

    Args:
      network: from observations to logits.
      params: its weights.
      market: the bars.
      n_rows: observations that will be asked for; with more bars than that, the rows visited are projected one by one.
    """
    if market.n_bars <= n_rows:
        table = network.project(params, market.features)
        return lambda bar, values: network.from_projection(params, table[bar], values)
    return lambda bar, values: network.from_projection(params, network.project(params, market.features_at(bar)), values)
