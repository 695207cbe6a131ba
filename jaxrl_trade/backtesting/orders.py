"""What orders of the execution table cost the account, at the table's own costs or at a multiple of them.

The multiple counts for every fee and for a taker's distance from the reference price. Limit prices stay where they are: they are
where an order rests, not what it costs. Nor does it change an observation, which shows the spread that the policy was trained with.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxrl_trade.config import EnvConfig, Execution, ExecutionTable

_NO_TABLE = ExecutionTable(exposure=[0.0], fee_rate=[0.0], fill_ratio=[0.0], price_offset=[0.0], is_maker=[False])


class Orders(NamedTuple):
    """What a simulation needs of an execution table; traced, so that another table or other costs compile nothing."""

    table: Execution  # [A] each
    closing_fee: Any  # fraction of the value, of the order that closes a ruined account


def orders_of(config: EnvConfig, costs: float = 1.0) -> Orders:
    """The config's orders at a multiple of their costs, in float64 where that is switched on."""
    table = config.execution.arrays(float)
    scaled = table._replace(
        fee_rate=costs * table.fee_rate,
        price_offset=jnp.where(table.is_maker, table.price_offset, costs * table.price_offset),
    )
    return Orders(table=scaled, closing_fee=jnp.asarray(dearest_taker(config, costs)[0], float))


def without_table(config: EnvConfig) -> EnvConfig:
    """The rules that a compiled program is made for; its table comes as `Orders`."""
    return dataclasses.replace(config, execution=_NO_TABLE)


def dearest_taker(config: EnvConfig, costs: float = 1.0) -> tuple[float, float]:
    """Fee rate and price offset (spreads) of the taker action with the highest fee; of all actions where none is a taker."""
    table = config.execution
    rows = list(zip(table.fee_rate, table.price_offset, table.is_maker, strict=True))
    takers = [(fee, offset) for fee, offset, is_maker in rows if not is_maker]
    fee, offset = max(takers or [(fee, offset) for fee, offset, _ in rows])
    return costs * fee, costs * offset
