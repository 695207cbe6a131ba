"""What the columns of a price file mean: the table of names, and the choice of a column for each role.

A vendor's format that differs in its names alone is one more entry in `ALIASES`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxrl_trade.bars.layout import RawTable, is_missing
from jaxrl_trade.bars.options import SETTLE, LoadOptions

if TYPE_CHECKING:
    import pyarrow as pa

# role -> column names as `normalise` leaves them; where a file has several, the first in this order is taken
ALIASES: dict[str, tuple[str, ...]] = {
    "time": (
        *("unix", "unix timestamp", "unix time", "timestamp", "timestamp utc", "datetime", "date time", "datetime utc"),
        *(
            "open time",
            "opentime",
            "ts event",
            "window start",
            "gmt time",
            "utc time",
            "local time",
            "time",
            "time utc",
        ),
        *("date", "date utc", "day", "bar time", "ts", "t", "index level 0", "index", "unnamed: 0", ""),
    ),
    "open": ("open", "o", "open price", "first"),
    "high": ("high", "h", "high price", "max"),
    "low": ("low", "l", "low price", "min"),
    "close": ("close", "c", "close price", "close/last", "last", "last price", "price"),
    "adj_close": ("adj close", "adjclose", "adjusted close", "adj. close"),
    "volume": (
        *("tickvol", "tick volume", "volume", "vol", "vol.", "v", "volumefrom", "volume from", "volume btc"),
        *("base volume", "base asset volume"),
    ),
    "symbol": ("symbol", "ticker", "tic", "instrument", "instrument id", "asset", "pair", "sym", "coin"),
}
DATE_NAMES, CLOCK_NAMES = ("date", "day"), ("time", "clock", "hour")
PRICES = ("open", "high", "low", "close")
NUMBERING = re.compile(r"^\d+[a-z]?\.\s*")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?(\s*[AaPp][Mm])?|\d{1,6}")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Index of the column that plays each role; `time` or `date` and `clock`, `close`, and whichever others exist."""

    index: dict[str, int]
    names: dict[str, str]  # the same columns by name, for messages and the report
    warnings: tuple[str, ...] = ()


def normalise(name: str) -> str:
    """`"1. open"`, `"<OPEN>"`, `"Open (USD)"`, `"open_price"` -> `"open"`, `"open"`, `"open"`, `"open price"`."""
    name = re.sub(r"\([^)]*\)", "", name.strip().strip('"').strip("'").lower().replace("<", "").replace(">", ""))
    name = NUMBERING.sub("", name.strip())
    return re.sub(r"[\s_\-]+", " ", name).strip()


def names_a_price(names: Sequence[str]) -> bool:
    """Whether a row of names has one that means the close, or two that mean a price."""
    found = {role for role in PRICES for name in names if normalise(name) in ALIASES[role]}
    return "close" in found or len(found) > 1


def find_layout(table: RawTable, options: LoadOptions) -> Layout:
    """Which column is which.

    Raises:
      ValueError: no close, only some of open, high and low, two columns of one name, or several instruments side by side.
    """
    chosen = _given_columns(table, options)
    if table.names is None:
        from jaxrl_trade.bars.headerless import guess_columns

        found = guess_columns(table, options) if not chosen else {}
        names = [f"column {i + 1}" for i in range(len(table.columns))]
    else:
        names = _with_subheaders(table)
        if "close" not in chosen:
            _refuse_wide(names, table.origin)
        found = _by_name(names, table, skip=set(chosen))
    index = found | chosen
    if "date" in chosen or "clock" in chosen:
        index.pop("time", None)
    warnings = _check(index, names, table)
    return Layout(index, {role: names[i] for role, i in index.items()}, warnings)


def _given_columns(table: RawTable, options: LoadOptions) -> dict[str, int]:
    """Columns that the user named, by name or by number from 1."""
    found = {}
    for role, name in (options.columns or {}).items():
        names = table.names or ()
        matches = [i for i, known in enumerate(names) if known == name] or [
            i for i, known in enumerate(names) if normalise(known) == normalise(name)
        ]
        if not matches and str(name).isdigit() and 1 <= int(name) <= len(table.columns):
            matches = [int(name) - 1]
        if len(matches) != 1:
            problem = "no column" if not matches else f"{len(matches)} columns"
            have = ", ".join(map(repr, names)) if names else f"{len(table.columns)} columns without names"
            raise ValueError(f"columns: {role}={name!r} matches {problem} of {table.origin}, which has {have}")
        found[role] = matches[0]
    return found


