"""Tables in JSON: lists of bars, bars by time, columns, or one of these for each symbol, wherever they lie in the document."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxrl_trade.bars.options import listed
from jaxrl_trade.bars.vendors import ALIASES, names_a_price, normalise
from jaxrl_trade.bars.zones import is_zone

MOST_BYTES = 1 << 25  # in memory a document takes some twenty times its size
LEAST_FIELDS = 5  # a time and four prices, in a list without names
MOST_FIELDS = 1000
SYMBOL = "symbol"  # name of the column that says which symbol's table a row was in
TIME = "time"  # name of the column made of the keys, where a table is kept by time


@dataclasses.dataclass(frozen=True)
class JsonTable:
    """Names (None where the document has none), columns of text or None, and what the document says of all of them."""

    names: tuple[str, ...] | None
    columns: list[Sequence[str | None]]
    symbol: str | None = None
    zone: str | None = None


def looks_like_json(text: bytes) -> bool:
    """Whether a text begins as a JSON object or a list of lists or objects does."""
    head = b"".join(text[:4096].split())
    return head.startswith((b'{"', b"{}", b"[[", b"[{", b"[]"))


def read_json(text: bytes, origin: str) -> JsonTable:
    """The one table in a document, or in lines of objects.

    Raises:
      ValueError: no JSON, too large, no table of bars in it, or several that are not one instrument each.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"{origin} is JSON of more than {MOST_BYTES >> 20} MiB; convert it to CSV or Parquet")
    document = _parse(text, origin)
    found = list(_tables(document))
    if not found:
        raise ValueError(f"{origin} is JSON without a table of bars: no list of bars with a close was found in it")
    symbol, zone = _facts(document)
    if len(found) == 1:
        _, table = found[0]
        return dataclasses.replace(table, symbol=symbol, zone=zone)
    names = found[0][1].names
    if any(table.names is None or set(table.names) != set(names or ()) for _, table in found):
        keys = listed(key for key, _ in found)
        raise ValueError(f"{origin} has {len(found)} tables that do not match ({keys}); save one of them as a file")
    symbols: list[str | None] = []
    columns: list[list[str | None]] = [[] for _ in names or ()]
    for key, table in found:
        symbols += [key] * len(table.columns[0])
        for name, column in zip(names or (), columns, strict=True):
            column += table.columns[(table.names or ()).index(name)]
    return JsonTable((SYMBOL, *(names or ())), [symbols, *columns], zone=zone)


def _parse(text: bytes, origin: str) -> Any:
    """The document with its numbers as they are written, so that none is rounded twice."""

    def parse(part: bytes) -> Any:
        return json.loads(part, parse_float=str, parse_int=str, parse_constant=str)

    try:
        return parse(text)
    except RecursionError:
        raise ValueError(f"{origin} is JSON nested too deep for a table of bars") from None
    except ValueError as error:
        lines = text.splitlines()
        if text.startswith(b"{") and len(lines) > 1:
            try:
                return [parse(line) for line in lines if line.strip()]
            except (ValueError, RecursionError):
                pass
        where = f"at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "anywhere"
        raise ValueError(f"{origin} is damaged or cut off: it does not read as JSON {where}") from None


def _tables(node: Any, key: str = "") -> Iterator[tuple[str, JsonTable]]:
    """Tables in document order, each with the nearest key above it; nothing inside a table is looked at again."""
    if (table := _as_table(node)) is not None:
        yield key, table
    elif isinstance(node, dict):
        for inner, value in node.items():
            yield from _tables(value, str(inner))
    elif isinstance(node, list):
        for value in node:
            if isinstance(value, (dict, list)):
                yield from _tables(value, key)


def _as_table(node: Any) -> JsonTable | None:
    if isinstance(node, list) and node:
        if all(isinstance(row, list) and LEAST_FIELDS <= len(row) <= MOST_FIELDS for row in node):
            return _table(None, list(zip(*node, strict=True))) if len(set(map(len, node))) == 1 else None
        return _from_records(node) if all(isinstance(row, dict) for row in node) else None
    if isinstance(node, dict) and node:
        values = list(node.values())
        if all(isinstance(value, dict) for value in values):
            if names_a_price(list(node)):
                keys = list(dict.fromkeys(key for value in values for key in value))
                columns = {name: [value.get(key) for key in keys] for name, value in node.items()}
                return _from_columns(columns if _names_a_time(node) else {TIME: keys, **columns})
            named = all(_names_a_time(value) for value in values)
            return _from_records(values if named else [{TIME: key, **value} for key, value in node.items()])
        columns = {name: value for name, value in node.items() if isinstance(value, list)}
        if names_a_price(list(columns)) and len({len(value) for value in columns.values()}) == 1:
            return _from_columns(columns)
    return None


def _from_records(records: Sequence[Mapping[str, Any]]) -> JsonTable | None:
    """Rows of objects; fields that hold more than one value are left out."""
    names = list(dict.fromkeys(key for row in records for key in row))
    if len(names) > MOST_FIELDS or not names_a_price(names):
        return None
    return _from_columns({name: [row.get(name) for row in records] for name in names})


def _from_columns(columns: Mapping[str, Sequence[Any]]) -> JsonTable | None:
    flat = {name: column for name, column in columns.items() if not any(map(_holds_more, column))}
    return _table(tuple(flat), list(flat.values())) if names_a_price(list(flat)) else None


def _table(names: tuple[str, ...] | None, columns: list[Sequence[Any]]) -> JsonTable | None:
    """The table of columns, their values as text; None where one holds lists or objects."""
    if any(any(map(_holds_more, column)) for column in columns):
        return None
    is_text = [all(value is None or type(value) is str for value in column) for column in columns]
    texts = [
        column if text else [None if value is None else str(value) for value in column]
        for text, column in zip(is_text, columns, strict=True)
    ]
    return JsonTable(names, texts)


def _holds_more(value: Any) -> bool:
    return type(value) in (list, dict)


def _names_a_time(names: Iterable[str]) -> bool:
    return any(normalise(name) in ALIASES["time"] for name in names)


def _facts(document: Any) -> tuple[str | None, str | None]:
    """Symbol and time zone as the document says them beside its table, None where it does not or says several."""
    symbols: set[str] = set()
    zones: set[str] = set()

    def look(node: Any, depth: int) -> None:
        if isinstance(node, dict) and depth:
            for key, value in node.items():
                name = normalise(str(key))
                if isinstance(value, str) and name in ALIASES["symbol"]:
                    symbols.add(value)
                elif isinstance(value, str) and name.replace(" ", "") == "timezone" and is_zone(value):
                    zones.add(value)
                look(value, depth - 1)

    look(document, 2)
    return (symbols.pop() if len(symbols) == 1 else None, zones.pop() if len(zones) == 1 else None)
