"""`Bars`, and the way to them: files or a frame are laid out, their columns understood, their times read, their rows cleaned."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from jaxrl_trade.bars import headerless, layout, quality, sources, splits
from jaxrl_trade.bars.options import SETTLE, LoadOptions, listed, printable
from jaxrl_trade.bars.rows import COLUMNS, join, read_rows
from jaxrl_trade.spelling import meant

if TYPE_CHECKING:
    import pandas as pd

SAMPLE, SAMPLE_SYMBOL = "eurusd_1h_2017.parquet", "EURUSD"


@dataclasses.dataclass(frozen=True, eq=False)
class Bars:
    """Clean bars of one instrument; made by `load_bars`, `sample_bars` or `Bars.from_frame`, not to be written to.

    Attributes:
      frame: open, high, low, close and volume, float64, under an ascending unique UTC DatetimeIndex of nanoseconds, named
        time. Prices are positive and low <= open, close <= high; volume is 0 where it is not known.
      report: what was read, kept and dropped.
      symbol: name of the instrument.
      source: file or frame the bars came from.
    """

    frame: pd.DataFrame
    report: quality.DataReport
    symbol: str
    source: str

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        symbol: str | None = None,
        tz: str | None = None,
        *,
        day_first: bool | None = None,
        columns: Mapping[str, str] | None = None,
        decimal: str | None = None,
        adjust: bool = False,
    ) -> Bars:
        """Bars of a frame, under the same rules and with the same options as those of a file.

        Args:
          frame: of pandas, its index among the columns; of polars; or anything else that shows itself as an Arrow table.
          symbol, tz, day_first, columns, decimal, adjust: see `LoadOptions`.
        Raises:
          ValueError: as `load_bars`.
        """
        options = LoadOptions(
            symbol=symbol, tz=tz, day_first=day_first, columns=columns, decimal=decimal, adjust=adjust
        )
        table = layout.from_frame(frame, "the frame")
        return _only(sources.of_table(table, options), options, "the frame", "frame")

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of times (int64 nanoseconds, UTC) and values (float64), little-endian; the same from any file format."""
        digest = hashlib.sha256(self.times.astype("<i8").tobytes())
        digest.update(self.frame.to_numpy(np.float64).astype("<f8", order="C").tobytes())
        return digest.hexdigest()

    @property
    def index(self) -> pd.DatetimeIndex:
        """The index of the frame: times in UTC."""
        return cast("pd.DatetimeIndex", self.frame.index)

    @property
    def times(self) -> NDArray[np.datetime64]:
        """`[T]` datetime64[ns], UTC."""
        return self.index.asi8.astype("datetime64[ns]")

    def head(self, n: int) -> Bars:
        """The first n bars, as if the history ended there; the report stays that of the whole file."""
        return dataclasses.replace(self, frame=self.frame.iloc[:n])

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"Bars({self.symbol}, {len(self):,} bars, {self.report.first} to {self.report.last})"


def load_bars(
    path: str | os.PathLike[str],
    symbol: str | None = None,
    tz: str | None = None,
    *,
    day_first: bool | None = None,
    columns: Mapping[str, str] | None = None,
    decimal: str | None = None,
    adjust: bool = False,
) -> Bars:
    """Clean bars of one instrument, from a CSV (also gzip, zip, zstd, bzip2, xz), JSON, Parquet or Arrow file, or a folder.

    Names, delimiter, header, order and time format are found out; what reads two ways is refused with the option that
    settles it.

    Args:
      path: the file, or a folder of files: the one instrument in it, or `symbol`'s. Files of a folder that say the same symbol,
        or have the same name up to a date (`BTCUSDT-1m-2024-01.csv`), are parts of one instrument.
      symbol, tz, day_first, columns, decimal, adjust: answers to what the file leaves open, see `LoadOptions`.
    Raises:
      OSError: there is no such file, or it cannot be read.
      ValueError: it is not a price file, or it is ambiguous; the message says what to do.
    """
    options = LoadOptions(symbol=symbol, tz=tz, day_first=day_first, columns=columns, decimal=decimal, adjust=adjust)
    place = _path(path)
    return _only(sources.of_path(place, options), options, str(path), sources.name_of(place))


