"""`Bars`, and the way to them: a file or a frame is laid out, its columns understood, its times read and its rows cleaned."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from jaxrl_trade.bars import decimals, files, formats, headerless, layout, quality, times, zones
from jaxrl_trade.bars.options import SETTLE, LoadOptions

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.bars.quality import BoolArray
    from jaxrl_trade.bars.rolling import FloatArray

COLUMNS = ("open", "high", "low", "close", "volume")
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
        frame: pd.DataFrame,
        symbol: str | None = None,
        tz: str | None = None,
        *,
        day_first: bool | None = None,
        columns: Mapping[str, str] | None = None,
        decimal: str | None = None,
    ) -> Bars:
        """Bars of a pandas frame, under the same rules and with the same options as those of a file.

        Raises:
          ValueError: as `load_bars`.
        """
        options = LoadOptions(symbol=symbol, tz=tz, day_first=day_first, columns=columns, decimal=decimal)
        return _to_bars(layout.from_frame(frame, "the frame"), options, "frame")

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
) -> Bars:
    """Clean bars of a CSV (also gzip, zip, zstd, bzip2, xz), Parquet or Arrow file.

    Names, delimiter, header, order and time format are found out; what reads two ways is refused with the option that
    settles it.

    Args:
      path: the file.
      symbol, tz, day_first, columns, decimal: answers to what the file leaves open, see `LoadOptions`.
    Raises:
      OSError: there is no such file, or it cannot be read.
      ValueError: it is not a price file, or it is ambiguous; the message says what to do.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"path is a {type(path).__name__}; give the path of a price file, or a frame to Bars.from_frame"
        )
    options = LoadOptions(symbol=symbol, tz=tz, day_first=day_first, columns=columns, decimal=decimal)
    table = layout.read_table(files.read_file(path), str(path))
    return _to_bars(table, options, Path(path).name.split(".")[0])


def sample_bars() -> Bars:
    """The bundled sample: 6,225 hourly EURUSD bars of 2017 (see `samples/eurusd_1h_2017.md` beside it)."""
    bars = load_bars(Path(__file__).parent / "samples" / SAMPLE, symbol=SAMPLE_SYMBOL)
    source = f"the bundled sample {SAMPLE}"  # not where it happens to be installed
    return dataclasses.replace(bars, source=source, report=dataclasses.replace(bars.report, source=source))


def _to_bars(table: layout.RawTable, options: LoadOptions, default_symbol: str) -> Bars:
    import pandas as pd

    found = formats.find_layout(table, options)
    rows_read = table.rows + table.malformed
    symbol, table, apart = _one_instrument(table, found, options, default_symbol)
    table, repeated = _without_repeated_headers(table, found)
    values, warnings = _values(table, found, options)
    ns, excluded, time_warnings = _times(table, found, options, values)
    cleaned = quality.clean(ns, values, excluded, table.origin)
    if "open" not in found.index:
        cleaned = _open_from_close(cleaned)
    if table.names is None:
        headerless.refuse_swapped(cleaned.values[:, 0], cleaned.values[:, 3], table.origin)
    outside = {
        "of another symbol": apart,
        "a repeated header": repeated,
        "with another number of fields": table.malformed,
    }
    dropped = {reason: count for reason, count in outside.items() if count}
    cleaned = dataclasses.replace(cleaned, dropped=dropped | cleaned.dropped)
    report = quality.describe(
        cleaned,
        source=table.origin,
        columns=found.names,
        rows_read=rows_read,
        warnings=(*found.warnings, *warnings, *time_warnings),
    )
    index = pd.DatetimeIndex(cleaned.ns.astype("datetime64[ns]"), name="time").tz_localize("UTC")
    frame = pd.DataFrame(cleaned.values, index=index, columns=list(COLUMNS))
    return Bars(frame=frame, report=report, symbol=symbol, source=table.origin)


