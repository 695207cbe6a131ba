"""What the columns of a price file mean: the choice of a column for each role, by `vendors.VENDORS` or by the user."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from jaxrl_trade.bars.layout import LONGEST_NUMBER, NUMBER, RawTable, is_missing
from jaxrl_trade.bars.options import SETTLE, LoadOptions, listed, printable
from jaxrl_trade.bars.vendors import ALIASES, PRICES, Vendor, normalise, role_of, vendor_of

if TYPE_CHECKING:
    import pyarrow as pa

_WRITTEN_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?(\s*([AaPp][Mm]|[Uu]hr))?")
_CLOCK = re.compile(rf"{_WRITTEN_CLOCK.pattern}|\d{{1,6}}")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Index of the column that plays each role; `time` or `date` and `clock`, `close`, and whichever others exist."""

    index: dict[str, int]
    names: dict[str, str]  # the same columns by name, for messages and the report
    vendor: Vendor | None = None  # where the columns show one whose files have a rule of their own
    assumed: tuple[str, ...] = ()


def find_layout(table: RawTable, options: LoadOptions) -> Layout:
    """Which column is which.

    Raises:
      ValueError: no time or no close, only some of open, high and low, or two columns of one name.
    """
    chosen = _given_columns(table, options)
    assumed: list[str] = []
    if table.names is None:
        from jaxrl_trade.bars.headerless import guess_columns

        found = guess_columns(table, options) if not chosen else {}
        names: Sequence[str] = [f"column {i + 1}" for i in range(len(table.columns))]
        if found:
            order = sorted(found, key=lambda role: found[role])
            assumed.append(f"columns without names are {', '.join(order)}, in this order")
    else:
        names = table.names
        found = _by_name(names, table, chosen)
        assumed += _volumes_left_out(names, (found | chosen).get("volume"))
    index = found | chosen
    if "clock" in chosen and "date" not in index and "time" in index:
        index["date"] = index["time"]
    if "date" in index:
        index.pop("time", None)
    assumed += _check(index, names, table)
    return Layout(index, {role: names[i] for role, i in index.items()}, vendor_of(names), tuple(assumed))


def clock_left_over(table: RawTable, index: Mapping[str, int]) -> int | None:
    """The first column of times of day, such as 14:30, that plays no role; None where there is none."""
    rest = (i for i in range(len(table.columns)) if i not in index.values())
    return next((i for i in rest if _is_clock(table.columns[i], _WRITTEN_CLOCK)), None)


def _given_columns(table: RawTable, options: LoadOptions) -> dict[str, int]:
    """Columns that the user named, by name or by number from 1."""
    found = {}
    given = dict(options.columns or {})
    if "clock" not in given and {"date", "time"} <= given.keys():
        given["clock"] = given.pop("time")
    if "clock" in given and "date" not in given and "time" in given:
        given["date"] = given.pop("time")
    for role, name in given.items():
        names = table.names or ()
        matches = [i for i, known in enumerate(names) if known == name] or [
            i for i, known in enumerate(names) if normalise(known) == normalise(name)
        ]
        if not matches and str(name).isdigit() and 1 <= int(name) <= len(table.columns):
            matches = [int(name) - 1]
        if len(matches) != 1:
            problem = "no column" if not matches else f"{len(matches)} columns"
            have = listed(map(repr, names)) if names else f"{len(table.columns)} columns without names"
            raise ValueError(f"columns: {role}={name!r} matches {problem} of {table.origin}, which has {have}")
        found[role] = matches[0]
    return found


