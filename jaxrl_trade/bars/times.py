"""Times of bars: epochs of any unit, compact and written dates, day first or month first, and time zones, to UTC.

Every row is read by its own shape, so a file may mix them. What reads two ways is refused with the setting that settles it.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import zoneinfo
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxrl_trade.bars.layout import MISSING
from jaxrl_trade.bars.options import SETTLE

if TYPE_CHECKING:
    import pyarrow as pa

    from jaxrl_trade.bars.rolling import FloatArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

DAY, HOUR, MINUTE, SECOND = 86_400 * 10**9, 3600 * 10**9, 60 * 10**9, 10**9  # ns
FIRST_YEAR, LAST_YEAR = 1900, 2199  # a year outside says that the time was misread

# (least value, value above, nanoseconds in one): the unit of an epoch shows in its size, from 1973 on
EPOCH_UNITS = ((10**8, 10**11, 10**9), (10**11, 10**14, 10**6), (10**14, 10**17, 10**3), (10**17, 2**63 - 1, 1))
# digits of a compact calendar time -> its last part; as epochs they would lie in 1970, 1976 or after 2570
COMPACT = {8: "day", 12: "minute", 14: "second"}

_DATES = (
    r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})",
    r"(?P<first>\d{1,2})[-/.](?P<second_field>\d{1,2})[-/.](?P<year>\d{4})",
    r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})",
    r"(?P<day>\d{1,2})[- ](?P<month_name>[A-Za-z]{3,9})\.?[-, ]+(?P<year>\d{4})",
    r"(?P<month_name>[A-Za-z]{3,9})\.? (?P<day>\d{1,2}),? +(?P<year>\d{4})",
)
_CLOCKS = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?(?: ?(?P<half>[AaPp][Mm]))?",
    r"(?P<hour>\d{2})(?P<minute>\d{2})(?P<second>\d{2})?",
    r"(?P<hour>\d{1,2})-(?P<half>[AaPp][Mm])",
)
_ZONE = r"(?: ?(?P<zone>[Zz]|(?:UTC|GMT)?[+-]\d{1,2}(?::?\d{2})?|UTC|GMT))?"
_SHAPES = tuple(rf"^{date}(?:(?:[T,]| +|, +){clock}{_ZONE})?$" for clock in _CLOCKS for date in _DATES)
_CLOCK_SHAPES = tuple(rf"^{clock}$" for clock in _CLOCKS)
_MONTHS = {
    name: i + 1
    for i, name in enumerate(("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"))
}


@dataclasses.dataclass(frozen=True, eq=False)
class Times:
    """Times of n rows.

    Attributes:
      ns: `[n]` nanoseconds since 1970, in UTC where `absolute`, else on the file's own clock; 0 where missing.
      missing: `[n]` the row has no time.
      absolute: `[n]` an epoch, or a time that carries its offset.
    """

    ns: IntArray
    missing: BoolArray
    absolute: BoolArray


@dataclasses.dataclass(frozen=True)
class Column:
    """Where times come from, for messages."""

    name: str
    origin: str
    label: Callable[[int], str]

    def refuse(self, row: int, value: object, why: str) -> ValueError:
        """The error to raise for a row."""
        return ValueError(f"{self.origin}, {self.label(row)}: column {self.name!r} has {value!r}, {why}")


def read_times(values: pa.ChunkedArray, column: Column, day_first: bool | None) -> Times:
    """Times of a column of timestamps, dates, epochs or text.

    Raises:
      ValueError: a value is not a time, or the dates can be read day first and month first.
    """
    import pyarrow as pa

    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        zone = getattr(kind, "tz", None)
        ns = _cast_ns(values, zone, column)
        missing = values.is_null().to_numpy(zero_copy_only=False).astype(bool)
        times = Times(np.where(missing, 0, ns), missing, np.full(len(ns), zone is not None))
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        times = _from_numbers(values, column)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        times = _from_text(values.cast(pa.string()), column, day_first)
    else:
        raise ValueError(f"{column.origin}: column {column.name!r} should hold times, but its type is {kind}")
    low, high = (np.datetime64(f"{year}-01-01", "ns").astype(np.int64) for year in (FIRST_YEAR, LAST_YEAR + 1))
    outside = ~times.missing & ((times.ns < low) | (times.ns >= high))
    if outside.any():
        row = int(np.argmax(outside))
        raise column.refuse(row, values[row].as_py(), f"a time outside {FIRST_YEAR} to {LAST_YEAR}")
    return times


def read_clock(values: pa.ChunkedArray, column: Column) -> IntArray:
    """`[n]` nanoseconds since midnight of a column of times of day, `09:30`, `093000` or `930`.

    Raises:
      ValueError: a value is not a time of day.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_time(values.type):
        return _to_int(values.cast(pa.time64("ns")).cast(pa.int64()))
    text = pc.fill_null(pc.utf8_trim_whitespace(values.cast(pa.string())), "")
    text = pc.replace_substring_regex(text, r"\.0$", "")
    digits = pc.match_substring_regex(text, r"^\d{1,6}$")
    if pc.any(digits).as_py():
        numbers = text.filter(digits)
        with_seconds = pc.max(pc.utf8_length(numbers)).as_py() > 4
        text = pc.if_else(digits, pc.utf8_lpad(text, 6 if with_seconds else 4, "0"), text)
    fields = _Fields(len(text))
    for shape in _CLOCK_SHAPES:
        fields.read(text, shape)
    if not fields.matched.all():
        row = int(np.argmin(fields.matched))
        raise column.refuse(row, values[row].as_py(), "which is not a time of day")
    return fields.clock_ns(column, values)


