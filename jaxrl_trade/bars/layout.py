"""From the bytes of a file to its columns, untouched: delimiter, banner, header or none, and Parquet and Arrow files.

Knows how tables are written, not what their columns mean; `formats.py` does that.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxrl_trade.bars import files

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

DELIMITERS = ("\t", ";", "|", ",")  # in this order: in a semicolon file the comma may be the decimal mark
HEAD_BYTES = 1 << 18  # enough to find the delimiter, the header and the first rows
HEAD_LINES = 100
MALFORMED_SHARE, MALFORMED_ROWS = 0.01, 3  # more rows of a wrong width than both: the layout was not understood

# what stands for "no value", lower case; an infinite price is none either
MISSING = ("", "nan", "null", "none", "n/a", "na", "<na>", "#n/a", "nat", "-", "--", "inf", "+inf", "-inf")
_NUMBER = re.compile(r"[\s$€£¥]*[-+]?[\d.,]*\d[\d.,]*([eE][-+]?\d+)?\s*")


@dataclasses.dataclass(frozen=True, eq=False)
class RawTable:
    """Columns as the file has them.

    Attributes:
      origin: the file, for messages.
      names: one per column, as written; None where the file has no header.
      subheaders: rows of names between the header and the first row of numbers.
      columns: pyarrow chunked arrays, text or typed.
      label: where a row stands, for messages, such as "line 17".
      malformed: rows left out because they have another number of fields.
    """

    origin: str
    names: tuple[str, ...] | None
    columns: tuple[pa.ChunkedArray, ...]
    label: Callable[[int], str]
    subheaders: tuple[tuple[str, ...], ...] = ()
    malformed: int = 0

    @property
    def rows(self) -> int:
        """Well-formed rows."""
        return len(self.columns[0])


def read_table(data: bytes, origin: str) -> RawTable:
    """Columns of a Parquet, Arrow (Feather) or delimited text file.

    Raises:
      ValueError: damaged, not a table, or without rows.
    """
    for magic, read in _BINARY_READERS.items():
        if data.startswith(magic):
            return _from_arrow(read(data, origin), origin)
    return _read_text(files.to_text(data, origin), origin)


def from_frame(frame: pd.DataFrame, origin: str) -> RawTable:
    """Columns of a pandas frame, its index among them."""
    import pyarrow as pa

    try:
        table = pa.Table.from_pandas(frame)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ValueError(f"{origin}: a column of the frame has values of mixed types ({_first_line(error)})") from None
    return _from_arrow(table, origin)


def is_missing(text: str) -> bool:
    """Whether a field says that it has no value."""
    return text.strip().lower() in MISSING


def _from_arrow(table: pa.Table, origin: str) -> RawTable:
    """Pandas keeps a DatetimeIndex as a column (`__index_level_0__` where it has no name), so the columns are all there is."""
    import pyarrow as pa

    if table.num_rows == 0 or table.num_columns == 0:
        raise ValueError(f"{origin} has no rows")
    columns = tuple(
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    )
    return RawTable(origin, tuple(table.column_names), columns, label=lambda row: f"row {row + 1}")


def _read_parquet(data: bytes, origin: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{origin} is damaged or cut off: it does not read as Parquet ({_first_line(error)})"
        ) from None


def _read_arrow(data: bytes, origin: str) -> pa.Table:
    import pyarrow as pa

    try:
        return pa.ipc.open_file(pa.BufferReader(data)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{origin} is damaged or cut off: it does not read as Arrow ({_first_line(error)})") from None


_BINARY_READERS: dict[bytes, Callable[[bytes, str], pa.Table]] = {b"PAR1": _read_parquet, b"ARROW1": _read_arrow}


@dataclasses.dataclass(frozen=True)
class _Line:
    start: int  # offset of its first byte
    text: str


def _read_text(data: bytes, origin: str) -> RawTable:
    lines = _head_lines(data)
    if not lines:
        raise ValueError(f"{origin} is empty")
    delimiter = _sniff_delimiter([line.text for line in lines], origin)
    rows = [_split(line.text, delimiter) for line in lines]
    first = next((i for i, row in enumerate(rows) if _holds_numbers(row)), None)
    if first is None:
        raise ValueError(f"{origin} has no rows of numbers: its first line is {lines[0].text[:80]!r}")
    width = Counter(len(row) for row in rows[first:]).most_common(1)[0][0]
    names, subheaders = _header(rows[:first], rows[first], width, origin)
    columns, malformed = _parse(data[lines[first].start :], delimiter, width, origin)
    if names is not None and len(names) < width:
        columns, width = columns[:-1], width - 1  # every row ends with a delimiter, the header does not
    first_line = data[: lines[first].start].count(b"\n") + 1
    return RawTable(
        origin,
        names,
        columns,
        label=lambda row: f"line {_line_number(data[lines[first].start :], row, malformed) + first_line}",
        subheaders=subheaders,
        malformed=len(malformed),
    )


def _head_lines(data: bytes) -> list[_Line]:
    """The first lines that are not blank; the last one may be cut off by `HEAD_BYTES` and is then left out."""
    found = list(re.finditer(rb"[^\r\n]*[^\r\n\s][^\r\n]*", data[:HEAD_BYTES]))
    if len(data) > HEAD_BYTES and len(found) > 1:
        found.pop()
    return [_Line(match.start(), match.group().decode("utf-8", "replace")) for match in found[:HEAD_LINES]]


def _sniff_delimiter(lines: list[str], origin: str) -> str:
    """The first of `DELIMITERS` that cuts four lines of five into the same number of fields, two at least."""
    for delimiter in DELIMITERS:
        widths = Counter(len(_split(line, delimiter)) for line in lines)
        width, count = max(widths.items(), key=lambda item: (item[0] > 1, item[1]))
        if width > 1 and (count >= 0.8 * len(lines) or (len(lines) < 10 and count >= len(lines) // 2 + 1)):
            return delimiter
    raise ValueError(
        f"{origin} is not a table: no tab, semicolon, bar or comma cuts its lines into the same number of fields; "
        f"its first line is {lines[0][:80]!r}"
    )


def _split(line: str, delimiter: str) -> tuple[str, ...]:
    try:
        return tuple(field.strip() for field in next(csv.reader([line], delimiter=delimiter)))
    except csv.Error:
        return (line,)


def _holds_numbers(row: tuple[str, ...]) -> bool:
    """Whether a row is data: a number behind the first field, or only missing values behind a first field with digits."""
    rest = row[1:]
    if any(_NUMBER.fullmatch(field) for field in rest):
        return True
    return bool(rest) and bool(re.search(r"\d", row[0])) and all(is_missing(field) for field in rest)


def _header(
    above: list[tuple[str, ...]], data_row: tuple[str, ...], width: int, origin: str
) -> tuple[tuple[str, ...] | None, tuple[tuple[str, ...], ...]]:
    """Names among the lines above the first row of numbers, and the rows of names below them; banners have another width."""
    from jaxrl_trade.bars.formats import names_a_price

    fitted = [(i, names) for i, row in enumerate(above) if (names := _fit_names(row, data_row, width)) is not None]
    known = [(i, names) for i, names in fitted if names_a_price(names)]
    if known or fitted:
        position, names = known[0] if known else fitted[-1]
        return names, tuple(row for row in above[position + 1 :] if len(row) == len(above[position]))
    if above and names_a_price(above[-1]):
        raise ValueError(
            f"{origin}: the header has {len(above[-1])} fields but the rows have {width}; "
            f"the header is {', '.join(above[-1])}"
        )
    return None, ()


def _fit_names(row: tuple[str, ...], data_row: tuple[str, ...], width: int) -> tuple[str, ...] | None:
    """A header row made as long as the data rows, None where it cannot be one."""
    if len(row) == width:
        return row
    if len(row) == width + 1 and row[-1] == "":
        return row[:-1]
    if len(row) == width - 1 and len(data_row) == width:
        if data_row[-1] == "":
            return row
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?", data_row[1]) and row[0].strip("<>").lower() == "date":
            return (row[0], "time", *row[1:])
    return None


def _parse(data: bytes, delimiter: str, width: int, origin: str) -> tuple[tuple[pa.ChunkedArray, ...], list[int]]:
    """Every field as text, exactly as written, and the 1-based numbers of the rows of another width."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    malformed: list[tuple[int, str]] = []

    def note(row: arrow_csv.InvalidRow) -> str:
        malformed.append((row.number, row.text))
        return "skip"

    names = [str(i) for i in range(width)]
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(data),
            read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=note),
            convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
    except pa.ArrowException as error:
        raise ValueError(f"{origin} does not read as a table ({_first_line(error)})") from None
    for number, text in malformed:
        if len(inside := text.strip().splitlines()) > 1:
            raise ValueError(
                f"{origin}: row {number} opens a quotation mark that its line does not close, and hides {len(inside) - 1:,} "
                f"lines after it: {inside[0][:80]!r}; correct that line"
            )
    total = table.num_rows + len(malformed)
    if len(malformed) > max(MALFORMED_ROWS, MALFORMED_SHARE * total) or table.num_rows == 0:
        number, text = malformed[0]
        raise ValueError(
            f"{origin}: {len(malformed)} of {total} rows do not have {width} fields, "
            f"the first of them is row {number}: {text[:80]!r}"
        )
    return tuple(table.columns), [number for number, _ in malformed]


def _line_number(data: bytes, row: int, malformed: list[int]) -> int:
    """0-based line of a well-formed row, counted over blank lines and malformed rows; only ever used in a message."""
    skip = set(malformed)
    seen = -1
    number = 0
    for line, text in enumerate(data.splitlines()):
        if not text:
            continue
        number += 1
        if number not in skip:
            seen += 1
            if seen == row:
                return line
    return row


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
