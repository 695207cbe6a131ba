"""From a path to the instruments in it: one file, or a folder whose files are instruments, or parts of instruments."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from jaxrl_trade.bars import files, layout
from jaxrl_trade.bars.instruments import Part, instruments
from jaxrl_trade.bars.options import LoadOptions
from jaxrl_trade.bars.vendors import ALIASES, normalise

Found = Callable[[], Part]  # takes an instrument's rows out of its file

# what follows the instrument in the name of a file that holds one month, day or year of it
_DATE = re.compile(r"[-_. ](19|20)\d\d([-_.]?(0[1-9]|1[0-2])([-_.]?[0-3]\d)?)?$")
_NAMELESS = re.compile(
    r"(part|data|chunk)([-_.]?\d.*)?", re.IGNORECASE
)  # as Spark, Hive and pandas name the files of a table


def of_table(table: layout.RawTable, options: LoadOptions) -> dict[str | None, list[Found]]:
    """The instruments of a table by symbol, None where it says none."""
    return {symbol: [take] for symbol, take in instruments(table, options).items()}


def of_path(path: Path, options: LoadOptions) -> dict[str | None, list[Found]]:
    """The instruments of a file or folder by symbol, None where nothing says it; each with its parts in the files' order.

    In a folder the symbol is what the file says, else a folder around it called `symbol=BTC`, else the file's name up to a date.

    Raises:
      OSError, ValueError: as `load_bars`.
    """
    if not path.is_dir():
        return of_table(layout.read_table(files.read_file(path), str(path)), options)
    found: dict[str | None, list[Found]] = {}
    for file in files.price_files(path):
        table = layout.read_table(files.read_file(file), str(file))
        for symbol, take in instruments(table, options).items():
            found.setdefault(symbol or _symbol_of_place(file, path), []).append(take)
    return found


def name_of(path: Path) -> str:
    """What an instrument is called that nothing else names: its file or folder."""
    return path.resolve().name.split(".")[0] or "instrument"


def _symbol_of_place(file: Path, folder: Path) -> str | None:
    for part in reversed(file.relative_to(folder).parts[:-1]):
        key, equals, value = part.partition("=")
        if equals and normalise(key) in ALIASES["symbol"]:
            return urllib.parse.unquote(value)  # BTC%2FUSD
    stem = file.name
    while (suffix := Path(stem).suffix.lower()) in files.TABLE_SUFFIXES | files.PACKED_SUFFIXES:
        stem = stem[: -len(suffix)]
    return None if _NAMELESS.fullmatch(stem) else _DATE.sub("", stem)
