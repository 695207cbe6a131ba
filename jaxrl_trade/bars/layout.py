"""From the bytes of a file to its columns, untouched: delimiter, banner, header or none; JSON, Parquet, Arrow; frames.

Knows how tables are written, not what their columns mean; `formats.py` does that.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_trade.bars import files, json_tables
from jaxrl_trade.bars.options import listed, quoted
from jaxrl_trade.bars.vendors import ALIASES, names_a_price, normalise

if TYPE_CHECKING:
    import pyarrow as pa

DELIMITERS = ("\t", ";", "|", ",")  # in this order: in a semicolon file the comma may be the decimal mark
HEAD_BYTES = 1 << 20  # enough to find the delimiter, the header and the first rows; no line may be longer
MOST_COLUMNS = 30_000  # of thousands of instruments side by side
HEAD_LINES = 100
LONGEST_NUMBER = 64  # characters; a longer field is not looked at for a number
MALFORMED_SHARE, MALFORMED_ROWS = 0.01, 3  # more rows of a wrong width than both: the layout was not understood

# what stands for "no value", lower case; an infinite price is none either
MISSING = ("", "nan", "null", "none", "n/a", "na", "<na>", "#n/a", "nat", "-", "--", "inf", "+inf", "-inf")
_TOO_LONG = f"has a line of more than {HEAD_BYTES:,} characters, as no table of prices has"
NUMBER = re.compile(r"[\s$€£¥]*[-+]?[\d.,]*\d[\d.,]*([eE][-+]?\d+)?\s*")


@dataclasses.dataclass(frozen=True, eq=False)
class RawTable:
    """Columns as the file has them.

    Attributes:
      origin: the file, for messages.
      names: one per column, as written; None where the file has no header.
      columns: pyarrow chunked arrays, text or typed.
      label: where a row stands, for messages, such as "line 17".
      other_names: further rows of names as long as `names`, above the first row of numbers.
      malformed: rows left out because they have another number of fields.
      symbol, zone: instrument and time zone, where the file says them outside its columns.
    """

    origin: str
    names: tuple[str, ...] | None
    columns: tuple[pa.ChunkedArray, ...]
    label: Callable[[int], str]
    other_names: tuple[tuple[str, ...], ...] = ()
    malformed: int = 0
    symbol: str | None = None
    zone: str | None = None

    @property
    def rows(self) -> int:
        """Well-formed rows."""
        return len(self.columns[0])


def read_table(data: bytes, origin: str) -> RawTable:
    """Columns of a Parquet, Arrow (Feather), JSON or delimited text file.

    Raises:
      ValueError: damaged, not a table, or without rows.
    """
    for magic, read in _BINARY_READERS.items():
        if data.startswith(magic):
            return _from_arrow(read(data, origin), origin)
    text = files.to_text(data, origin)
    return _read_json(text, origin) if json_tables.looks_like_json(text) else _read_text(text, origin)


def from_frame(frame: Any, origin: str) -> RawTable:
    """Columns of a frame: of pandas, its index among them, or of whatever shows itself as an Arrow table, as polars does.

    Raises:
      ValueError: no frame, or a column of it holds values of several types.
    """
    import pyarrow as pa

    try:
        if any(kind.__module__.startswith("pandas.") for kind in type(frame).__mro__):  # its Arrow stream has no index
            return _from_arrow(pa.Table.from_pandas(frame), origin)
        if hasattr(frame, "__arrow_c_stream__"):
            return _from_arrow(pa.table(frame), origin)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"{origin} has a column with values of mixed types ({error.args[0]})") from None
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ValueError(f"{origin} is no table that Arrow takes ({_first_line(error)})") from None
    raise ValueError(f"{origin} is a {type(frame).__name__}; give a frame of pandas or polars, or an Arrow table")


def is_missing(text: str) -> bool:
    """Whether a field says that it has no value."""
    return text.strip().lower() in MISSING


def _from_arrow(table: pa.Table, origin: str) -> RawTable:
    """Pandas keeps a DatetimeIndex as a column (`__index_level_0__` where it has no name), so the columns are all there is."""
    import pyarrow as pa

    try:
        table.validate(full=True)
        names, _ = tuple(table.column_names), [getattr(kind, "tz", None) for kind in table.schema.types]
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raise ValueError(f"{origin} is damaged: it holds text that is none") from None
    if table.num_rows == 0 or not names:
        raise ValueError(f"{origin} has no rows")
    columns = tuple(map(_plain, table.columns))
    return RawTable(origin, None if _is_numbered(names) else names, columns, label=lambda row: f"row {row + 1}")


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without dictionaries and views, which not all of Arrow's functions take."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        chunks = [_plain(pa.chunked_array([chunk.dictionary])).take(chunk.indices) for chunk in column.chunks]
        return pa.chunked_array([piece for chunk in chunks for piece in chunk.chunks])
    return column.cast(pa.string()) if pa.types.is_string_view(column.type) else column


def _read_json(text: bytes, origin: str) -> RawTable:
    import pyarrow as pa

    table = json_tables.read_json(text, origin)
    columns = tuple(pa.chunked_array([pa.array(column, pa.string())]) for column in table.columns)
    return RawTable(origin, table.names, columns, lambda row: f"row {row + 1}", symbol=table.symbol, zone=table.zone)


def _read_parquet(data: bytes, origin: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        files.refuse_bomb(max(size, 8 * file.metadata.num_rows), len(data), origin)
        return file.read()
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise ValueError(f"{origin} is damaged or cut off: it does not read as Parquet") from None


def _read_arrow(data: bytes, origin: str) -> pa.Table:
    import pyarrow as pa

    open = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
    try:
        return open(pa.BufferReader(data)).read_all()
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise ValueError(f"{origin} is damaged or cut off: it does not read as Arrow") from None


_BINARY_READERS: dict[bytes, Callable[[bytes, str], pa.Table]] = {
    b"PAR1": _read_parquet,
    b"ARROW1": _read_arrow,
    b"\xff\xff\xff\xff": _read_arrow,  # a stream
}


@dataclasses.dataclass(frozen=True)
class _Line:
    start: int  # offset of its first byte
    text: str


def _read_text(data: bytes, origin: str) -> RawTable:
    lines = _head_lines(data)
    if not lines:
        raise ValueError(f"{origin} is empty or begins with blank lines alone")
    if len(lines[0].text) >= HEAD_BYTES:
        raise ValueError(f"{origin} {_TOO_LONG}")
    delimiter = _sniff_delimiter([line.text for line in lines], origin)
    rows = [_split(line.text, delimiter) for line in lines]
    first = next((i for i, row in enumerate(rows) if _holds_numbers(row)), None)
    if first is None:
        raise ValueError(f"{origin} has no rows of numbers: its first line is {quoted(lines[0].text)}")
    width = Counter(len(row) for row in rows[first:]).most_common(1)[0][0]
    if width > MOST_COLUMNS:
        raise ValueError(f"{origin} has {width:,} columns, as no table of prices has")
    names, other_names = _header(rows[:first], rows[first], width, origin)
    columns, malformed = _parse(data[lines[first].start :], delimiter, width, origin)
    if names is not None and len(names) < width:
        columns = columns[:-1]  # every row ends with a delimiter, the header does not
    if names is not None and _is_numbered(names):
        unnamed = names[0] == ""  # above row numbers
        names, columns = None, columns[unnamed:]
    first_line = data[: lines[first].start].count(b"\n") + 1
    return RawTable(
        origin,
        names and _with_the_index(names, other_names),
        columns,
        label=lambda row: f"line {_line_number(data[lines[first].start :], row, malformed) + first_line}",
        other_names=other_names,
        malformed=len(malformed),
        symbol=_symbol_above(other_names),
    )


def _head_lines(data: bytes) -> list[_Line]:
    """The first lines that are not blank; the last one may be cut off by `HEAD_BYTES` and is then left out."""
    head, found, start = data[:HEAD_BYTES], [], 0
    for line in head.splitlines(keepends=True):
        if line.strip():
            found.append(_Line(start, line.strip(b"\r\n").decode("utf-8", "replace")))
        start += len(line)
    if len(data) > HEAD_BYTES and len(found) > 1:
        found.pop()
    return found[:HEAD_LINES]


def _is_numbered(names: Sequence[str]) -> bool:
    """Whether names are those that pandas gives where it was given none: 0, 1, 2, ..., behind an empty one for the index."""
    numbers = list(names[names[:1] == ("",) :])
    return len(numbers) >= json_tables.LEAST_FIELDS and numbers == [str(i) for i in range(len(numbers))]


def _with_the_index(names: tuple[str, ...], other_names: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Names with the index' own, which yfinance writes in a row below the header, `Date,,,`."""
    index = next((row[0] for row in other_names if row[0] and normalise(row[0]) in ALIASES["time"]), names[0])
    return (index, *names[1:])


