"""Times of bars: typed timestamps, epochs of any unit, compact dates and written dates, to nanoseconds since 1970.

Every row is read by its own shape, so a file may mix them. What reads two ways is refused with the option that settles it.
`calendar_fields.py` takes written times apart, `zones.py` turns local times into UTC.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jaxrl_trade.bars.calendar_fields import (
    CLOCK_SHAPES,
    SHAPES,
    BoolArray,
    CalendarFields,
    IntArray,
    billionths,
    to_bool,
    to_int,
)
from jaxrl_trade.bars.decimals import is_text
from jaxrl_trade.bars.layout import MISSING
from jaxrl_trade.bars.options import quoted
from jaxrl_trade.bars.vendors import normalise
from jaxrl_trade.bars.zones import is_zone

if TYPE_CHECKING:
    import pyarrow as pa

    from jaxrl_trade.bars.rolling import FloatArray

FIRST_YEAR, LAST_YEAR = 1900, 2199  # a year outside says that the time was misread

# (least value, value above, nanoseconds in one): the unit of an epoch shows in its size, from 1973 on
EPOCH_UNITS = ((10**8, 10**11, 10**9), (10**11, 10**14, 10**6), (10**14, 10**17, 10**3), (10**17, 2**63 - 1, 1))
# YYYYMMDD, YYYYMMDDhhmm and YYYYMMDDhhmmss; as epochs they would lie in 1970, in 1976 and after 2570
COMPACT_DIGITS = (8, 12, 14)


@dataclasses.dataclass(frozen=True, eq=False)
class Times:
    """Times of n rows.

    Attributes:
      ns: `[n]` nanoseconds since 1970, in UTC where `absolute`, else on the file's own clock; 0 where missing.
      missing: `[n]` the row has no time.
      absolute: `[n]` an epoch, or a time that carries its offset.
      zone: name of the zone that every other row carries, such as "US/Eastern".
      assumed: what the dates of other rows settled, for the report.
    """

    ns: IntArray
    missing: BoolArray
    absolute: BoolArray
    zone: str | None = None
    assumed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """A column of times and how messages name it and its rows."""

    values: pa.ChunkedArray
    name: str
    origin: str
    label: Callable[[int], str]

    def refuse(self, row: int, why: str) -> ValueError:
        """The error to raise for a row."""
        return ValueError(
            f"{self.origin}, {self.label(row)}: column {self.name!r} has {quoted(self.values[row].as_py())}, {why}"
        )


def read_times(column: Column, day_first: bool | None) -> Times:
    """Times of a column of timestamps, dates, epochs or text.

    Raises:
      ValueError: a value is not a time, or the dates can be read day first and month first.
    """
    import pyarrow as pa

    kind = column.values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        times = _from_timestamps(column)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        times = _from_numbers(column)
    elif is_text(column.values):
        times = _from_text(column, day_first)
    else:
        raise ValueError(f"{column.origin}: column {column.name!r} should hold times, but its type is {kind}")
    low, high = (np.datetime64(f"{year}-01-01", "ns").astype(np.int64) for year in (FIRST_YEAR, LAST_YEAR + 1))
    outside = ~times.missing & ((times.ns < low) | (times.ns >= high))
    if outside.any():
        raise column.refuse(int(np.argmax(outside)), f"a time outside {FIRST_YEAR} to {LAST_YEAR}")
    return times


def read_clock(column: Column) -> IntArray:
    """`[n]` nanoseconds since midnight of a column of times of day, `09:30`, `093000` or `930`; of hours where it is named so.

    Raises:
      ValueError: a value is not a time of day.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_time(column.values.type):
        return to_int(column.values.cast(pa.time64("ns")).cast(pa.int64()))
    text = pc.fill_null(pc.utf8_trim_whitespace(column.values.cast(pa.string())), "")
    text = pc.replace_substring_regex(text, r"\.0$", "")
    is_number = pc.match_substring_regex(text, r"^\d{1,6}$")
    if normalise(column.name) == "hour":
        text = pc.if_else(is_number, pc.binary_join_element_wise(text, "00", ":"), text)
    elif pc.any(is_number).as_py():
        with_seconds = pc.max(pc.utf8_length(text.filter(is_number))).as_py() > 4
        text = pc.if_else(is_number, pc.utf8_lpad(text, 6 if with_seconds else 4, "0"), text)
    fields = CalendarFields(len(text), column.refuse)
    fields.read(text, CLOCK_SHAPES)
    return fields.clock_ns()


def _from_timestamps(column: Column) -> Times:
    import pyarrow as pa

    zone = getattr(column.values.type, "tz", None)
    try:
        ns = to_int(column.values.cast(pa.timestamp("ns", zone)).cast(pa.int64()))
    except pa.ArrowInvalid:
        raise ValueError(
            f"{column.origin}: column {column.name!r} has times outside {FIRST_YEAR} to {LAST_YEAR}"
        ) from None
    return Times(ns, to_bool(column.values.is_null()), np.full(len(ns), zone is not None))


