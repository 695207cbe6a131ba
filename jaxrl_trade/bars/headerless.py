"""Which column is which where a file has no header: time first, then four prices that behave like open, high, low, close."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from jaxrl_trade.bars.decimals import decimal_mark, to_float
from jaxrl_trade.bars.layout import RawTable
from jaxrl_trade.bars.options import SETTLE, LoadOptions

if TYPE_CHECKING:
    from jaxrl_trade.bars.rolling import FloatArray

SAMPLE_ROWS = 2000
HOLDS_SHARE = 0.99  # rows in which the high must be the highest and the low the lowest


def guess_columns(table: RawTable, options: LoadOptions) -> dict[str, int]:
    """Roles of the columns of a file without a header.

    Raises:
      ValueError: the prices do not show their order, which is then for the user to say.
    """
    first = [str(column[0].as_py()) for column in table.columns]
    has_clock = len(first) > 1 and re.fullmatch(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?", first[1].strip())
    has_date = re.fullmatch(r"\d{4}[-./]?\d{2}[-./]?\d{2}|\d{1,2}[-./]\d{1,2}[-./]\d{4}", first[0].strip())
    index = {"date": 0, "clock": 1} if has_clock and has_date else {"time": 0}
    start = len(index)
    if len(first) < start + 4:
        raise ValueError(
            f"{table.origin} has no header and {len(first)} columns, too few for a time and four prices; "
            f"name the columns with {SETTLE['columns']}"
        )
    open, high, low, close = _numbers(table, options, range(start, start + 4))
    holds = (high >= np.maximum(open, close)) & (low <= np.minimum(open, close))
    known = np.isfinite(open + high + low + close)
    if not known.any() or holds[known].mean() < HOLDS_SHARE:
        raise ValueError(
            f"{table.origin} has no header, and columns {start + 1} to {start + 4} do not look like open, high, low, close "
            f"in this order; name the columns with {SETTLE['columns']}, counting from 1"
        )
    index |= {"open": start, "high": start + 1, "low": start + 2, "close": start + 3}
    if len(first) == start + 4:
        return index
    (volume,) = _numbers(table, options, range(start + 4, start + 5))
    inside = (low <= volume) & (volume <= high)
    if known.sum() > 1 and inside[known].all():
        raise ValueError(
            f"{table.origin} has no header, and column {start + 5} lies between high and low as a mean price does, not a volume; "
            f"name the columns with {SETTLE['columns']}, counting from 1"
        )
    return index | {"volume": start + 4}


def _numbers(table: RawTable, options: LoadOptions, columns: range) -> list[FloatArray]:
    sample = [table.columns[i].slice(0, SAMPLE_ROWS) for i in columns]
    mark = decimal_mark(sample, options, table.origin)
    return [
        to_float(column, mark, f"column {i + 1}", table.label, table.origin)
        for i, column in zip(columns, sample, strict=True)
    ]


def refuse_swapped(open: FloatArray, close: FloatArray, origin: str) -> None:
    """Refuse bars, in order of time, whose "close" continues the "open" before better than open continues close.

    High and low alone cannot tell open, high, low, close from close, high, low, open.
    """
    if len(open) > 2 and np.abs(open[1:] - close[:-1]).sum() > np.abs(close[1:] - open[:-1]).sum():
        raise ValueError(
            f"{origin} has no header, and what should be its open and close look swapped; "
            f"name the columns with {SETTLE['columns']}, counting from 1"
        )
