"""Instruments side by side in one table: columns such as `BTC:open`, `('Close', 'MSFT')`, or two rows of names."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence

from jaxrl_trade.bars.layout import RawTable
from jaxrl_trade.bars.vendors import PRICES, normalise, role_of

_TUPLE = re.compile(r"""\(\s*(['"]?)(?P<a>[^'"]*)\1\s*,\s*(['"]?)(?P<b>[^'"]*)\3\s*\)""")
_JOINTS = (":", "|", "/", ".", ",", "_", " ")
Pair = tuple[str, str]  # symbol, plain name


def unstack(table: RawTable) -> dict[str, RawTable]:
    """The table of each instrument: its own columns under their plain names, and those that all share; {} of any other table."""
    owners = _owners(table)
    shared = [i for i in range(len(table.columns)) if i not in owners]
    columns_of: dict[str, list[int]] = {}
    for i, (symbol, _) in owners.items():
        columns_of.setdefault(symbol, []).append(i)
    return {symbol: _select(table, [*shared, *columns], owners) for symbol, columns in columns_of.items()}


def _select(table: RawTable, chosen: Sequence[int], owners: Mapping[int, Pair]) -> RawTable:
    return dataclasses.replace(
        table,
        names=tuple(owners[i][1] if i in owners else (table.names or ())[i] for i in chosen),
        columns=tuple(table.columns[i] for i in chosen),
        other_names=tuple(tuple(row[i] for i in chosen) for row in table.other_names),
    )


def _owners(table: RawTable) -> dict[int, Pair]:
    """Symbol and plain name of each column that belongs to one instrument; {} where the close stands under its plain name."""
    names = table.names or ()
    closes = [name for name in names if role_of(name) == "close"]
    if len(closes) > 1:
        return next((found for row in table.other_names if (found := _from_two_rows(names, row))), {})
    return {} if closes else _from_one_row(names)


def _from_two_rows(names: Sequence[str], row: Sequence[str]) -> dict[int, Pair]:
    """Prices in one row of names and symbols in another; {} where a pair comes twice."""
    pairs = {i: (row[i], name) for i, name in enumerate(names) if role_of(name) and row[i]}
    return pairs if len(set(pairs.values())) == len(pairs) and _complete(pairs) else {}


def _from_one_row(names: Sequence[str]) -> dict[int, Pair]:
    for split in _SPLITS:
        pairs = {i: pair for i, name in enumerate(names) if (pair := split(name)) is not None}
        closes = {symbol for symbol, name in pairs.values() if role_of(name) == "close"}
        pairs = {i: (symbol, name) for i, (symbol, name) in pairs.items() if symbol in closes}
        if len(set(pairs.values())) == len(pairs) and _complete(pairs):
            return pairs
    return {}


def _complete(pairs: Mapping[int, Pair]) -> bool:
    """Whether the pairs are instruments: each has a close, and open, high and low too or there are two closes at least.

    `close_time` alone is no instrument called time.
    """
    roles: dict[str, set[str | None]] = {}
    for symbol, name in pairs.values():
        roles.setdefault(symbol, set()).add(role_of(name))
    closes = sum("close" in found for found in roles.values())
    return bool(roles) and closes == len(roles) and (closes > 1 or set(PRICES) <= next(iter(roles.values())))


def _split_tuple(name: str) -> Pair | None:
    found = _TUPLE.fullmatch(name.strip())
    return _order(found["a"], found["b"]) if found else None


def _split_at(joint: str, name: str) -> Pair | None:
    if joint not in name:
        return None
    first, _, rest = name.partition(joint)
    most, _, last = name.rpartition(joint)
    return _order(first, rest) or _order(most, last)


def _order(a: str, b: str) -> Pair | None:
    """Symbol and price of two parts of a name, whichever way around; None where neither is a price.

    Of `close_BAS`, where `bas` is a low in French, the plain name of a price counts.
    """
    ways = [(a.strip(), b.strip()), (b.strip(), a.strip())]
    for symbol, price in sorted(ways, key=lambda way: way[1].lower() not in (*PRICES, "volume")):
        if role_of(price) and symbol and normalise(symbol) not in ("adj", "adjusted", "prev", "previous", "last"):
            return symbol, price
    return None


# ways to take a name apart; the first by which all of a table's names make sense counts
_SPLITS: tuple[Callable[[str], Pair | None], ...] = (
    _split_tuple,
    *(functools.partial(_split_at, joint) for joint in _JOINTS),
)