def _from_numbers(column: Column) -> Times:
    """Epochs and compact dates held as integers or floats."""
    import pyarrow as pa

    if pa.types.is_integer(column.values.type):
        missing = to_bool(column.values.is_null())
        whole, fraction = to_int(column.values.cast(pa.int64())), np.zeros(len(missing))
    else:
        numbers = column.values.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
        missing = ~np.isfinite(numbers)
        numbers = np.where(missing | (np.abs(numbers) >= 2.0**63), 0, numbers)  # a number too large is refused as 0
        whole = np.floor(numbers).astype(np.int64)
        fraction = numbers - whole
    return Times(_epoch_or_compact(whole, fraction, ~missing, column), missing, ~missing & ~_is_compact(whole))


def _from_text(column: Column, day_first: bool | None) -> Times:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.fill_null(pc.utf8_trim_whitespace(column.values.cast(pa.string())), "")
    text, zone = _without_zone_names(text)
    missing = to_bool(pc.is_in(pc.utf8_lower(text), pa.array(MISSING)))
    is_number = to_bool(pc.match_substring_regex(text, r"^\d{1,18}(\.\d*)?$|^[1-8]\d{18}(\.\d*)?$"))
    ns, absolute = np.zeros(len(text), np.int64), np.zeros(len(text), bool)
    if is_number.any():
        padded = pc.if_else(pa.array(is_number), text, "0")
        parts = pc.extract_regex(padded, r"^(?P<whole>\d+)(?:\.(?P<fraction>\d{0,9})\d*)?$")
        whole = to_int(pc.struct_field(parts, "whole").cast(pa.int64()))
        ns = _epoch_or_compact(whole, billionths(pc.struct_field(parts, "fraction")) / 1e9, is_number, column)
        absolute = is_number & ~_is_compact(whole)
    rows = np.flatnonzero(~is_number & ~missing)
    assumed: tuple[str, ...] = ()
    if len(rows):
        fields = CalendarFields(len(rows), lambda i, why: column.refuse(int(rows[i]), why))
        fields.read(text.take(pa.array(rows)), SHAPES)
        assumed = fields.settle_order(day_first)
        ns[rows] = fields.date_ns() + fields.clock_ns() - fields.offset
        absolute[rows] = fields.has_zone
    return Times(ns, missing, absolute, zone, assumed)


def _without_zone_names(text: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str | None]:
    """Times without the zone name behind them, as in `20240115 09:30:00 US/Eastern`, where all that have one have the same."""
    import pyarrow.compute as pc

    if not pc.any(pc.match_substring(text, "/")).as_py():
        return text, None
    parts = pc.extract_regex(text, r"^(?P<time>.*[0-9]) +(?P<zone>[A-Z][A-Za-z]+/[A-Za-z_/]+)$")
    zones = pc.unique(pc.struct_field(parts, "zone")).drop_null().to_pylist()
    if len(zones) != 1 or not is_zone(zones[0]):
        return text, None  # rows with several names, or another word, are refused as no times
    return pc.coalesce(pc.struct_field(parts, "time"), text), str(zones[0])


def _is_compact(whole: IntArray) -> BoolArray:
    """Whether a number is, by its size, a compact date rather than an epoch."""
    compact = np.zeros(len(whole), bool)
    for digits in COMPACT_DIGITS:
        year = 10 ** (digits - 4)
        compact |= (whole >= FIRST_YEAR * year) & (whole < (LAST_YEAR + 1) * year)
    return compact


def _epoch_or_compact(whole: IntArray, fraction: FloatArray, rows: BoolArray, column: Column) -> IntArray:
    """Nanoseconds of the marked rows, each read by its own size; 0 elsewhere."""
    ns = np.zeros(len(whole), np.int64)
    compact = _is_compact(whole) & rows
    done = compact.copy()
    for least, above, unit in EPOCH_UNITS:
        inside = rows & ~compact & (whole >= least) & (whole < above)
        ns[inside] = whole[inside] * unit + np.rint(fraction[inside] * unit).astype(np.int64)
        done |= inside
    if (rows & ~done).any():
        why = "which is neither an epoch (seconds to nanoseconds, from 1973 on) nor YYYYMMDD"
        raise column.refuse(int(np.argmax(rows & ~done)), why)
    if compact.any():
        ns[compact] = _compact_ns(whole[compact], np.flatnonzero(compact), column)
    return ns


def _compact_ns(whole: IntArray, rows: IntArray, column: Column) -> IntArray:
    number = whole * np.select([whole < 10**8, whole < 10**12], [10**6, 10**2], 1)  # all YYYYMMDDhhmmss
    date, clock = number // 10**6, number % 10**6
    fields = CalendarFields(len(rows), lambda i, why: column.refuse(int(rows[i]), why))
    fields.values |= {"year": date // 10**4, "month": date // 100 % 100, "day": date % 100}
    fields.values |= {"hour": clock // 10**4, "minute": clock // 100 % 100, "second": clock % 100}
    return fields.date_ns() + fields.clock_ns()