def to_utc(times: Times, tz: str | None, content: FloatArray) -> tuple[IntArray, dict[str, BoolArray], tuple[str, ...]]:
    """UTC nanoseconds of every row.

    Args:
      times: n rows, in the file's order.
      tz: zone of the rows that are not absolute; UTC when None.
      content: `[n, k]` values of the rows; rows of one local time that agree in them are copies, not the hour that a clock
        put back in autumn shows twice.
    Returns:
      `[n]` nanoseconds; the rows that have no UTC time, by reason; warnings.
    """
    local = ~times.absolute & ~times.missing
    if tz is None:
        warning = "times carry no time zone and are taken as UTC; if they are not, say so with " + SETTLE["tz"]
        return times.ns, {}, (warning,) if local.any() else ()
    zone = parse_zone(tz)
    if not local.any():
        return times.ns, {}, (f"the times say their own offset, so {tz} was not used",)
    ns, skipped, unclear = _localise(times.ns, local, zone, content)
    reasons = {"local time skipped by daylight saving": skipped, "local time shown twice by daylight saving": unclear}
    return ns, {reason: rows for reason, rows in reasons.items() if rows.any()}, ()


def parse_zone(tz: str) -> datetime.tzinfo:
    """Zone of a name such as "Europe/Berlin", or an offset such as "-05:00".

    Raises:
      ValueError: neither.
    """
    offset = re.fullmatch(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?", tz.strip())
    if offset:
        sign, hours, minutes = offset.groups()
        size = datetime.timedelta(hours=int(hours), minutes=int(minutes or 0))
        if size < datetime.timedelta(hours=24):
            return datetime.timezone(size if sign == "+" else -size)
    try:
        return zoneinfo.ZoneInfo(tz.strip())
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f'tz = {tz!r} is no time zone; write one such as "America/New_York" or "-05:00"') from None


def wall_clock(times: NDArray[np.datetime64], tz: str) -> NDArray[np.datetime64]:
    """What a clock in `tz` shows at UTC times, `[n]` datetime64[ns]."""
    import pandas as pd

    index = pd.DatetimeIndex(times).tz_localize("UTC").tz_convert(parse_zone(tz)).tz_localize(None)
    return index.to_numpy().astype("datetime64[ns]")


