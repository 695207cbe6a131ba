"""From tables to the rows of one instrument: symbols in a column, side by side, or said by the file; parts of one instrument."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from jaxrl_trade.bars import decimals, wide
from jaxrl_trade.bars.calendar_fields import BoolArray, IntArray
from jaxrl_trade.bars.footers import footers
from jaxrl_trade.bars.formats import Layout, find_layout
from jaxrl_trade.bars.layout import RawTable
from jaxrl_trade.bars.options import LoadOptions


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Rows of one instrument out of one file.

    Attributes:
      symbol: as the file says it, None where it does not.
      table: the rows.
      found: what their columns mean.
      rows_read: rows of the file.
      dropped: rows of the file that are not in the table, by reason.
    """

    symbol: str | None
    table: RawTable
    found: Layout
    rows_read: int
    dropped: dict[str, int]


def instruments(table: RawTable, options: LoadOptions) -> dict[str | None, Callable[[], Part]]:
    """The instruments of a file by the symbol that it says, None where it says none; each is taken out when it is called for.

    Raises:
      ValueError: as `find_layout`.
    """
    side_by_side = {} if "close" in (options.columns or {}) else wide.unstack(table)
    if side_by_side:
        return {
            symbol: functools.partial(_side, symbol, one, options, table.rows) for symbol, one in side_by_side.items()
        }
    found = find_layout(table, options)
    table, below = _without(table, footers(table, found))
    if "symbol" not in found.index:
        return {table.symbol: functools.partial(_part, table.symbol, table, found, table.rows, below)}
    return {
        symbol: functools.partial(_some, symbol, table, rows, found, below)
        for symbol, rows in _rows_by_symbol(table, found).items()
    }


def _side(symbol: str, one: RawTable, options: LoadOptions, rows: int) -> Part:
    found = find_layout(one, options)
    one, below = _without(one, footers(one, found))
    return _part(symbol, one, found, rows - below, below)


def _some(symbol: str | None, table: RawTable, rows: IntArray, found: Layout, below: int) -> Part:
    return _part(symbol, table if len(rows) == table.rows else _take(table, rows), found, table.rows, below)


def _part(symbol: str | None, table: RawTable, found: Layout, rows: int, below: int) -> Part:
    apart = rows - table.rows
    table, repeated = _without_repeated_headers(table, found)
    outside = {
        "of another symbol": apart,
        "a repeated header": repeated,
        "below the table, without a time and a price": below,
        "with another number of fields": table.malformed,
    }
    dropped = {reason: count for reason, count in outside.items() if count}
    return Part(symbol, table, found, rows + below + table.malformed, dropped)


def _rows_by_symbol(table: RawTable, found: Layout) -> dict[str | None, IntArray]:
    """Rows of each symbol, in the file's order; all rows under None where none has a symbol.

    Rows without a symbol belong to the only one there is, and to none of several.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pc.utf8_trim_whitespace(table.columns[found.index["symbol"]].cast(pa.string()))
    column = pc.fill_null(column, "").combine_chunks()
    coded = pc.dictionary_encode(column)
    names, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)
    known = {name for name in names if name not in ("", found.names["symbol"])}  # the header may be repeated
    if len(known) < 2:
        return {next(iter(known), None): np.arange(table.rows)}
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    rows = np.split(order, ends[:-1])
    return {name: rows[code] for code, name in enumerate(names) if name in known}


def _without_repeated_headers(table: RawTable, found: Layout) -> tuple[RawTable, int]:
    """Files joined end to end have the header again between their rows."""
    import pyarrow.compute as pc

    close = table.columns[found.index["close"]]
    if table.names is None or not decimals.is_text(close):
        return table, 0
    name = table.names[found.index["close"]]
    again: BoolArray = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(close), name), False).to_numpy(
        zero_copy_only=False
    )
    return _without(table, again)


def _without(table: RawTable, rows: BoolArray) -> tuple[RawTable, int]:
    """The table without some rows, and how many they are."""
    return (_take(table, np.flatnonzero(~rows)), int(rows.sum())) if rows.any() else (table, 0)


def _take(table: RawTable, rows: IntArray) -> RawTable:
    import pyarrow as pa

    label = table.label
    columns = tuple(column.take(pa.array(rows)) for column in table.columns)
    return dataclasses.replace(table, columns=columns, label=lambda row: label(int(rows[row])))
