"""Year, month, day, hour, ... of many written times at once: shapes matched in bulk, calendar checked, nanoseconds out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jaxrl_trade.bars.options import SETTLE

if TYPE_CHECKING:
    import pyarrow as pa

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

DAY, HOUR, MINUTE, SECOND = 86_400 * 10**9, 3600 * 10**9, 60 * 10**9, 10**9  # ns

DATES = (
    r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})",
    r"(?P<first>\d{1,2})[-/.](?P<second_field>\d{1,2})[-/.](?P<year>\d{4})",
    r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})",
    r"(?P<day>\d{1,2})[- ](?P<month_name>[A-Za-z]{3,9})\.?[-, ]+(?P<year>\d{4})",
    r"(?P<month_name>[A-Za-z]{3,9})\.? (?P<day>\d{1,2}),? +(?P<year>\d{4})",
    r"(?P<first>\d{1,2})\.(?P<second_field>\d{1,2})\.(?P<short_year>\d{2})",
)
CLOCKS = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?(?: ?(?P<half>[AaPp][Mm]))?",
    r"(?P<hour>\d{2})(?P<minute>\d{2})(?P<second>\d{2})?",
    r"(?P<hour>\d{1,2})-(?P<half>[AaPp][Mm])",
    r"(?P<hour>\d{1,2})(?:[:.](?P<minute>\d{2})(?:[:.](?P<second>\d{2}))?)? ?[Uu]hr",
)
ZONE = r"(?: ?(?P<zone>[Zz]|(?:UTC|GMT)?[+-]\d{1,2}(?::?\d{2})?|UTC|GMT))?"
SHAPES = (
    *(rf"^{date}(?:(?:[T,]| +|, +){clock}{ZONE})?$" for clock in CLOCKS for date in DATES),
    rf"^{DATES[2]}-{CLOCKS[0]}$",  # 20240115-14:30:00, of Interactive Brokers
)
CLOCK_SHAPES = tuple(rf"^{clock}$" for clock in CLOCKS)
UNORDERED_SHARE = 0.1  # of the rows; more steps against the others' order show no order
UNKNOWN = "which is not a time this loader knows"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class CalendarFields:
    """Fields of n times, filled shape by shape from the rows that no earlier shape matched.

    Attributes:
      values: `[n]` integers by field name; month and day of a numeric date wait for `settle_order`.
      matched: `[n]` a shape fits.
      has_zone: `[n]` the time carries its offset; `offset` holds it, nanoseconds east of UTC.
      refuse: makes the error of row i out of a reason.
    """

    def __init__(self, n: int, refuse: Callable[[int, str], ValueError]) -> None:
        names = ("year", "month", "day", "hour", "minute", "second", "nanosecond", "first", "second_field")
        self.values: dict[str, IntArray] = {name: np.zeros(n, np.int64) for name in names}
        self.matched = np.zeros(n, bool)
        self.has_zone = np.zeros(n, bool)
        self.offset = np.zeros(n, np.int64)
        self.refuse = refuse
        self._numeric = np.zeros(n, bool)  # rows such as 03/04/2021
        self._short = np.zeros(n, bool)  # rows such as 14.03.21

    def read(self, text: pa.ChunkedArray, shapes: tuple[str, ...]) -> None:
        """Match n texts; a row that no shape fits is refused."""
        for shape in shapes:
            self._read_shape(text, shape)
        self._refuse_any(~self.matched, UNKNOWN)

    def settle_order(self, day_first: bool | None) -> tuple[str, ...]:
        """Day and month of dates such as 03/04/2021: shown by a number above 12 in any row, or said by the user.

        Returns:
          What was found out, for the report.
        """
        if not self._numeric.any():
            return ()
        shown: tuple[str, ...] = ()
        said = day_first is not None
        first, second = self.values["first"], self.values["second_field"]
        shows_day, shows_month = self._numeric & (first > 12), self._numeric & (second > 12)
        if day_first is None:
            if shows_day.any() and shows_month.any():
                self._refuse_any(shows_month, "month first, but other rows of the column have the day first")
            if not shows_day.any() and not shows_month.any():
                why = f"which reads day first and month first, as every row does; settle it with {SETTLE['day_first']}"
                self._refuse_any(self._numeric & (first != second), why)
            day_first = bool(shows_day.any())
            if shows_day.any() or shows_month.any():
                i = int(np.argmax(shows_day | shows_month))
                shown = (f"dates have the {'day' if day_first else 'month'} first, as {first[i]}/{second[i]} shows",)
        self._refuse_any(shows_month if day_first else shows_day, f"which contradicts day_first={day_first}")
        day, month = (first, second) if day_first else (second, first)
        self.values["day"] = np.where(self._numeric, day, self.values["day"])
        self.values["month"] = np.where(self._numeric, month, self.values["month"])
        if not self._short.any():
            return shown
        if not said:
            why = f"which may have the year first or last; if last, settle it with {SETTLE['day_first']}"
            self._refuse_any(self._short & self._may_have_the_year_first(), why)
        return (*shown, "years of two digits are those of 1970 to 2069")

    def date_ns(self) -> IntArray:
        """`[n]` nanoseconds since 1970 of midnight; the thirtieth of February is refused."""
        year, month, day = (self.values[name] for name in ("year", "month", "day"))
        safe = np.clip(month, 1, 12)
        months = (year - 1970) * 12 + safe - 1
        start, end = (m.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) for m in (months, months + 1))
        self._refuse_any((month != safe) | (day < 1) | (day > end - start), "which is no day of the calendar")
        return (start + day - 1) * DAY

    def clock_ns(self) -> IntArray:
        """`[n]` nanoseconds since midnight; 24:00 and later are refused."""
        hour, minute, second, nano = (self.values[name] for name in ("hour", "minute", "second", "nanosecond"))
        self._refuse_any((hour > 23) | (minute > 59) | (second > 59), "which is no time of the day")
        return hour * HOUR + minute * MINUTE + second * SECOND + nano

    def _may_have_the_year_first(self) -> bool:
        """Whether 21.03.04 and the like could be of 2021, which neither a field nor the order of the rows rules out."""
        first, second, last, month, day = (
            self.values[name][self._short] for name in ("first", "second_field", "year", "month", "day")
        )
        as_day = last % 100
        if ((second < 1) | (second > 12) | (as_day < 1) | (as_day > 31)).any():
            return False
        year_last = last * 10_000 + month * 100 + day
        year_first = _full_year(first) * 10_000 + second * 100 + as_day
        turns, other_turns = _turns(year_last), _turns(year_first)
        if turns > UNORDERED_SHARE * len(last) or turns > other_turns:
            return True
        within_a_year = (last == last[0]).all() and (first != first[0]).any()  # a bar a year on one day is none
        return turns == other_turns and not within_a_year

    def _read_shape(self, text: pa.ChunkedArray, shape: str) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        open_rows = np.flatnonzero(~self.matched)
        if not len(open_rows):
            return
        parts = pc.extract_regex(text if len(open_rows) == len(text) else text.take(pa.array(open_rows)), shape)
        hit = to_bool(pc.is_valid(parts))
        if not hit.any():
            return
        parts, rows = parts.filter(pa.array(hit)), open_rows[hit]
        group = {parts.type.field(i).name: pc.struct_field(parts, i) for i in range(parts.type.num_fields)}
        self.matched[rows] = True
        self._numeric[rows] = "first" in group
        for name in group.keys() & self.values.keys():
            self.values[name][rows] = digits_to_int(group[name])
        if "short_year" in group:
            self._short[rows] = True
            self.values["year"][rows] = _full_year(digits_to_int(group["short_year"]))
        if "fraction" in group:
            self.values["nanosecond"][rows] = billionths(group["fraction"])
        if "month_name" in group:
            self.values["month"][rows] = _by_value(group["month_name"], _month_number)
        if "half" in group:
            half = _by_value(group["half"], lambda text: {"a": 1, "p": 2}.get(text[:1].lower(), 0))
            hour = self.values["hour"][rows]
            of_twelve = np.where(
                (hour < 1) | (hour > 12), 99, hour % 12 + np.where(half == 2, 12, 0)
            )  # 99 is refused later
            self.values["hour"][rows] = np.where(half > 0, of_twelve, hour)
        if "zone" in group:
            self.has_zone[rows] = _by_value(group["zone"], lambda text: int(bool(text))) > 0
            self.offset[rows] = _by_value(group["zone"], _offset_ns)

    def _refuse_any(self, rows: BoolArray, why: str) -> None:
        if rows.any():
            raise self.refuse(int(np.argmax(rows)), why)


def _full_year(year: IntArray) -> IntArray:
    """Years of two digits as POSIX has them, but from 1970 on: 1970 to 2069."""
    return year + np.where(year < 70, 2000, 1900)


def _turns(values: IntArray) -> int:
    """Steps against the order of most of them, ascending or descending."""
    steps = np.diff(values)
    return int(min((steps > 0).sum(), (steps < 0).sum()))


def to_int(array: pa.ChunkedArray) -> IntArray:
    """An integer column, 0 where null."""
    import pyarrow.compute as pc

    return pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.int64)


def to_bool(array: pa.ChunkedArray) -> BoolArray:
    """A boolean column, false where null."""
    import pyarrow.compute as pc

    return pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(bool)


def digits_to_int(array: pa.ChunkedArray) -> IntArray:
    """Text of digits as integers; an absent group is 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return to_int(pc.if_else(pc.equal(array, ""), "0", array).cast(pa.int64()))


