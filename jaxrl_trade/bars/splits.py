"""Splits that a file of unadjusted prices shows as a jump of the price by a whole ratio: noticed always, undone when asked."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxrl_trade.bars.calendar_fields import IntArray
from jaxrl_trade.bars.quality import CleanBars
from jaxrl_trade.bars.rolling import FloatArray

LEAST = float(np.log(1.4))  # of |log return|, close to close
NEAR = 0.05  # of |log of the jump over the ratio|: what a price may move besides
MIXED = 1.5  # a 3:2 split; all other ratios are whole
AROUND = 5  # bars on each side, whose median price must jump likewise: a bad tick comes back


@dataclasses.dataclass(frozen=True)
class Split:
    """A jump between bars `bar - 1` and `bar` that looks as if `ratio` new shares had been given for one."""

    bar: int
    ratio: float  # 4.0 for 4:1, 0.1 for a reverse split of 1:10

    def __str__(self) -> str:
        if self.ratio in (MIXED, 1 / MIXED):
            return "3:2" if self.ratio == MIXED else "2:3"
        return f"{self.ratio:.0f}:1" if self.ratio > 1 else f"1:{1 / self.ratio:.0f}"


def find_splits(values: FloatArray) -> list[Split]:
    """Splits of bars in order of time.

    The price jumps close to close by more than `LEAST`; the jump to the open, or where that is a small one to the close, is
    3:2 or n:1 within `NEAR`; and the price stays there: the medians of the closes around it differ likewise within `LEAST`.

    Args:
      values: `[T, 5]` open, high, low, close, volume; positive prices.
    """
    open, close = np.log(values[:, 0]), np.log(values[:, 3])
    found = []
    for t in np.flatnonzero(np.abs(np.diff(close)) > LEAST) + 1:
        to_open = close[t - 1] - open[t]
        jump = to_open if abs(to_open) > LEAST else close[t - 1] - close[t]
        size = float(np.exp(abs(jump)))
        whole = min((MIXED, max(2.0, float(np.rint(size)))), key=lambda ratio: abs(np.log(size / ratio)))
        lasting = np.median(close[max(t - AROUND, 0) : t]) - np.median(close[t : t + AROUND])
        target = np.copysign(np.log(whole), jump)
        if abs(jump - target) <= NEAR and abs(lasting - target) <= LEAST:
            found.append(Split(int(t), whole if jump > 0 else 1 / whole))
    return found


def undo(bars: CleanBars, splits: list[Split]) -> CleanBars:
    """The bars in units of the last one: prices before a split divided by its ratio, volume multiplied."""
    ratio = np.ones(len(bars.ns))
    for split in splits:
        ratio[: split.bar] *= split.ratio
    values = bars.values.copy()
    values[:, :4] /= ratio[:, None]
    values[:, 4] *= ratio
    return dataclasses.replace(bars, values=values)


def days(ns: IntArray, splits: list[Split]) -> str:
    """`"4:1 on 2020-08-31 and 5:1 on ..."`, the first few."""
    first = [f"{split} on {np.datetime64(int(ns[split.bar]), 'ns').astype('datetime64[D]')}" for split in splits[:5]]
    return ", ".join(first) + (f", ... ({len(splits)} in all)" if len(splits) > 5 else "")