def load_instruments(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    symbols: Iterable[str] | None = None,
    tz: str | None = None,
    *,
    day_first: bool | None = None,
    columns: Mapping[str, str] | None = None,
    decimal: str | None = None,
    adjust: bool = False,
) -> list[Bars]:
    """Clean bars of several instruments, sorted by symbol: of several files, of a folder, or of a file with several symbols.

    Args:
      paths: one or several of what `load_bars` takes. All are of one kind: the options hold for each.
      symbols: the instruments to take; None takes all.
      tz, day_first, columns, decimal, adjust: see `LoadOptions`.
    Raises:
      OSError, ValueError: as `load_bars`, or one of the symbols is not there.
    """
    options = LoadOptions(tz=tz, day_first=day_first, columns=columns, decimal=decimal, adjust=adjust)
    places = [_path(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    if not places:
        raise ValueError("paths is an empty list; give at least one file or folder")
    found = sources.of_paths(places, options)
    wanted = sorted(found) if symbols is None else list(dict.fromkeys(symbols))
    origin = listed(map(str, places))
    for symbol in wanted:
        if symbol not in found:
            known = [name for name in found if name is not None]
            raise ValueError(
                f"there is no symbol {symbol!r} in {origin}; there are {listed(sorted(found))}{meant(symbol, known)}"
            )
    return [_to_bars(found.pop(symbol), options, symbol, origin) for symbol in wanted]


def sample_bars() -> Bars:
    """The bundled sample: 6,225 hourly EURUSD bars of 2017 (see `samples/eurusd_1h_2017.md` beside it)."""
    bars = load_bars(Path(__file__).parent / "samples" / SAMPLE, symbol=SAMPLE_SYMBOL)
    source = f"the bundled sample {SAMPLE}"  # not where it happens to be installed
    return dataclasses.replace(bars, source=source, report=dataclasses.replace(bars.report, source=source))


def _path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"path is a {type(path).__name__}; give the path of a price file, or a frame to Bars.from_frame"
        )
    return Path(path)


def _only(found: Mapping[str | None, Sequence[sources.Found]], options: LoadOptions, origin: str, default: str) -> Bars:
    """The bars of the one instrument there is, or of the one the user chose."""
    said = sorted(symbol for symbol in found if symbol is not None)
    if options.symbol is not None and said and options.symbol not in found:
        raise ValueError(
            f"{origin} has no symbol {options.symbol!r}; it holds {listed(said)}{meant(options.symbol, said)}"
        )
    if options.symbol is None and len(found) > 1:
        raise ValueError(f"{origin} holds {len(said):,} symbols ({listed(said)}); choose one with {SETTLE['symbol']}")
    symbol = options.symbol if options.symbol in found else next(iter(found))
    return _to_bars(found[symbol], options, symbol or options.symbol or default, origin)


def _to_bars(found: Sequence[sources.Found], options: LoadOptions, symbol: str, origin: str) -> Bars:
    """Bars of the parts of one instrument."""
    import pandas as pd

    parts = [take() for take in found]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # what is no price is dropped, not warned of
        rows = join([read_rows(part, options) for part in parts])
        cleaned = quality.clean(rows.ns, rows.values, rows.excluded, origin)
    assumed = [*([f"{len(parts)} files are parts of one instrument"] if len(parts) > 1 else []), *rows.assumed]
    if all("open" not in part.found.index for part in parts):
        cleaned = _open_from_close(cleaned)
    if any(part.table.names is None for part in parts):
        headerless.refuse_swapped(cleaned.values[:, 0], cleaned.values[:, 3], origin)
    cleaned, of_splits = _without_splits(cleaned, options)
    dropped = collections.Counter[str]()
    for part in parts:
        dropped.update(part.dropped)
    report = quality.describe(
        dataclasses.replace(cleaned, dropped=dict(dropped) | cleaned.dropped),
        source=origin,
        columns=parts[0].found.names,
        rows_read=sum(part.rows_read for part in parts),
        assumed=(*assumed, *of_splits),
    )
    index = pd.DatetimeIndex(cleaned.ns.astype("datetime64[ns]"), name="time").tz_localize("UTC")
    frame = pd.DataFrame(cleaned.values, index=index, columns=list(COLUMNS))
    return Bars(frame=frame, report=report, symbol=printable(symbol), source=origin)


def _without_splits(bars: quality.CleanBars, options: LoadOptions) -> tuple[quality.CleanBars, list[str]]:
    """The bars with the splits undone where the user asked for it, else with a warning of them; what was assumed."""
    found = splits.find_splits(bars.values)
    if options.adjust:
        days = splits.days(bars.ns, found)
        return splits.undo(bars, found), [f"prices are adjusted for {days}" if found else "no split was noticed"]
    if not found:
        return bars, []
    warning = (
        f"the price jumps like at a split, {splits.days(bars.ns, found)}; if it is one, undo it with {SETTLE['adjust']}"
    )
    return dataclasses.replace(bars, warnings=(*bars.warnings, warning)), []


def _open_from_close(bars: quality.CleanBars) -> quality.CleanBars:
    """Bars known by their close alone: open is the close before, high and low the larger and the smaller of the two."""
    values = bars.values.copy()
    values[1:, 0] = values[:-1, 3]
    values[:, 1], values[:, 2] = values[:, [0, 3]].max(axis=1), values[:, [0, 3]].min(axis=1)
    return dataclasses.replace(bars, values=values)