def _by_name(names: Sequence[str], table: RawTable, chosen: Mapping[str, int]) -> dict[str, int]:
    """Roles found in the table of names, but for those that the user chose."""
    known = [normalise(name) for name in names]
    index: dict[str, int] = {}
    for role in ("time", *PRICES, "adj_close", "volume", "symbol"):
        alias = next((alias for alias in ALIASES[role] if alias in known), None)
        if alias is None or role in chosen or (role not in PRICES and known.index(alias) in chosen.values()):
            continue
        if known.count(alias) > 1 and role in PRICES:
            raise ValueError(
                f"{table.origin} has {known.count(alias)} columns named {alias!r}; say which with {SETTLE['columns']}"
            )
        index[role] = known.index(alias)
    date, clock = (
        chosen.get(role, next((known.index(name) for name in ALIASES[role] if name in known), None))
        for role in ("date", "clock")
    )
    apart = date is not None and clock is not None and _is_clock(table.columns[clock])
    if apart and "time" not in chosen and ("date" in chosen or index.get("time") in (date, clock)):
        index.pop("time", None)
        index |= {"date": date, "clock": clock}  # type: ignore[dict-item]  # `apart` says that neither is None
    if "symbol" in index and "volume" not in chosen:
        of_the_symbol = _volume_of(table.columns[index["symbol"]], known)
        index |= {} if of_the_symbol is None else {"volume": of_the_symbol}
    return index


def _volume_of(symbols: pa.ChunkedArray, known: Sequence[str]) -> int | None:
    """Of columns such as `Volume ETH` and `Volume USDT`, the one in units of the instrument, ETH/USDT."""
    first = next((str(value) for value in symbols[:100].to_pylist() if value), "").lower()
    assets = {i: name.removeprefix("volume ") for i, name in enumerate(known) if name.startswith("volume ")}
    return next((i for i, asset in assets.items() if first.startswith(asset)), None)


def _volumes_left_out(names: Sequence[str], volume: int | None) -> list[str]:
    others = [
        name
        for i, name in enumerate(names)
        if i != volume and (role_of(name) == "volume" or re.match(r"vol(ume)?\b", normalise(name)))
    ]
    return [f"volume is {names[volume]!r}, not {listed(map(repr, others))}"] if others and volume is not None else []


def _is_clock(column: pa.ChunkedArray, shape: re.Pattern[str] = _CLOCK) -> bool:
    """Whether a column of times holds times of day, judged by its first value."""
    import pyarrow as pa

    if pa.types.is_time(column.type):
        return True
    return bool(shape.fullmatch(next(_first_values(column), "")))


def _first_values(column: pa.ChunkedArray) -> Iterator[str]:
    """Values of the first rows, as text."""
    return (
        str(value).strip() for value in column[:100].to_pylist() if value is not None and not is_missing(str(value))
    )


def _check(index: dict[str, int], names: Sequence[str], table: RawTable) -> list[str]:
    """Refuse what is not enough to make bars; say what is made up for."""
    optional = [role for role in ("open", "high", "low") if role not in index]
    missing = [] if {"time", "date"} & index.keys() else ["time"]
    missing += optional if "close" not in index or len(optional) < 3 else []
    missing += [] if "close" in index else ["close"]
    if missing:
        clock = clock_left_over(table, index) if "time" in missing else None
        roles = [role for role in missing if role != "time" or clock is None]
        settled = [
            *([] if clock is None else [f"date=NAME,clock={printable(names[clock])}"]),
            *(f"{role}=NAME" for role in roles),
        ]
        raise ValueError(
            f"{table.origin} has no {_and(missing)} column (it has {listed(map(repr, names))}); name "
            f"{'it' if len(missing) == 1 else 'them'} with columns= (--columns {','.join(settled)})"
        )
    if not optional:
        return []
    made_up = "without open, high and low: open is the close before, high and low the larger and smaller of the two"
    unused = [name for i, name in enumerate(names) if i not in index.values() and _is_number(table.columns[i])]
    flag = "--columns " + ",".join(f"{role}=NAME" for role in (*optional, "volume") if role not in index)
    takes = f"columns {listed(map(repr, unused))} are not used; columns= ({flag}) takes them"
    return [made_up, *([takes] if unused else [])]


def _and(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and no " + words[-1] if len(words) > 1 else words[0]


def _is_number(column: pa.ChunkedArray) -> bool:
    """Whether a column holds numbers, judged by its first rows."""
    values = list(_first_values(column))
    return bool(values) and all(len(value) <= LONGEST_NUMBER and NUMBER.fullmatch(value) for value in values)
