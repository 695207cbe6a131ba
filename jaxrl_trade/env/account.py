"""The account's arithmetic, once: what an order does to cash and position, and what the next bar does to equity.

Every function here is elementwise over episodes (`[N]` arrays or scalars in and out) and uses only operations that Pallas can
lower, so `lax.scan` and a fused kernel trace the same code. Look-ups by action or bar are the caller's; dtypes are too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_trade.config import EnvConfig, Execution
from jaxrl_trade.env import barrier
from jaxrl_trade.market import BarPrices

Array = jax.Array

NO_TRADE = 1e-6  # fraction of max_position below which a wanted trade is no trade
EQUITY_FLOOR = 0.001  # of initial_capital: keeps what divides by the equity finite near ruin
FLAT = 0.01  # fraction of max_position below which a position is flat


class Account(NamedTuple):
    """State of an episode's account, every leaf `[N]`."""

    bar: Array  # int32, the bar just closed
    step: Array  # int32, steps since the episode began
    cash: Array  # currency
    position: Array  # units, negative when short
    entry_price: Array  # currency, average execution price of the open position; 0 when flat
    max_position: Array  # units
    cumulative_costs: Array  # currency
    barrier: barrier.Barrier


class StepOutcome(NamedTuple):
    """What one step did, every leaf `[N]`, before any restart."""

    equity_before: Array  # currency, cash + position x close[t]
    equity_after: Array  # currency, cash + position x close[t+1] after the trade
    trade: Array  # units bought, negative when sold
    price: Array  # currency, where the order would trade
    fee: Array  # currency
    cost: Array  # currency: fee and the distance from the reference price; negative for a price improvement
    slippage: Array  # currency: from the close to the reference price
    position: Array  # units, after the trade
    barrier_label: Array  # -1, 0 or 1
    terminated: Array  # bool: ruin
    truncated: Array  # bool: time limit, without ruin


def fresh(bar: Array, close: Array, config: EnvConfig) -> Account:
    """An account at the start of an episode on `bar`, whose close is `close`."""
    zero, step = jnp.zeros_like(close), jnp.zeros_like(bar)
    return Account(
        bar=bar,
        step=step,
        cash=zero + config.initial_capital,
        position=zero,
        entry_price=zero,
        max_position=zero + episode_size(close, config),
        cumulative_costs=zero,
        barrier=barrier.off(zero, step),
    )


def episode_size(close: Array, config: EnvConfig) -> Array | float:
    """max_position, units, of an episode that starts at `close`."""
    return config.max_position if config.sizing == "units" else config.leverage * config.initial_capital / close


def size_at(equity: Array, close: Array, max_position: Array, config: EnvConfig) -> Array:
    """max_position, units, at a close within an episode: what it was, or the leverage on the equity there.

    Of a ruined account it is that of the floor, so that nothing is divided by 0.
    """
    if config.sizing != "equity":
        return max_position
    return config.leverage * jnp.maximum(equity, equity_floor(config)) / close


def equity_floor(config: EnvConfig) -> float:
    """The least equity, currency, that anything is divided by: max(ruin_fraction, 0.001) initial_capital."""
    return max(config.ruin_fraction, EQUITY_FLOOR) * config.initial_capital


def advance(
    account: Account, execution: Execution, prices: BarPrices, config: EnvConfig
) -> tuple[Account, StepOutcome]:
    """One step: trade at bar t, move to bar t+1, mark, check the barrier and the episode's end. No restart."""
    equity_before = account.cash + account.position * prices.close
    trade, reference, markup, is_full = _fill(account, execution, prices, config)
    price = reference + markup
    position = jnp.where(is_full, execution.exposure * account.max_position, account.position + trade)
    fee = jnp.abs(trade) * price * execution.fee_rate
    cost = fee + trade * markup
    cash = account.cash - (trade * reference + cost)
    equity_after = cash + position * prices.next_close

    was_flat, is_flat = (
        is_flat_position(account.position, account.max_position),
        is_flat_position(position, account.max_position),
    )
    opens = jnp.logical_not(is_flat) & (was_flat | (jnp.sign(position) != jnp.sign(account.position)))
    armed = barrier.trade(account.barrier, opens, is_flat, prices.close, account.step)
    checked, label = barrier.check(armed, position, prices.next_close, account.step, config)

    step = account.step + 1
    terminated = equity_after <= config.ruin_fraction * config.initial_capital
    truncated = (step >= config.episode_length) & jnp.logical_not(terminated)
    moved = Account(
        bar=account.bar + 1,
        step=step,
        cash=cash,
        position=position,
        entry_price=_entry_price(account, position, trade, price, opens, is_flat),
        max_position=size_at(equity_after, prices.next_close, account.max_position, config),
        cumulative_costs=account.cumulative_costs + cost,
        barrier=checked,
    )
    outcome = StepOutcome(
        equity_before=equity_before,
        equity_after=equity_after,
        trade=trade,
        price=price,
        fee=fee,
        cost=cost,
        slippage=slippage(trade, execution, prices, config),
        position=position,
        barrier_label=label,
        terminated=terminated,
        truncated=truncated,
    )
    return moved, outcome


