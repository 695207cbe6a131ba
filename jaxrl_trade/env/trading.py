"""The environment, one step at a time: reset, observe, step.

Adds to the account what it leaves out: look-ups, the diversity window, restarts.

All functions take `[N]` episodes or a single one (scalars), so `jax.vmap` of the one-episode step is the batched step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_trade.config import EnvConfig, Execution
from jaxrl_trade.env import account as accounts
from jaxrl_trade.env import diversity, reward
from jaxrl_trade.market import Market

Array = jax.Array


@struct.dataclass
class EnvState:
    """State of N episodes: every leaf `[N]`, `window [N, W]` (int32 actions, a ring; see `diversity`)."""

    account: accounts.Account
    window: Array


@struct.dataclass
class Outcome:
    """What one step did, each `[N]`; `next_obs [N, F + 3]` is the observation before any restart."""

    base: Array  # reward units: 1000 is one unit of log return
    barrier_label: Array  # -1, 0 or 1
    diversity_penalty: Array  # in [-1, 0]
    drawdown: Array  # fraction of initial_capital, at the observation acted on
    equity_before: Array  # currency
    equity_after: Array  # currency, at the next close, before any restart
    cost: Array  # currency; negative for a price improvement
    slippage: Array  # currency
    trade: Array  # units
    position: Array  # units, after the trade
    terminated: Array  # bool
    truncated: Array  # bool
    next_obs: Array


def reset(market: Market, config: EnvConfig, starts: Any) -> EnvState:
    """Fresh episodes.

    Args:
      market: the bars.
      config: the account's rules.
      starts: `[N]` or scalar int32, the first bar of each episode, from `market.valid_starts(config.episode_length)`.
    Raises:
      ValueError: a concrete start from which an episode would leave its instrument or split.
    """
    market.check_starts(starts, config.episode_length)
    bar = jnp.clip(jnp.asarray(starts, jnp.int32), 0, market.n_bars - 1)
    window = jnp.full((*bar.shape, config.diversity_window), diversity.EMPTY, jnp.int32)
    return EnvState(account=accounts.fresh(bar, market.close_at(bar), config), window=window)


def observe(state: EnvState, market: Market, config: EnvConfig) -> Array:
    """Observations `[N, F + 3]`: market features, equity / initial_capital, position / max_position, spread."""
    a = state.account
    equity = a.cash + a.position * market.close_at(a.bar)
    return observation(
        market.features_at(a.bar), *accounts.portfolio(equity, a.position, a.max_position, config), config
    )


def observation(features: Array, equity: Array, position: Array, config: EnvConfig) -> Array:
    """`[..., F]` features and the two relative account values `[...]` as one observation `[..., F + 3]`."""
    spread = jnp.full_like(equity, config.spread)
    return jnp.concatenate([features, jnp.stack([equity, position, spread], axis=-1).astype(features.dtype)], axis=-1)


def look_up(table: Execution, action: Array) -> Execution:
    """The table's row of each action; actions outside the table are clipped into it."""
    index = jnp.clip(action, 0, table.exposure.shape[0] - 1)
    return jax.tree.map(lambda column: column[index], table)


def step(
    state: EnvState, action: Any, restart_bars: Any, market: Market, config: EnvConfig
) -> tuple[EnvState, Outcome]:
    """Trade at bar t, move to bar t+1, restart the episodes that end.

    Args:
      state: of N episodes, or of one.
      action: `[N]` int32 in [0, A).
      restart_bars: `[N]` int32, where an episode that ends now starts afresh; used only there.
      market: the bars.
      config: the account's rules.
    Raises:
      ValueError: another number of actions than episodes, a concrete action outside the table, or a concrete restart bar that is
        no valid start.
    """
    check_actions(action, config.n_actions)
    for name, given in (("action", action), ("restart_bars", restart_bars)):
        if jnp.shape(given) not in ((), jnp.shape(state.account.bar)):
            raise ValueError(f"{name} has shape {jnp.shape(given)}, the episodes {jnp.shape(state.account.bar)}")
    market.check_starts(restart_bars, config.episode_length, "restart_bars")
    action = jnp.clip(jnp.asarray(action, jnp.int32), 0, config.n_actions - 1)
    restart_bars = jnp.clip(jnp.asarray(restart_bars, jnp.int32), 0, market.n_bars - 1)
    before = state.account
    prices = market.prices_at(before.bar)
    table = config.execution.arrays(market.close.dtype)
    moved, out = accounts.advance(before, look_up(table, action), prices, config)
    window = diversity.push(state.window, action, before.step)
    relative = accounts.portfolio(out.equity_after, out.position, moved.max_position, config)
    outcome = Outcome(
        base=reward.base(
            out.equity_before,
            out.equity_after,
            out.position,
            before.max_position,
            prices.close,
            prices.next_close,
            out.cost + out.slippage,
            config,
        ),
        barrier_label=out.barrier_label,
        diversity_penalty=diversity.penalty(window, moved.step, config.n_actions, market.close.dtype),
        drawdown=reward.drawdown(out.equity_before, config),
        equity_before=out.equity_before,
        equity_after=out.equity_after,
        cost=out.cost,
        slippage=out.slippage,
        trade=out.trade,
        position=out.position,
        terminated=out.terminated,
        truncated=out.truncated,
        next_obs=observation(market.features_at(moved.bar), *relative, config),
    )
    done = out.terminated | out.truncated
    account = accounts.restart_where(done, moved, restart_bars, market.close_at(restart_bars), config)
    return EnvState(account=account, window=jnp.where(done[..., None], diversity.EMPTY, window)), outcome


def check_actions(action: Any, n_actions: int) -> None:
    """Refuses concrete actions outside [0, A); traced ones pass (look-ups clip them).

    Raises:
      ValueError: names the first action that is out of range, or the type of what are no whole numbers.
    """
    if isinstance(action, jax.core.Tracer):
        return
    flat = np.ravel(np.asarray(action))
    if flat.dtype.kind not in "iu":
        raise ValueError(f"action holds {flat.dtype}; actions are whole numbers in [0, {n_actions})")
    wrong = (flat < 0) | (flat >= n_actions)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise ValueError(f"action[{i}] = {int(flat[i])} is not in [0, {n_actions}), the actions of the execution table")