def _localise(
    ns: IntArray, local: BoolArray, zone: datetime.tzinfo, content: FloatArray
) -> tuple[IntArray, BoolArray, BoolArray]:
    """UTC of local rows; which of them the spring change skips, and which the autumn change leaves unclear.

    A local time shown twice is told by its rows: of two that differ, the earlier in time order is summer time.
    """
    import pandas as pd

    rows = np.flatnonzero(local)
    wall = pd.DatetimeIndex(ns[rows].astype("datetime64[ns]"))
    summer, winter = (
        wall.tz_localize(zone, ambiguous=np.full(len(wall), is_summer), nonexistent="NaT")
        .tz_convert("UTC")
        .as_unit("ns")
        for is_summer in (True, False)
    )
    skipped_here = np.asarray(summer.isna())
    summer_ns, winter_ns = summer.asi8.copy(), winter.asi8
    twice = np.flatnonzero((summer_ns != winter_ns) & ~skipped_here)
    unclear_here = np.zeros(len(rows), bool)
    if len(twice):
        ascending = ns[rows[-1]] >= ns[rows[0]]
        order = twice if ascending else twice[::-1]
        table = pd.DataFrame(content[rows[order]])
        table["wall"] = ns[rows[order]]
        kept = order[~table.duplicated().to_numpy()]
        walls = pd.Series(ns[rows[kept]])
        showing, total = walls.groupby(walls).cumcount().to_numpy(), walls.groupby(walls).transform("size").to_numpy()
        summer_ns[kept[(total == 2) & (showing == 1)]] = winter_ns[kept[(total == 2) & (showing == 1)]]
        unclear_here[order] = True
        unclear_here[kept[total == 2]] = False
    utc, skipped, unclear = ns.copy(), np.zeros(len(ns), bool), np.zeros(len(ns), bool)
    utc[rows] = np.where(skipped_here, 0, summer_ns)
    skipped[rows], unclear[rows] = skipped_here, unclear_here
    return utc, skipped, unclear


def _cast_ns(values: pa.ChunkedArray, zone: str | None, column: Column) -> IntArray:
    import pyarrow as pa

    try:
        return _to_int(values.cast(pa.timestamp("ns", zone)).cast(pa.int64()))
    except pa.ArrowInvalid:
        raise ValueError(
            f"{column.origin}: column {column.name!r} has times outside {FIRST_YEAR} to {LAST_YEAR}"
        ) from None


def _from_numbers(values: pa.ChunkedArray, column: Column) -> Times:
    """Epochs and compact dates held as integers or floats."""
    import pyarrow as pa

    if pa.types.is_integer(values.type):
        missing = values.is_null().to_numpy(zero_copy_only=False).astype(bool)
        whole, fraction = _to_int(values.cast(pa.int64())), np.zeros(len(values))
    else:
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
        missing = ~np.isfinite(numbers)
        whole = np.where(missing, 0, np.floor(numbers)).astype(np.int64)
        fraction = np.where(missing, 0, numbers - whole)
    return Times(_epoch_or_compact(whole, fraction, ~missing, column, values), missing, ~missing & ~_is_compact(whole))


def _from_text(values: pa.ChunkedArray, column: Column, day_first: bool | None) -> Times:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.fill_null(pc.utf8_trim_whitespace(values), "")
    missing = pc.is_in(pc.utf8_lower(text), pa.array(MISSING)).to_numpy(zero_copy_only=False).astype(bool)
    ns, absolute = np.zeros(len(text), np.int64), np.zeros(len(text), bool)
    is_number = pc.match_substring_regex(text, r"^\d{1,19}(\.\d*)?$").to_numpy(zero_copy_only=False).astype(bool)
    if is_number.any():
        parts = pc.extract_regex(
            pc.if_else(is_number, text, "0"), r"^(?P<whole>\d{1,19})(?:\.(?P<fraction>\d{0,9})\d*)?$"
        )
        try:
            whole = _to_int(pc.struct_field(parts, "whole").cast(pa.int64()))
        except pa.ArrowInvalid:
            raise ValueError(f"{column.origin}: column {column.name!r} has numbers too large for a time") from None
        fraction = _fraction(pc.struct_field(parts, "fraction")) / 1e9
        ns = _epoch_or_compact(whole, fraction, is_number, column, values)
        absolute = is_number & ~_is_compact(whole)
    written = ~is_number & ~missing
    if written.any():
        rows = np.flatnonzero(written)
        ns[rows], absolute[rows] = _from_written(text.filter(pa.array(written)), rows, column, day_first)
    return Times(np.where(missing, 0, ns), missing, absolute & ~missing)


def _is_compact(whole: IntArray) -> BoolArray:
    """Whether a number is YYYYMMDD, YYYYMMDDhhmm or YYYYMMDDhhmmss by its size."""
    compact = np.zeros(len(whole), bool)
    for digits in COMPACT:
        unit = 10 ** (digits - 4)
        compact |= (whole >= FIRST_YEAR * unit) & (whole < (LAST_YEAR + 1) * unit)
    return compact


