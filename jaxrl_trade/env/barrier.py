"""The triple barrier (López de Prado 2018, chapter 3): profit level, loss level, time limit. Elementwise, as all of the account."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_trade.config import EnvConfig

Array = jax.Array


class Barrier(NamedTuple):
    """State of an episode's barrier, every leaf `[N]`; its levels are multiples of `entry`."""

    active: Array  # int32, 1 while a barrier stands (an integer, since kernels carry no bools)
    entry: Array  # currency, the close of the bar at which it was opened, whatever the fill
    entry_step: Array  # int32, step of the episode at which it was opened


def off(zero: Array, step: Array) -> Barrier:
    """No barrier; `zero` and `step` give shape and dtype."""
    return Barrier(active=jnp.zeros_like(step), entry=zero, entry_step=jnp.zeros_like(step))


def trade(state: Barrier, opens: Array, is_flat: Array, close: Array, step: Array) -> Barrier:
    """After a trade: a new barrier where a position was opened or flipped, none where it is flat now."""
    active = jnp.where(opens, 1, jnp.where(is_flat, 0, state.active))
    return Barrier(
        active=active, entry=jnp.where(opens, close, state.entry), entry_step=jnp.where(opens, step, state.entry_step)
    )


def check(state: Barrier, position: Array, next_close: Array, step: Array, config: EnvConfig) -> tuple[Barrier, Array]:
    """On the new bar's close: the barrier that is left, and the label (1 profit, -1 loss, sign of the profit at expiry, 0).

    `step` is the step just taken, so a barrier opened in it has been held for 1 bar.
    """
    upper, lower = state.entry * config.barrier_profit_mult, state.entry * config.barrier_loss_mult
    direction = jnp.sign(position)
    above, below = next_close >= upper, next_close <= lower
    is_hit = above | below
    hit_label = jnp.where(above, direction, -direction)
    is_expired = step + 1 - state.entry_step >= config.barrier_max_bars
    expiry_label = direction * jnp.sign(next_close - state.entry)
    is_active = state.active > 0
    ends = is_active & (is_hit | is_expired)
    label = jnp.where(ends, jnp.where(is_hit, hit_label, expiry_label), 0.0)
    return state._replace(active=jnp.where(ends, 0, state.active)), label
