"""Lines below a table that are as wide as its rows, such as `Source: a site;;;;;` or `Sum;;;;;;12345`."""

from __future__ import annotations

import numpy as np

from jaxrl_trade.bars import times
from jaxrl_trade.bars.calendar_fields import UNKNOWN, BoolArray
from jaxrl_trade.bars.decimals import is_text
from jaxrl_trade.bars.formats import Layout
from jaxrl_trade.bars.layout import RawTable, is_missing

MOST_LINES = 100


def footers(table: RawTable, found: Layout) -> BoolArray:
    """`[n]` the last rows, where they have no close and something in place of the time that is none."""
    rows = np.zeros(table.rows, bool)
    role = "date" if "date" in found.index else "time"
    column, close = table.columns[found.index[role]], table.columns[found.index["close"]]
    if not is_text(column):
        return rows
    for row in range(table.rows - 1, max(table.rows - 1 - MOST_LINES, -1), -1):
        price = close[row].as_py()
        if price is not None and not is_missing(str(price)):
            break
        written = str(column[row].as_py() or "")
        if is_missing(written):  # a blank line between the table and its footer
            continue
        if _is_time(times.Column(column.slice(row, 1), found.names[role], table.origin, table.label)):
            break
        rows[row] = True
    return rows


def _is_time(column: times.Column) -> bool:
    try:
        times.read_times(column, day_first=None)
    except ValueError as refusal:
        return UNKNOWN not in str(refusal)
    return True
