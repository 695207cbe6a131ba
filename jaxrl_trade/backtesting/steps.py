"""One account on one bar: what the policy sees of it, and what an order does, in float64 by the environment's own arithmetic.

Every `episode_length` bars the account is renewed: units and cash are rescaled so that its equity is `initial_capital` again, and
max_position is sized afresh. That trades nothing (the rescaled account is the same account in another currency) and keeps the
observations where training had them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_trade.backtesting.ledger import Fills
from jaxrl_trade.backtesting.orders import Orders, dearest_taker, without_table
from jaxrl_trade.backtesting.tracks import Track
from jaxrl_trade.config import EnvConfig, Execution
from jaxrl_trade.env import account as accounts
from jaxrl_trade.env import reward
from jaxrl_trade.env.trading import look_up, observation
from jaxrl_trade.market import BarPrices

Array = Any  # a NumPy or a JAX array

NOTHING = -1  # the action of an account that was ruined and is closed, or of a replay that leaves a bar out


class Trace(NamedTuple):
    """What each of n - 1 steps did, `[n - 1]` each, in real units and currency (the renewals' rescaling undone)."""

    action: Array  # int, NOTHING after ruin
    units: Array  # bought, negative when sold
    price: Array  # currency per unit, of the fill
    fee: Array  # currency
    cost: Array  # currency: fee and distance from the reference price
    position: Array  # units, after the trade
    max_position: Array  # units
    equity: Array  # currency, at the next close, before a ruined account is closed
    closing_units: Array  # traded at the next close by ruin, else 0
    closing_price: Array  # currency per unit, the next close
    closing_fee: Array  # currency, else 0
    base: Array  # reward units: the reward's base; 0 after ruin, as the next two
    barrier_label: Array  # -1, 0 or 1, at the next close
    drawdown: Array  # fraction of the renewed capital, at the observation
    is_ruined: Array  # bool: in this step
    is_nan: Array  # bool: the policy's logits were

    @property
    def fills(self) -> Fills:
        """The fills; one that closed a ruined account comes last."""
        traded = np.flatnonzero(self.units)
        closing = np.flatnonzero(self.closing_units)
        fees = self.closing_fee[closing]
        return Fills(
            bar=np.concatenate([traded, closing + 1]),
            mark=np.concatenate([traded, closing]) + 1,
            action=np.concatenate([self.action[traded], np.full(len(closing), NOTHING)]),
            units=np.concatenate([self.units[traded], self.closing_units[closing]]),
            price=np.concatenate([self.price[traded], self.closing_price[closing]]),
            fee=np.concatenate([self.fee[traded], fees]),
            cost=np.concatenate([self.cost[traded], fees]),
        )


ROW_TYPES = tuple(
    {"action": np.int32, "is_ruined": bool, "is_nan": bool}.get(name, np.float64) for name in Trace._fields
)


class State(NamedTuple):
    """The account between two bars."""

    account: accounts.Account  # in renewed currency
    scale: Array  # real units of one renewed unit
    is_open: Array  # bool: not ruined


class Bar(NamedTuple):
    """What a step needs from the track; each `[n - 1]`, one row a step inside the loop."""

    step: Array  # int32, from 0
    features: Array  # [n - 1, F] float32
    prices: BarPrices
    uniform: Array  # float32 in [0, 1)


def bars_of(track: Track, uniforms: np.ndarray) -> Bar:
    """The n - 1 steps of a track on the device, prices in float64 under x64."""
    now, then = slice(None, -1), slice(1, None)
    columns = (track.close[now], track.open[then], track.high[then], track.low[then], track.close[then])
    return Bar(
        step=jnp.asarray(np.arange(track.n_steps, dtype=np.int32)),
        features=jnp.asarray(track.features[now]),
        prices=BarPrices(*(jnp.asarray(column) for column in columns)),
        uniform=jnp.asarray(uniforms, jnp.float32),
    )


def bar_at(bars: Bar, t: Array) -> Bar:
    """Step t of them, the last where t is beyond it."""
    return jax.tree.map(lambda x: x[jnp.minimum(t, len(x) - 1)], bars)


def begin(close: Array, config: EnvConfig) -> State:
    """An account with `initial_capital` and nothing else."""
    account = accounts.fresh(jnp.zeros((), jnp.int32), close, config)
    return State(account=account, scale=jnp.ones_like(account.cash), is_open=jnp.asarray(True))


def observe(state: State, bar: Bar, config: EnvConfig) -> tuple[State, Array]:
    """The state, renewed where its time has come, and what the policy sees of it, `[F + 3]` float32."""
    close = bar.prices.close
    is_due = (bar.step % config.episode_length == 0) & state.is_open  # at step 0 it changes nothing
    state = jax.tree.map(functools.partial(jnp.where, is_due), _renew(state, close, config), state)
    account = state.account
    equity = account.cash + account.position * close
    equity, position = accounts.portfolio(equity, account.position, account.max_position, config)
    if config.sizing != "equity":
        # a renewal may leave a short larger than the new max_position: an episode never showed the policy more than all of it
        position = jnp.clip(position, -1.0, 1.0)
    return state, observation(bar.features, equity, position, config).astype(jnp.float32)


def trade(
    state: State, action: Array, is_nan: Array, bar: Bar, orders: Orders, config: EnvConfig
) -> tuple[State, Trace]:
    """One step of the account; ruin closes it at the next close, and a closed one does nothing any more."""
    is_acting = state.is_open & (action != NOTHING)
    order = look_up(orders.table, action)
    order = order._replace(fill_ratio=jnp.where(is_acting, order.fill_ratio, 0.0))
    account, out = accounts.advance(state.account, order, bar.prices, config)
    is_ruined = out.terminated & state.is_open
    closing = jnp.where(is_ruined, -account.position, 0.0)
    closing_fee = jnp.abs(closing) * bar.prices.next_close * orders.closing_fee
    cash = account.cash - (closing * bar.prices.next_close + closing_fee)
    scale, before = state.scale, state.account
    trace = Trace(
        action=jnp.where(is_acting, action, NOTHING),
        units=out.trade * scale,
        price=out.price,
        fee=out.fee * scale,
        cost=out.cost * scale,
        position=out.position * scale,
        max_position=before.max_position * scale,
        equity=out.equity_after * scale,
        closing_units=closing * scale,
        closing_price=bar.prices.next_close,
        closing_fee=closing_fee * scale,
        **_reward_parts(out, before, bar.prices, state.is_open, config),
        is_ruined=is_ruined,
        is_nan=jnp.asarray(is_nan),
    )
    account = account._replace(cash=cash, position=account.position + closing)
    return State(account=account, scale=scale, is_open=state.is_open & jnp.logical_not(is_ruined)), trace


def first_fill(
    exposure: float, track: Track, config: EnvConfig, costs: float = 1.0
) -> tuple[float, float, float, float]:
    """Units, price, fee and cost of trading to exposure x max_position on the track's first bar, in full, as the dearest taker."""
    head = Track(*(x[:2] for x in track))
    fee_rate, offset = dearest_taker(config, costs)
    numbers = {"exposure": exposure, "fee_rate": fee_rate, "fill_ratio": 1.0, "price_offset": offset}
    with jax.enable_x64(True), jax.default_device(cpu()):
        columns = {name: jnp.asarray(value, float) for name, value in numbers.items()}
        order = Execution(**columns, is_maker=jnp.asarray(False))
        free = dataclasses.replace(without_table(config), mask=None)  # a baseline may do what the agent may not
        out = _first_trade(order, bars_of(head, np.zeros(1)), free)
    return float(out.trade), float(out.price), float(out.fee), float(out.cost)


def cpu() -> Any:
    """The host's CPU, or whatever there is instead."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return jax.local_devices()[0]


@functools.partial(jax.jit, static_argnums=2)
def _first_trade(order: Execution, bars: Bar, config: EnvConfig) -> accounts.StepOutcome:
    bar = bar_at(bars, 0)
    return accounts.advance(begin(bar.prices.close, config).account, order, bar.prices, config)[1]


def _renew(state: State, close: Array, config: EnvConfig) -> State:
    account = state.account
    ratio = (account.cash + account.position * close) / config.initial_capital
    scale = state.scale * ratio
    sized = accounts.fresh(account.bar, close, config).max_position
    renewed = account._replace(
        step=jnp.zeros_like(account.step),
        cash=account.cash / ratio,
        position=account.position / ratio,
        cumulative_costs=jnp.zeros_like(account.cumulative_costs),
        max_position=sized / scale if config.sizing == "units" else sized,
        # the barrier goes on with the position: it was opened as many bars before the new beginning
        barrier=account.barrier._replace(entry_step=account.barrier.entry_step - account.step),
    )
    return state._replace(account=renewed, scale=scale)


def _reward_parts(
    out: accounts.StepOutcome, before: accounts.Account, prices: BarPrices, is_open: Array, config: EnvConfig
) -> dict[str, Array]:
    base = reward.base(
        out.equity_before,
        out.equity_after,
        out.position,
        before.max_position,
        prices.close,
        prices.next_close,
        out.cost + out.slippage,
        config,
    )
    parts = {
        "base": base,
        "barrier_label": out.barrier_label,
        "drawdown": reward.drawdown(out.equity_before, config),
    }
    return {name: jnp.where(is_open, value, 0.0) for name, value in parts.items()}
