"""Bars for a command: the flags that say how to read files, and the reading of one or of several instruments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxrl_trade.patience import working

if TYPE_CHECKING:
    from jaxrl_trade.bars import Bars

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneReadFlags:
    """How to read a price file of one instrument, where the file itself leaves it open."""

    symbol: Annotated[
        str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: the file's only one)")
    ] = None
    """The instrument to take from a file or folder of several."""
    tz: Annotated[str | None, tyro.conf.arg(metavar="ZONE", help_behavior_hint="(default: UTC)")] = None
    """Time zone of times without an offset, such as America/New_York."""
    day_first: bool = False
    """03/04/2021 is the third of April."""
    month_first: bool = False
    """03/04/2021 is the fourth of March."""
    columns: Annotated[
        str | None, tyro.conf.arg(metavar="ROLE=NAME,...", help_behavior_hint="(default: found out)")
    ] = None
    """Columns that are not understood: close=Last,time=Stamp, or date=Day,clock=Hour; also open, high, low, volume, symbol."""
    decimal: Annotated[str | None, tyro.conf.arg(metavar=". or ,", help_behavior_hint="(default: found out)")] = None
    """The decimal mark."""
    adjust: bool = False
    """Undo the splits that are noticed: divide the prices before each by its ratio."""

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `load_bars`, and JSON values."""
        from jaxrl_trade.bars.options import parse_columns

        if self.day_first and self.month_first:
            raise ValueError("--day-first and --month-first exclude each other")
        return {
            "symbol": self.symbol,
            "tz": self.tz,
            "day_first": True if self.day_first else False if self.month_first else None,
            "columns": parse_columns(self.columns) if self.columns else None,
            "decimal": self.decimal,
            **({"adjust": True} if self.adjust else {}),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadFlags(OneReadFlags):
    """How to read a price file, where the file itself leaves it open."""

    all_symbols: bool = False
    """Take every instrument of a file of several, as of a folder or of several files."""


def load(path: Path | None, options: Mapping[str, Any]) -> Bars:
    """Bars of a file, or the bundled sample.

    Raises:
      OSError, ValueError: as `load_bars`.
      ValueError: options for the sample, which needs none.
    """
    from jaxrl_trade.bars import load_bars, sample_bars

    if path is not None:
        with working(f"reading {path}"):
            return load_bars(path, **options)
    if given := [name for name, value in options.items() if value is not None]:
        raise ValueError(f"{', '.join(given)} says how to read a file, but no --data was given")
    return sample_bars()


def load_all(paths: Sequence[Path], options: Mapping[str, Any], all_symbols: bool) -> list[Bars]:
    """Bars of every instrument in files and folders, or of the bundled sample.

    A file of several symbols is refused, unless one is chosen or all of them are asked for.

    Args:
      paths: of the files and folders; none is the sample.
      options: as `ReadFlags.options` gives them.
      all_symbols: whether to take every instrument of one file, too.
    Raises:
      OSError, ValueError: as `load_instruments`, or options for the sample.
    """
    from jaxrl_trade.bars import load_instruments

    symbol = options["symbol"]
    if all_symbols and symbol is not None:
        raise ValueError("--symbol and --all-symbols exclude each other")
    if len(paths) < 2 and (symbol is not None or not paths or not (all_symbols or paths[0].is_dir())):
        return [load(paths[0] if paths else None, options)]
    how = {name: value for name, value in options.items() if name != "symbol"}
    with working(f"reading {', '.join(map(str, paths[:3]))}{' and more' * (len(paths) > 3)}"):
        return load_instruments(paths, None if symbol is None else [symbol], **how)
