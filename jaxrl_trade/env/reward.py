"""The reward's parts and their sum. 1000 is one unit of log return. Elementwise over any shape."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_trade.config import EnvConfig, RewardScales
from jaxrl_trade.env.account import equity_floor, is_flat_position

Array = jax.Array

UNIT = 1000.0  # reward per unit of log return


def base(
    equity_before: Array,
    equity_after: Array,
    position: Array,
    max_position: Array,
    close: Array,
    next_close: Array,
    costs: Array,
    config: EnvConfig,
) -> Array:
    """The base reward of a step: of the price's move in the position's direction, or of the equity.

    directional: 1000 log1p((close[t+1] - close[t]) / close[t]) sign(position after the trade), 0 when flat
    equity:      1000 ln(max(equity', f) / max(equity, f)), f = max(ruin_fraction, 0.001) initial_capital

    Args:
      equity_before, equity_after: currency, at close[t] before the trade and at close[t+1] after it.
      position, max_position: units, after the trade.
      close, next_close: currency per unit.
      costs: currency, cost + slippage of the step's trade.
      config: the account's rules.
    """
    move = next_close - close
    if config.reward_base == "directional":
        direction = jnp.where(is_flat_position(position, max_position), 0.0, jnp.sign(position))
        return UNIT * jnp.log1p(move / close) * direction
    floor = equity_floor(config)
    is_floored = (equity_before < floor) | (equity_after < floor)
    floored = jnp.log(jnp.maximum(equity_after, floor) / jnp.maximum(equity_before, floor))
    # the gain over the equity, not a quotient of equities: in float32 that would lose most rewards to rounding
    gain = (position * move - costs) / jnp.where(is_floored, 1.0, equity_before)
    return UNIT * jnp.where(is_floored, floored, jnp.log1p(jnp.where(is_floored, 0.0, gain)))


def drawdown(equity_before: Array, config: EnvConfig) -> Array:
    """Fraction of the initial capital (not of a peak) that is lost at the observation; 0 in profit."""
    return jnp.maximum(0.0, 1.0 - equity_before / config.initial_capital)


def total(
    base: Array,
    barrier_label: Array,
    diversity_penalty: Array,
    curiosity_bonus: Array,
    drawdown: Array,
    scales: RewardScales,
) -> Array:
    """The sum: base (1 + barrier_scale label) + diversity_scale penalty + curiosity_scale bonus - risk_weight drawdown."""
    return (
        base * (1.0 + scales.barrier_scale * barrier_label)
        + scales.diversity_scale * diversity_penalty
        + scales.curiosity_scale * curiosity_bonus
        - scales.risk_weight * drawdown
    )