def _epoch_or_compact(
    whole: IntArray, fraction: FloatArray, rows: BoolArray, column: Column, values: pa.ChunkedArray
) -> IntArray:
    """Nanoseconds of the marked rows, each read by its own size."""
    ns = np.zeros(len(whole), np.int64)
    compact = _is_compact(whole) & rows
    done = compact.copy()
    for least, above, unit in EPOCH_UNITS:
        inside = rows & ~compact & (whole >= least) & (whole < above)
        ns[inside] = whole[inside] * unit + np.rint(fraction[inside] * unit).astype(np.int64)
        done |= inside
    if (rows & ~done).any():
        row = int(np.argmax(rows & ~done))
        why = "which is neither an epoch (seconds to nanoseconds, from 1973 on) nor YYYYMMDD"
        raise column.refuse(row, values[row].as_py(), why)
    if compact.any():
        at = np.flatnonzero(compact)
        number = whole[at]
        scale = np.select([number < 10**8, number < 10**12], [10**6, 10**2], 1)  # up to YYYYMMDDhhmmss
        number = number * scale
        date, clock = number // 10**6, number % 10**6
        fields = _Fields(len(at))
        fields.matched[:] = True
        fields.values |= {"year": date // 10**4, "month": date // 100 % 100, "day": date % 100}
        fields.values |= {"hour": clock // 10**4, "minute": clock // 100 % 100, "second": clock % 100}
        ns[at] = fields.date_ns(column, values, at) + fields.clock_ns(column, values, at)
    return ns


def _from_written(
    text: pa.ChunkedArray, rows: IntArray, column: Column, day_first: bool | None
) -> tuple[IntArray, BoolArray]:
    """Nanoseconds and whether they are absolute, of dates written out."""
    fields = _Fields(len(text))
    for shape in _SHAPES:
        fields.read(text, shape)
    if not fields.matched.all():
        row = int(np.argmin(fields.matched))
        raise column.refuse(int(rows[row]), text[row].as_py(), "which is not a time this loader knows")
    fields.settle_order(column, text, rows, day_first)
    ns = fields.date_ns(column, text, rows, own_rows=True) + fields.clock_ns(column, text, rows, own_rows=True)
    return ns - fields.offset, fields.has_zone


class _Fields:
    """Year, month, day, hour, ... of n rows, filled shape by shape from the rows that no earlier shape matched."""

    def __init__(self, n: int) -> None:
        names = ("year", "month", "day", "hour", "minute", "second", "nanosecond", "first", "second_field")
        self.values: dict[str, IntArray] = {name: np.zeros(n, np.int64) for name in names}
        self.matched = np.zeros(n, bool)
        self.numeric = np.zeros(n, bool)  # rows of the shape 03/04/2021
        self.has_zone = np.zeros(n, bool)
        self.offset = np.zeros(n, np.int64)  # ns east of UTC

    def read(self, text: pa.ChunkedArray, shape: str) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        open_rows = np.flatnonzero(~self.matched)
        if not len(open_rows):
            return
        parts = pc.extract_regex(text.take(pa.array(open_rows)), shape)
        hit = pc.is_valid(parts).to_numpy(zero_copy_only=False).astype(bool)
        if not hit.any():
            return
        parts, rows = parts.filter(pa.array(hit)), open_rows[hit]
        self.matched[rows] = True
        present = {parts.type.field(i).name for i in range(parts.type.num_fields)}
        for name in present - {"zone", "half", "fraction", "month_name"}:
            self.values[name][rows] = _digits(pc.struct_field(parts, name))
        if "fraction" in present:
            self.values["nanosecond"][rows] = _fraction(pc.struct_field(parts, "fraction")).astype(np.int64)
        if "month_name" in present:
            self.values["month"][rows] = _by_value(
                pc.struct_field(parts, "month_name"), lambda s: _MONTHS.get(s[:3].lower(), 0)
            )
        if "half" in present:
            shift = _by_value(pc.struct_field(parts, "half"), lambda s: {"a": 1, "p": 2}.get(s[:1].lower(), 0))
            hour = self.values["hour"][rows]
            twelve = np.where(hour > 12, 99, hour % 12 + 12 * (shift == 2))
            self.values["hour"][rows] = np.where(shift > 0, twelve, hour)
        if "zone" in present:
            zone = pc.struct_field(parts, "zone")
            self.has_zone[rows] = _by_value(zone, lambda s: int(bool(s))).astype(bool)
            self.offset[rows] = _by_value(zone, _zone_offset)
        self.numeric[rows] = "first" in present

    def settle_order(self, column: Column, text: pa.ChunkedArray, rows: IntArray, day_first: bool | None) -> None:
        """Day and month of dates such as 03/04/2021, from a first or second number above 12 in any row, or from the user."""
        if not self.numeric.any():
            return
        first, second = self.values["first"], self.values["second_field"]
        for_day, for_month = self.numeric & (first > 12), self.numeric & (second > 12)
        if for_day.any() and for_month.any():
            a, b = int(np.argmax(for_day)), int(np.argmax(for_month))
            raise column.refuse(
                int(rows[a]), text[a].as_py(), f"day first, and {text[b].as_py()!r}, month first; no order fits both"
            )
        if day_first is None:
            if not for_day.any() and not for_month.any() and (first != second)[self.numeric].any():
                row = int(np.argmax(self.numeric & (first != second)))
                why = f"which reads day first and month first, as every row does; settle it with {SETTLE['day_first']}"
                raise column.refuse(int(rows[row]), text[row].as_py(), why)
            day_first = bool(for_day.any())
        contradiction = for_month if day_first else for_day
        if contradiction.any():
            row = int(np.argmax(contradiction))
            raise column.refuse(int(rows[row]), text[row].as_py(), f"which contradicts day_first={day_first}")
        day, month = (first, second) if day_first else (second, first)
        self.values["day"] = np.where(self.numeric, day, self.values["day"])
        self.values["month"] = np.where(self.numeric, month, self.values["month"])

    def date_ns(self, column: Column, values: Any, rows: IntArray | None = None, own_rows: bool = False) -> IntArray:
        """`[n]` nanoseconds of midnight; refuses the thirtieth of February."""
        year, month, day = (self.values[name] for name in ("year", "month", "day"))
        safe = np.clip(month, 1, 12)
        months = (year - 1970) * 12 + safe - 1
        start, end = (m.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) for m in (months, months + 1))
        self._refuse_any(
            (month != safe) | (day < 1) | (day > end - start), "no day of the calendar", column, values, rows, own_rows
        )
        return (start + day - 1) * DAY

    def clock_ns(self, column: Column, values: Any, rows: IntArray | None = None, own_rows: bool = False) -> IntArray:
        """`[n]` nanoseconds since midnight; refuses 24:00 and later."""
        hour, minute, second, nano = (self.values[name] for name in ("hour", "minute", "second", "nanosecond"))
        self._refuse_any(
            (hour > 23) | (minute > 59) | (second > 59), "no time of the day", column, values, rows, own_rows
        )
        return hour * HOUR + minute * MINUTE + second * SECOND + nano

    @staticmethod
    def _refuse_any(
        bad: BoolArray, why: str, column: Column, values: Any, rows: IntArray | None, own_rows: bool
    ) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            row = at if rows is None else int(rows[at])
            raise column.refuse(row, values[at if own_rows else row].as_py(), f"which is {why}")


def _to_int(array: pa.ChunkedArray) -> IntArray:
    import pyarrow.compute as pc

    return pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _digits(array: pa.ChunkedArray) -> IntArray:
    """Digits as integers; an absent group is 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return _to_int(pc.if_else(pc.equal(array, ""), "0", array).cast(pa.int64()))


def _fraction(array: pa.ChunkedArray) -> IntArray:
    """Digits behind a decimal point, as billionths."""
    import pyarrow.compute as pc

    return _digits(pc.utf8_rpad(pc.fill_null(array, ""), 9, "0"))


def _by_value(array: pa.ChunkedArray, function: Callable[[str], int]) -> IntArray:
    """A function of a text column with few different values."""
    import pyarrow.compute as pc

    coded = pc.dictionary_encode(array.combine_chunks())
    table = np.array([function(value) for value in coded.dictionary.to_pylist()], np.int64)
    return table[coded.indices.to_numpy(zero_copy_only=False)]


def _zone_offset(zone: str) -> int:
    """Nanoseconds east of UTC of `Z`, `+02:00`, `GMT+0200`, `-5`; 0 for none."""
    match = re.search(r"([+-])(\d{1,2}):?(\d{2})?$", zone)
    if match is None:
        return 0
    sign, hours, minutes = match.groups()
    return (1 if sign == "+" else -1) * (int(hours) * HOUR + int(minutes or 0) * MINUTE)
