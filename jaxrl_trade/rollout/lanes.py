"""The account as an `Environment` of `pallas_kernels`: the functions that `lax.scan` and the fused kernel both trace."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

import pallas_kernels as pk
from jaxrl_trade.config import EnvConfig, Execution
from jaxrl_trade.env import account as accounts
from jaxrl_trade.env.account import Account
from jaxrl_trade.env.trading import look_up
from jaxrl_trade.market import BarPrices, Market

Array = jax.Array


class Prices(NamedTuple):
    """One bar's prices, each `[N]`; of all bars, `[T]`."""

    open: Array
    high: Array
    low: Array
    close: Array


class Record(NamedTuple):
    """What a step leaves behind, each `[N]`; of a rollout, `[L, N]`. Few arrays, since the fused kernel waits for each."""

    bar: Array  # int32
    step: Array  # int32, steps since the episode began
    equity_after: Array  # currency
    position: Array  # units, after the trade
    cost: Array  # currency
    marks: Array  # int32: 1 + barrier label, + 4 if terminated, + 8 if truncated


def tables(market: Market) -> Prices:
    """The market's prices as the tables that a lane walks along."""
    return Prices(open=market.open, high=market.high, low=market.low, close=market.close)


def constants(config: EnvConfig) -> Array:
    """The account values `[1]` of an observation that never change: what follows those that `environment` observes."""
    return jnp.asarray([config.spread], float)


def environment(config: EnvConfig) -> pk.Environment:
    """The account's rules; lanes carry an `Account` and walk along `tables`, and each action's effect is its `Execution`.

    It observes equity / initial_capital and position / max_position.
    """

    def observe(account: Account, here: Prices) -> tuple[Array, Array]:
        equity = account.cash + account.position * here.close
        return accounts.portfolio(equity, account.position, account.max_position, config)

    def step(account: Account, execution: Execution, here: Prices, ahead: Prices) -> tuple[Account, Array, Record]:
        prices = BarPrices(here.close, ahead.open, ahead.high, ahead.low, ahead.close)
        moved, out = accounts.advance(account, execution, prices, config)
        label, terminated, truncated = (x.astype(jnp.int32) for x in (out.barrier_label, out.terminated, out.truncated))
        marks = 1 + label + 4 * terminated + 8 * truncated
        record = Record(account.bar, account.step, out.equity_after, out.position, out.cost, marks)
        return moved, out.terminated | out.truncated, record

    def restart(bar: Array, here: Prices) -> Account:
        return accounts.fresh(bar, here.close, config)

    return pk.Environment(row=lambda account: account.bar, observe=observe, step=step, restart=restart)


def account_of(steps: pk.Steps, start: Account, market: Market, config: EnvConfig) -> dict[str, Array]:
    """The account's part of the transitions, each `[L, N]`, by their names.

    What a step began with is what the step before left, or a fresh account; the rest follows from that and the record.

    Args:
      steps: of a rollout.
      start: the account that the rollout began with.
      market: the bars.
      config: the account's rules.
    """
    record = steps.record
    is_fresh = record.step == 0

    def before(first: Array, after: Array, fresh: float) -> Array:
        return jnp.where(is_fresh, fresh, jnp.concatenate([first[None], after[:-1]]))

    equity = start.cash + start.position * market.close_at(start.bar)
    position = before(start.position, record.position, 0.0)
    trade = record.position - position
    is_first_episode = record.step == start.step + jnp.arange(len(record.step))[:, None]
    size = accounts.episode_size(market.close_at(record.bar - record.step), config)
    whole = jnp.where(is_first_episode, start.max_position, size)
    equity_before = before(equity, record.equity_after, config.initial_capital)
    execution = look_up(config.execution.arrays(market.close.dtype), steps.actions)
    return {
        "bar": record.bar,
        "step": record.step,
        "equity_before": equity_before,
        "equity_after": record.equity_after,
        "position_before": position,
        "position": record.position,
        "max_position": accounts.size_at(equity_before, market.close_at(record.bar), whole, config),
        "trade": trade,
        "cost": record.cost,
        "slippage": accounts.slippage(trade, execution, market.prices_at(record.bar), config),
        "barrier_label": ((record.marks & 3) - 1).astype(equity.dtype),
        "terminated": (record.marks & 4) > 0,
        "truncated": (record.marks & 8) > 0,
    }