def billionths(array: pa.ChunkedArray) -> IntArray:
    """Digits behind a decimal point, as billionths."""
    import pyarrow.compute as pc

    return digits_to_int(pc.utf8_rpad(pc.fill_null(array, ""), 9, "0"))


def _by_value(array: pa.ChunkedArray, function: Callable[[str], int]) -> IntArray:
    """A function of a text column with few different values."""
    import pyarrow.compute as pc

    coded = pc.dictionary_encode(array.combine_chunks())
    table = np.array([function(value) for value in coded.dictionary.to_pylist()], np.int64)
    return table[coded.indices.to_numpy(zero_copy_only=False)]


def _month_number(name: str) -> int:
    """1 to 12 of an English name or its first letters; 0, which is refused later, for another word."""
    return MONTHS.index(name[:3].lower()) + 1 if name[:3].lower() in MONTHS else 0


def _offset_ns(zone: str) -> int:
    """Nanoseconds east of UTC of `+02:00`, `GMT+0200`, `-5`; 0 for `Z`, `UTC` and none."""
    match = re.search(r"([+-])(\d{1,2}):?(\d{2})?$", zone)
    if match is None:
        return 0
    sign, hours, minutes = match.groups()
    return (1 if sign == "+" else -1) * (int(hours) * HOUR + int(minutes or 0) * MINUTE)