def slippage(trade: Array, execution: Execution, prices: BarPrices, config: EnvConfig) -> Array:
    """Currency that a trade lost between the close and its reference price."""
    return trade * (_reference(execution, prices, config) - prices.close)


def restart_where(done: Array, account: Account, bar: Array, close: Array, config: EnvConfig) -> Account:
    """The account itself, or a fresh one on `bar` where the episode is done."""
    return jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh(bar, close, config), account)


def portfolio(equity: Array, position: Array, max_position: Array, config: EnvConfig) -> tuple[Array, Array]:
    """The observation's two account values: equity / initial_capital and position / max_position."""
    return equity / config.initial_capital, position / max_position


def is_flat_position(position: Array, max_position: Array) -> Array:
    """Whether a position counts as flat: below 1 % of max_position."""
    return jnp.abs(position) < FLAT * max_position


def _fill(
    account: Account, execution: Execution, prices: BarPrices, config: EnvConfig
) -> tuple[Array, Array, Array, Array]:
    """Units traded, the reference price, what the execution price adds to it, and whether the target was reached in full."""
    want = execution.exposure * account.max_position - account.position
    want = jnp.where(jnp.abs(want) < NO_TRADE * account.max_position, 0.0, want)
    if config.mask is not None:
        want = jnp.where(_is_allowed(account, execution, prices.close, config.mask), want, 0.0)
    side = jnp.sign(want)
    is_maker = execution.is_maker
    reference = _reference(execution, prices, config)
    # apart from the reference: the rounding of 1 + offset x spread in float32 would be the same loss on every trade
    markup = reference * (side * execution.price_offset * config.spread)
    price = reference + markup
    is_through = jnp.where(side > 0, prices.next_low < price, prices.next_high > price)
    is_filled = jnp.logical_not(is_maker) | is_through
    trade = jnp.where(is_filled, execution.fill_ratio * want, 0.0)
    is_full = is_filled & (execution.fill_ratio == 1.0) & (want != 0.0)
    if config.reserve_fraction is not None:
        room = _room(account, price, execution.fee_rate, config.reserve_fraction * config.initial_capital)
        raises = (trade > 0) & (account.position + trade > jnp.maximum(account.position, 0.0))
        is_cut = raises & (trade > room)
        trade = jnp.where(is_cut, room, trade)
        is_full = is_full & jnp.logical_not(is_cut)
    return trade, reference, markup, is_full


def _is_allowed(account: Account, execution: Execution, close: Array, mask: Callable[..., Array]) -> Array:
    """What a mask of the user's own says of an order; it sees nothing of the next bar."""
    allowed = jnp.asarray(mask(account, execution, close))
    if allowed.shape != jnp.shape(close) or allowed.dtype != bool:
        raise ValueError(
            f"mask gives {allowed.dtype} of shape {allowed.shape}; it must give a bool for each episode, {jnp.shape(close)}"
        )
    return allowed


def _reference(execution: Execution, prices: BarPrices, config: EnvConfig) -> Array:
    """The price, currency, around which an order trades."""
    if config.fill == "close":
        return prices.close
    return jnp.where(execution.is_maker, prices.close, prices.next_open)


def _room(account: Account, price: Array, fee_rate: Array, reserve: float) -> Array:
    """Units that may be bought with cash kept at the reserve; covering a short is always allowed."""
    affordable = (account.cash - reserve) / (price * (1.0 + fee_rate))
    return jnp.maximum(jnp.maximum(affordable, -account.position), 0.0)


def _entry_price(account: Account, position: Array, trade: Array, price: Array, opens: Array, is_flat: Array) -> Array:
    size_before, size = jnp.abs(account.position), jnp.abs(position)
    grows = (size > size_before) & (trade != 0.0)
    average = (account.entry_price * size_before + price * jnp.abs(trade)) / jnp.where(grows, size, 1.0)
    entry_price = jnp.where(grows, average, account.entry_price)
    return jnp.where(is_flat, 0.0, jnp.where(opens, price, entry_price))