def _one_instrument(
    table: layout.RawTable, found: formats.Layout, options: LoadOptions, default: str
) -> tuple[str, layout.RawTable, int]:
    """Symbol, its rows, and how many rows belong to others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "symbol" not in found.index:
        return options.symbol or default, table, 0
    column = pc.fill_null(pc.utf8_trim_whitespace(table.columns[found.index["symbol"]].cast(pa.string())), "")
    symbols = sorted(set(pc.unique(column).to_pylist()) - {"", found.names["symbol"]})
    if options.symbol is None and len(symbols) == 1:
        return symbols[0], table, 0
    listed = ", ".join(symbols[:20]) + (f", ... ({len(symbols)} in all)" if len(symbols) > 20 else "")
    if options.symbol is None and len(symbols) > 1:
        raise ValueError(f"{table.origin} holds {len(symbols)} symbols ({listed}); choose one with {SETTLE['symbol']}")
    if options.symbol is not None and symbols and options.symbol not in symbols:
        raise ValueError(f"{table.origin} has no symbol {options.symbol!r}; it holds {listed}")
    if not symbols:
        return options.symbol or default, table, 0
    chosen = pc.equal(column, options.symbol).to_numpy(zero_copy_only=False)
    return str(options.symbol), _rows(table, chosen), int((~chosen).sum())


def _without_repeated_headers(table: layout.RawTable, found: formats.Layout) -> tuple[layout.RawTable, int]:
    """Files joined end to end have the header again between their rows."""
    import pyarrow.compute as pc

    close = table.columns[found.index["close"]]
    if table.names is None or not decimals.is_text(close):
        return table, 0
    name = table.names[found.index["close"]]
    again = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(close), name), False).to_numpy(zero_copy_only=False)
    return (_rows(table, ~again), int(again.sum())) if again.any() else (table, 0)


def _rows(table: layout.RawTable, chosen: BoolArray) -> layout.RawTable:
    import pyarrow as pa

    kept, label = np.flatnonzero(chosen), table.label
    columns = tuple(column.filter(pa.array(chosen)) for column in table.columns)
    return dataclasses.replace(table, columns=columns, label=lambda row: label(int(kept[row])))


def _values(table: layout.RawTable, found: formats.Layout, options: LoadOptions) -> tuple[FloatArray, list[str]]:
    """`[n, 5]` open, high, low, close, volume, adjusted for splits and dividends where the file says how; NaN if missing."""
    roles = [role for role in (*COLUMNS, "adj_close") if role in found.index]
    mark = decimals.decimal_mark([table.columns[found.index[role]] for role in roles], options, table.origin)
    numbers = {
        role: decimals.to_float(table.columns[found.index[role]], mark, found.names[role], table.label, table.origin)
        for role in roles
    }
    close = numbers["close"]
    values = np.column_stack(
        [*(numbers.get(role, close) for role in COLUMNS[:4]), numbers.get("volume", np.zeros(len(close)))]
    )
    adjusted = numbers.get("adj_close")
    if adjusted is None:
        return values, []
    adjusted = np.where(adjusted > 0, adjusted, np.nan)
    if not np.isfinite(adjusted).any():
        return values, [f"the column {found.names['adj_close']!r} has no prices and was not used"]
    same = adjusted == close
    values[:, :4] *= np.where(same, 1.0, adjusted / np.where(close > 0, close, np.nan))[:, None]
    return values, [] if same.all() else [f"prices are adjusted by the column {found.names['adj_close']!r}"]


def _times(
    table: layout.RawTable, found: formats.Layout, options: LoadOptions, values: FloatArray
) -> tuple[quality.IntArray, dict[str, BoolArray], tuple[str, ...]]:
    """`[n]` UTC nanoseconds, the rows that have none by reason, warnings."""

    def column(role: str) -> times.Column:
        return times.Column(table.columns[found.index[role]], found.names[role], table.origin, table.label)

    if "date" in found.index:
        read = times.read_times(column("date"), options.day_first)
        if "clock" in found.index:
            read = dataclasses.replace(read, ns=read.ns + times.read_clock(column("clock")))
    else:
        read = times.read_times(column("time"), options.day_first)
    ns, excluded, warnings = zones.to_utc(read.ns, ~read.absolute & ~read.missing, options.tz, values)
    return ns, {"without a time": read.missing} | excluded, warnings


def _open_from_close(bars: quality.CleanBars) -> quality.CleanBars:
    """Bars known by their close alone: open is the close before, high and low the larger and the smaller of the two."""
    values = bars.values.copy()
    values[1:, 0] = values[:-1, 3]
    values[:, 1], values[:, 2] = values[:, [0, 3]].max(axis=1), values[:, [0, 3]].min(axis=1)
    return dataclasses.replace(bars, values=values)
