"""Numbers and times of one instrument's rows, out of the columns that its layout names; parts of one instrument joined."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from jaxrl_trade.bars import decimals, formats, times, zones
from jaxrl_trade.bars.calendar_fields import DAY, BoolArray, IntArray
from jaxrl_trade.bars.instruments import Part
from jaxrl_trade.bars.options import LoadOptions, printable
from jaxrl_trade.bars.rolling import FloatArray
from jaxrl_trade.bars.vendors import PRICES

COLUMNS = (*PRICES, "volume")


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """`ns [n]` UTC nanoseconds and `values [n, 5]`, NaN where missing, in the file's order.

    `excluded` holds the rows that have no time, by reason; `assumed` what was found out or taken for granted on the way.
    """

    ns: IntArray
    values: FloatArray
    excluded: dict[str, BoolArray]
    assumed: tuple[str, ...]


def read_rows(part: Part, options: LoadOptions) -> Rows:
    """Rows of a part.

    Raises:
      ValueError: a value is no number or no time, or reads two ways.
    """
    values, of_values = _values(part, options)
    ns, excluded, of_times = _times(part, options, values)
    return Rows(ns, values, excluded, (*part.found.assumed, *of_values, *of_times))


def join(parts: Sequence[Rows]) -> Rows:
    """Rows of one instrument, from several files one behind the other."""
    reasons = dict.fromkeys(reason for rows in parts for reason in rows.excluded)
    nothing = [np.zeros(len(rows.ns), bool) for rows in parts]
    return Rows(
        np.concatenate([rows.ns for rows in parts]),
        np.concatenate([rows.values for rows in parts]),
        {
            reason: np.concatenate([rows.excluded.get(reason, none) for rows, none in zip(parts, nothing, strict=True)])
            for reason in reasons
        },
        tuple(dict.fromkeys(assumption for rows in parts for assumption in rows.assumed)),
    )


def _values(part: Part, options: LoadOptions) -> tuple[FloatArray, list[str]]:
    """`[n, 5]` open, high, low, close, volume, adjusted for splits and dividends where the file says how; NaN if missing."""
    table, found = part.table, part.found
    roles = [role for role in (*COLUMNS, "adj_close") if role in found.index]
    columns = {role: table.columns[found.index[role]] for role in roles}
    mark = decimals.decimal_mark(columns.values(), options, table.origin)
    numbers = {
        role: decimals.to_float(column, mark, found.names[role], table.label, table.origin)
        for role, column in columns.items()
    }
    assumed = ["the comma is the decimal mark"] if mark == "," and options.decimal is None else []
    vendor = found.vendor
    if vendor is not None and all(decimals.is_whole(columns[role]) for role in PRICES if role in columns):
        for role in numbers.keys() & set(PRICES):
            numbers[role] = np.where(numbers[role] == vendor.no_price, np.nan, numbers[role]) / vendor.whole_prices
        assumed.append(f"prices are whole numbers of 1/{vendor.whole_prices:,}, as {vendor.name} writes them")
    close = numbers["close"]
    values = np.column_stack(
        [*(numbers.get(role, close) for role in PRICES), numbers.get("volume", np.zeros(len(close)))]
    )
    return _adjusted(values, numbers.get("adj_close"), found.names.get("adj_close", ""), assumed)


def _adjusted(
    values: FloatArray, adjusted: FloatArray | None, name: str, assumed: list[str]
) -> tuple[FloatArray, list[str]]:
    """Prices times the ratio of the adjusted close to the close."""
    if adjusted is None:
        return values, assumed
    adjusted = np.where(adjusted > 0, adjusted, np.nan)
    if not np.isfinite(adjusted).any():
        return values, [*assumed, f"the column {name!r} has no prices and was not used"]
    close = values[:, 3].copy()
    same = adjusted == close
    values[:, :4] *= np.where(same, 1.0, adjusted / np.where(close > 0, close, np.nan))[:, None]
    return values, assumed if same.all() else [*assumed, f"prices are adjusted by the column {name!r}"]


def _times(
    part: Part, options: LoadOptions, values: FloatArray
) -> tuple[IntArray, dict[str, BoolArray], tuple[str, ...]]:
    """`[n]` UTC nanoseconds, the rows that have none by reason, what was assumed."""
    table, found = part.table, part.found

    def column(role: str) -> times.Column:
        return times.Column(table.columns[found.index[role]], found.names[role], table.origin, table.label)

    if "date" in found.index:
        read = times.read_times(column("date"), options.day_first)
        if "clock" in found.index:
            read = dataclasses.replace(read, ns=read.ns + times.read_clock(column("clock")))
    else:
        read = times.read_times(column("time"), options.day_first)
    if "clock" not in found.index:
        _refuse_days_without_their_clock(part, read)
    said = read.zone or table.zone or _zone_of_name(found.names.get("time", ""))
    ns, excluded, assumed = zones.to_utc(read.ns, ~read.absolute & ~read.missing, options.tz, said, values)
    return ns, {"without a time": read.missing} | excluded, (*read.assumed, *assumed)


def _refuse_days_without_their_clock(part: Part, read: times.Times) -> None:
    """Refuse days that come several times, under different times of day in a column that plays no role."""
    table, found = part.table, part.found
    days = read.ns[~read.missing]
    if (days % DAY).any() or len(np.unique(days)) == len(days):
        return
    clock = formats.clock_left_over(table, found.index)
    if clock is None:
        return
    shown = table.columns[clock].cast("string").to_numpy(zero_copy_only=False).astype(str)[~read.missing]
    if len(set(zip(days.tolist(), shown, strict=True))) > len(np.unique(days)):  # else copies of daily bars
        date = found.index["time"] if "time" in found.index else found.index["date"]
        names = table.names or [str(i + 1) for i in range(len(table.columns))]
        first, second = printable(names[date]), printable(names[clock])
        raise ValueError(
            f"{table.origin}: column {first!r} has days alone, and several rows of one; the column {second!r} looks like their "
            f"times of day: name both with columns= (--columns date={first},clock={second})"
        )


def _zone_of_name(name: str) -> str | None:
    """The zone that the name of the column of times says: UTC of `Gmt time` and `timestamp_utc`, EET of `Time (EET)`."""
    if re.search(r"(?<![a-z])(utc|gmt)(?![a-z])", name.lower()):
        return "UTC"
    bracket = re.search(r"\(([A-Za-z_/]+)\)", name)
    return bracket[1] if bracket and zones.is_zone(bracket[1]) else None
