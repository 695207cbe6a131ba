"""What a user may settle about a price file, and how a message names the setting in Python and on the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

ROLES = ("time", "date", "clock", "open", "high", "low", "close", "adj_close", "volume", "symbol")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Answers to what a file leaves open; None means that the file must say it itself.

    Attributes:
      symbol: the instrument to take from a file or folder of several, and the name of the bars.
      tz: time zone of times that carry no offset, such as "America/New_York" or "-05:00"; UTC when None.
      day_first: whether 03/04/2021 is the third of April (True) or the fourth of March (False).
      columns: file column by role, where the names are not understood: {"close": "Last", "time": "Stamp"}; a number
        counts columns from 1. Roles are time, or date and clock where two columns hold it ("time" is understood as the one
        that is missing beside the other), open, high, low, close, adj_close, volume, symbol.
      decimal: the decimal mark, "." or ",".
      adjust: whether to undo the splits that are noticed: prices before one are divided by its ratio, volume multiplied.
    """

    symbol: str | None = None
    tz: str | None = None
    day_first: bool | None = None
    columns: Mapping[str, str] | None = None
    decimal: str | None = None
    adjust: bool = False

    def __post_init__(self) -> None:
        for role in self.columns or {}:
            if role not in ROLES:
                raise ValueError(f"columns names the role {role!r}; the roles are {', '.join(ROLES)}")
        if self.decimal not in (None, ".", ","):
            raise ValueError(f'decimal = {self.decimal!r}, but the decimal mark is "." or ","')


def listed(names: Iterable[str], most: int = 20, longest: int = 40) -> str:
    """Names for a message, in one line that a terminal shows as it is, whatever they are."""
    each = [printable(name) for name in names]
    shown = [name if len(name) <= longest else f"{name[: longest - 3]}..." for name in each[:most]]
    return ", ".join(shown) + (f", ... ({len(each):,} in all)" if len(each) > most else "")


def printable(text: str) -> str:
    """A text of a file without line ends and whatever else a terminal would obey."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def quoted(value: object, longest: int = 60) -> str:
    """A value of a file for a message."""
    text = repr(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def parse_columns(text: str) -> dict[str, str]:
    """`"close=Last,time=Stamp"`, as given to --columns, as the mapping that `LoadOptions.columns` takes."""
    pairs = [part.partition("=") for part in text.split(",")]
    for role, equals, name in pairs:
        if not (role.strip() and equals and name.strip()):
            raise ValueError(f"--columns {text!r}: write role=column pairs, for example close=Last,time=Stamp")
    return {role.strip(): name.strip() for role, _, name in pairs}


# how a message tells the reader to settle something
SETTLE = {
    "symbol": "symbol= (--symbol)",
    "tz": "tz= (--tz)",
    "day_first": "day_first=True (--day-first) or day_first=False (--month-first)",
    "columns": "columns= (--columns close=NAME,time=NAME,...)",
    "decimal": 'decimal="." or decimal="," (--decimal)',
    "adjust": "adjust=True (--adjust)",
}
