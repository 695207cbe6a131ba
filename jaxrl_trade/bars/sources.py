"""From a path to the instruments in it: one file, or a folder whose files are instruments, or parts of instruments."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxrl_trade.bars import files, layout
from jaxrl_trade.bars.instruments import Part, instruments
from jaxrl_trade.bars.options import LoadOptions
from jaxrl_trade.bars.vendors import ALIASES, normalise

Found = Callable[[], Part]  # takes an instrument's rows out of its file

# what follows the instrument in the name of a file that holds one month, day or year of it
_DATE = re.compile(r"[-_. ](19|20)\d\d([-_.]?(0[1-9]|1[0-2])([-_.]?[0-3]\d)?)?$")
# as Spark, Hive and pandas name the files of a table
_NAMELESS = re.compile(r"(part|data|chunk)([-_.]?\d.*)?", re.IGNORECASE)


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
        return of_table(_read(path), options)
    found: dict[str | None, list[Found]] = {}
    for file in files.price_files(path):
        for symbol, take in instruments(_read(file), options).items():
            found.setdefault(symbol or _symbol_of_folders(file, path) or _symbol_of_name(file), []).append(take)
    if len(found) > 1 and None in found:
        found[name_of(path)] = [*found.pop(None), *found.get(name_of(path), [])]
    return found


def of_paths(paths: Sequence[Path], options: LoadOptions) -> dict[str, list[Found]]:
    """The instruments of files and folders together, which are named as in one folder.

    Raises:
      OSError, ValueError: as `load_bars`.
    """
    found: dict[str, list[Found]] = {}
    for path in paths:
        for symbol, of_symbol in of_path(path, options).items():
            found.setdefault(symbol or _symbol_of_name(path) or name_of(path), []).extend(of_symbol)
    return found


def name_of(path: Path) -> str:
    """What an instrument is called that nothing else names: its file or folder."""
    return path.resolve().name.split(".")[0] or "instrument"


def _read(path: Path) -> layout.RawTable:
    return layout.read_table(files.read_file(path), str(path))


def _symbol_of_folders(file: Path, folder: Path) -> str | None:
    for part in reversed(file.relative_to(folder).parts[:-1]):
        key, equals, value = part.partition("=")
        if equals and normalise(key) in ALIASES["symbol"]:
            return urllib.parse.unquote(value)  # BTC%2FUSD
    return None


def _symbol_of_name(file: Path) -> str | None:
    stem = file.name
    while (suffix := Path(stem).suffix.lower()) in files.TABLE_SUFFIXES | files.PACKED_SUFFIXES:
        stem = stem[: -len(suffix)]
    return None if _NAMELESS.fullmatch(stem) else _DATE.sub("", stem)