def _symbol_above(other_names: Sequence[Sequence[str]]) -> str | None:
    """The symbol that a row such as `Ticker,MSFT,MSFT` repeats over all columns."""
    found = {frozenset(row[1:]) for row in other_names if normalise(row[0]) in ALIASES["symbol"]}
    return next((symbol for row in found if len(row) == 1 for symbol in row if symbol), None)


def _sniff_delimiter(lines: list[str], origin: str) -> str:
    """The first of `DELIMITERS` that cuts four lines of five into the same number of fields, two at least."""
    for delimiter in DELIMITERS:
        widths = Counter(len(_split(line, delimiter)) for line in lines)
        width, count = max(widths.items(), key=lambda item: (item[0] > 1, item[1]))
        if width > 1 and (count >= 0.8 * len(lines) or (len(lines) < 10 and count >= len(lines) // 2 + 1)):
            return delimiter
    raise ValueError(
        f"{origin} is not a table: no tab, semicolon, bar or comma cuts its lines into the same number of fields; "
        f"its first line is {quoted(lines[0])}"
    )


def _split(line: str, delimiter: str) -> tuple[str, ...]:
    try:
        return tuple(field.strip() for field in next(csv.reader([line], delimiter=delimiter)))
    except csv.Error:
        return (line,)


def _holds_numbers(row: tuple[str, ...]) -> bool:
    """Whether a row is data: a number behind the first field, or only missing values behind a first field with digits."""
    rest = row[1:]
    if any(len(field) <= LONGEST_NUMBER and NUMBER.fullmatch(field) for field in rest):
        return not _is_numbered(row)
    return bool(rest) and bool(re.search(r"\d", row[0])) and all(is_missing(field) for field in rest)


def _header(
    above: list[tuple[str, ...]], data_row: tuple[str, ...], width: int, origin: str
) -> tuple[tuple[str, ...] | None, tuple[tuple[str, ...], ...]]:
    """Names among the lines above the first row of numbers, and the other rows as long; banners have another width."""
    fitted = [(i, names) for i, row in enumerate(above) if (names := _fit_names(row, data_row, width)) is not None]
    known = [(i, names) for i, names in fitted if names_a_price(names)]
    if known or fitted:
        position, names = known[0] if known else fitted[-1]
        return names, tuple(row for i, row in enumerate(above) if len(row) == width and i != position)
    if above and names_a_price(above[-1]):
        raise ValueError(
            f"{origin}: the header has {len(above[-1])} fields but the rows have {width}; "
            f"the header is {listed(above[-1])}"
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
            read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=HEAD_BYTES),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=note),
            convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
    except pa.ArrowException as error:
        long = "straddling" in str(error)  # a line that is longer than a block
        raise ValueError(
            f"{origin} {_TOO_LONG if long else f'does not read as a table ({_first_line(error)})'}"
        ) from None
    for number, text in malformed:
        if len(inside := text.strip().splitlines()) > 1:
            raise ValueError(
                f"{origin}: row {number} opens a quotation mark that its line does not close, and hides {len(inside) - 1:,} "
                f"lines after it: {quoted(inside[0])}; correct that line"
            )
    total = table.num_rows + len(malformed)
    if len(malformed) > max(MALFORMED_ROWS, MALFORMED_SHARE * total) or table.num_rows == 0:
        number, text = malformed[0]
        raise ValueError(
            f"{origin}: {len(malformed)} of {total} rows do not have {width} fields, "
            f"the first of them is row {number}: {quoted(text)}"
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