def _with_subheaders(table: RawTable) -> list[str]:
    """Names, with the first one corrected by a row such as `Date,,,` below the header (yfinance writes the index there)."""
    names = list(table.names or ())
    for row in table.subheaders:
        first = normalise(row[0])
        if first in ALIASES["symbol"] and len(set(row[1:])) > 1:
            symbols = ", ".join(sorted(set(row[1:])))
            raise ValueError(
                f"{table.origin} has several instruments side by side ({symbols}); save one of them as a file"
            )
        if first in ALIASES["time"] and first:
            names[0] = row[0]
    return names


def _refuse_wide(names: Sequence[str], origin: str) -> None:
    """Columns such as `BTC:open, ETH:open` or `('Close', 'MSFT')` hold several instruments side by side."""
    symbols: dict[str, None] = {}
    for name in names:
        parts = [part.strip(" '\"()") for part in re.split(r"[:|/,.]", NUMBERING.sub("", name))]
        if len(parts) == 2:
            for price, symbol in (parts, reversed(parts)):
                if normalise(price) in PRICES and symbol and normalise(symbol) not in (*PRICES, "adj", "last"):
                    symbols[symbol] = None
    if len(symbols) > 1:
        raise ValueError(
            f"{origin} has several instruments side by side ({', '.join(symbols)}); "
            f"save one as a file, or name its columns with {SETTLE['columns']}"
        )


def _by_name(names: Sequence[str], table: RawTable, skip: set[str]) -> dict[str, int]:
    """Roles found in the alias table."""
    known = [normalise(name) for name in names]
    index: dict[str, int] = {}
    for role, aliases in ALIASES.items():
        alias = next((alias for alias in aliases if alias in known), None)
        if alias is None or role in skip:
            continue
        if known.count(alias) > 1 and role in PRICES:
            raise ValueError(
                f"{table.origin} has {known.count(alias)} columns named {alias!r}; say which with {SETTLE['columns']}"
            )
        index[role] = known.index(alias)
    date = next((known.index(name) for name in DATE_NAMES if name in known), None)
    clock = next((known.index(name) for name in CLOCK_NAMES if name in known), None)
    apart = date is not None and clock is not None and _is_clock(table.columns[clock])
    if apart and "time" not in skip and index.get("time") in (date, clock):
        del index["time"]
        index |= {"date": date, "clock": clock}  # type: ignore[dict-item]  # `apart` says that neither is None
    return index


def _is_clock(column: pa.ChunkedArray) -> bool:
    """Whether a column of times holds times of day, judged by its first value."""
    import pyarrow as pa

    if pa.types.is_time(column.type):
        return True
    first = next(
        (str(value) for value in column[:100].to_pylist() if value is not None and not is_missing(str(value))), ""
    )
    return bool(_CLOCK.fullmatch(first.strip()))


def _check(index: dict[str, int], names: Sequence[str], table: RawTable) -> tuple[str, ...]:
    """Refuse what is not enough to make bars; warn of what is made up for."""
    listed = ", ".join(repr(name) for name in names)
    if "close" not in index:
        raise ValueError(f"{table.origin} has no close column (it has {listed}); name it with {SETTLE['columns']}")
    if "time" not in index and "date" not in index:
        raise ValueError(f"{table.origin} has no time column (it has {listed}); name it with {SETTLE['columns']}")
    absent = [role for role in ("open", "high", "low") if role not in index]
    if absent and len(absent) < 3:
        raise ValueError(
            f"{table.origin} has no {' and no '.join(absent)} column (it has {listed}); name it with {SETTLE['columns']}"
        )
    if absent:
        return ("no open, high and low: open is the close before, high and low the larger and smaller of the two",)
    return ()
