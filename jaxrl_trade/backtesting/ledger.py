"""The books: cash and units from a list of fills, in NumPy float64. Knows nothing of policies, rewards or JAX.

Every figure that a person is shown comes from here; the account that the policy traded is only the source of the fills.
"""

from __future__ import annotations

import dataclasses

import numpy as np

Array = np.ndarray

DUST = 1e-9  # of the largest position: below it a position is the rounding left by a sum of fills


@dataclasses.dataclass(frozen=True)
class Fills:
    """K fills in the order of their booking, `[K]` each."""

    bar: Array  # int, the bar of the range whose close they were decided on
    mark: Array  # int, the first bar whose close marks the position they leave
    action: Array  # int, of the execution table; -1 for an order of the backtest itself
    units: Array  # bought, negative when sold
    price: Array  # currency per unit
    fee: Array  # currency
    cost: Array  # currency: fee, and what the price was worse than its reference (better: negative)

    def __len__(self) -> int:
        return len(self.units)

    @property
    def value(self) -> Array:
        """Currency that changed hands, `[K]`, never negative."""
        return np.abs(self.units) * self.price


@dataclasses.dataclass(frozen=True)
class Ledger:
    """The books of n bars: `[n]` each at the close, after the bar's fills."""

    close: Array  # currency per unit
    cash: Array  # currency
    units: Array
    fills: Fills

    @property
    def equity(self) -> Array:
        """Currency, cash + units x close, `[n]`."""
        return self.cash + self.units * self.close


@dataclasses.dataclass(frozen=True)
class Trips:
    """Round trips, `[K']` each: from flat (or from a change of sides) to flat (or to the next change)."""

    opened: Array  # int, index of the fill that opened it
    closed: Array  # int, index of the fill that closed it, -1 while it is open
    profit: Array  # currency, after fees; of an open one with its units at the last close


def no_fills() -> Fills:
    """An empty list of fills."""
    whole, real = np.zeros(0, np.int64), np.zeros(0)
    return Fills(bar=whole, mark=whole, action=whole, units=real, price=real, fee=real, cost=real)


def book(fills: Fills, close: Array, capital: float) -> Ledger:
    """Cash and units at each close.

        cash[t] = capital - sum over fills with mark <= t of (units x price + fee),   units[t] = sum of units

    Args:
      fills: K fills.
      close: `[n]` currency per unit.
      capital: currency, before the first fill.
    """
    spent, bought = np.zeros(len(close)), np.zeros(len(close))
    np.add.at(spent, fills.mark, fills.units * fills.price + fills.fee)
    np.add.at(bought, fills.mark, fills.units)
    return Ledger(close=close, cash=capital - np.cumsum(spent), units=_swept(np.cumsum(bought)), fills=fills)


def round_trips(ledger: Ledger) -> Trips:
    """The round trips of the books; their profits sum to the final equity less the capital.

    A fill that changes sides closes one trip and opens the next; its fee is shared by units. Added and reduced positions stay in
    the trip they belong to.
    """
    fills = ledger.fills
    after = _swept(np.cumsum(fills.units))
    before = np.concatenate([[0.0], after[:-1]])
    flips = before * after < 0
    opens = ((before == 0) & (after != 0)) | flips
    trip = np.cumsum(opens) - 1  # of the part that stays in the position after the fill
    n = int(opens.sum())
    share = np.where(
        flips, np.abs(before) / np.where(flips, np.abs(fills.units), 1.0), 0.0
    )  # that closes the trip before
    flow = -(fills.units * fills.price + fills.fee)
    profit, inside = np.zeros(n), trip >= 0
    np.add.at(profit, trip[inside], (flow * (1.0 - share))[inside])
    np.add.at(profit, trip[flips] - 1, (flow * share)[flips])
    closed = np.full(n, -1)
    closed[trip[flips] - 1] = np.flatnonzero(flips)
    is_end = (after == 0) & (before != 0)
    closed[trip[is_end]] = np.flatnonzero(is_end)
    if n and after[-1] != 0:
        profit[-1] += ledger.units[-1] * ledger.close[-1]
    return Trips(opened=np.flatnonzero(opens), closed=closed, profit=profit)


def _swept(units: Array) -> Array:
    """Positions with the dust of summation set to 0."""
    largest = np.abs(units).max(initial=0.0)
    return np.where(np.abs(units) <= DUST * largest, 0.0, units)
