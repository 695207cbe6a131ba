"""The specification's presets as plain dicts: execution tables (section 3) and environment defaults (section 12).

Written out by hand, so that the tests compare the package's dataclasses with figures that do not come from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

EXPOSURES = (-1.0, -0.5, 0.0, 0.5, 1.0)
MARKET, LIMIT, IOC = 0, 1, 2
PATIENT, NORMAL, AGGRESSIVE = 0, 1, 2


def action_index(exposure: float, order: int, urgency: int) -> int:
    """Index of an action in the 45-row tables: exposure is the slowest digit, urgency the fastest."""
    return EXPOSURES.index(exposure) * 9 + order * 3 + urgency


def execution_table(
    fee_rate: Sequence[float],
    fill_ratio: Sequence[Sequence[float]],
    price_offset: Sequence[Sequence[float]],
    is_maker: Sequence[bool],
) -> dict[str, list[Any]]:
    """Rows of a 45-action table from figures per order type, or per order type and urgency."""
    rows: dict[str, list[Any]] = {"exposure": [], "fee_rate": [], "fill_ratio": [], "price_offset": [], "is_maker": []}
    for exposure in EXPOSURES:
        for order in (MARKET, LIMIT, IOC):
            for urgency in (PATIENT, NORMAL, AGGRESSIVE):
                rows["exposure"].append(exposure)
                rows["fee_rate"].append(fee_rate[order])
                rows["fill_ratio"].append(fill_ratio[order][urgency])
                rows["price_offset"].append(price_offset[order][urgency])
                rows["is_maker"].append(is_maker[order])
    return rows


PLAN_TABLE = execution_table(
    fee_rate=(0.0015, 0.0005, 0.0010),
    fill_ratio=((1.0, 1.0, 1.0),) * 3,
    price_offset=((0.0, 0.0, 0.0),) * 3,
    is_maker=(False, False, False),
)

NET_TABLE = execution_table(
    fee_rate=(0.0005, 0.0001, 0.0005),
    fill_ratio=((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (0.5, 0.75, 1.0)),
    price_offset=((0.5, 0.5, 0.5), (-1.0, -0.75, -0.5), (0.5, 0.5, 0.5)),
    is_maker=(False, True, False),
)

# Eleven actions and no structure: every column varies, zero and partial fills, makers that ask for more or less.
ODD_TABLE: dict[str, list[Any]] = {
    "exposure": [-1.0, -0.75, -0.3, 0.0, 0.0, 0.25, 0.5, 0.6, 0.9, 1.0, 0.004],
    "fee_rate": [0.001, 0.0, 0.0005, 0.002, 0.0001, 0.0007, 0.0, 0.0003, 0.001, 0.0015, 0.0004],
    "fill_ratio": [1.0, 0.4, 1.0, 1.0, 0.9, 0.3, 1.0, 0.0, 1.0, 0.8, 1.0],
    "price_offset": [1.0, -2.0, 0.0, 3.0, -5.0, 0.25, -10.0, 1.0, -1.0, 0.0, 0.5],
    "is_maker": [False, True, False, False, True, False, True, False, True, False, False],
}

PLAN: dict[str, Any] = {
    "execution": PLAN_TABLE,
    "fill": "close",
    "reward_base": "directional",
    "time_limit": "terminal",
    "sizing": "units",
    "max_position": 1.0,
    "leverage": 1.0,
    "initial_capital": 1_000_000.0,
    "spread": 0.0001,
    "reserve_fraction": 0.20,
    "ruin_fraction": 0.0,
    "episode_length": 500,
    "barrier_profit_mult": 1.02,
    "barrier_loss_mult": 0.98,
    "barrier_max_bars": 500,
    "diversity_window": 100,
}

NET: dict[str, Any] = {
    **PLAN,
    "execution": NET_TABLE,
    "fill": "next_open",
    "reward_base": "equity",
    "time_limit": "bootstrap",
    "sizing": "leverage",
    "reserve_fraction": None,
    "ruin_fraction": 0.1,
    "initial_capital": 10_000.0,
}
