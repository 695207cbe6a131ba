"""Several files, folders and files of several symbols as instruments; files of one instrument joined."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

from jaxrl_trade.bars import Bars, load_bars, load_instruments
from tests.bars.builders import random_frame


@pytest.fixture
def frames():
    return {symbol: random_frame(60, seed) for seed, symbol in enumerate(("AAPL", "BTC", "EURUSD"))}


def same(bars, frame):
    pd.testing.assert_frame_equal(bars.frame, frame, check_freq=False, check_names=False)


def test_the_files_of_a_folder_are_instruments_by_name(frames, tmp_path):
    frames["AAPL"].to_csv(tmp_path / "AAPL.csv")
    frames["BTC"].to_parquet(tmp_path / "BTC.parquet")
    (tmp_path / "deeper").mkdir()
    frames["EURUSD"].to_csv(tmp_path / "deeper" / "EURUSD.csv.gz")
    (tmp_path / "README.txt").write_text("no prices")
    (tmp_path / ".hidden.csv").write_text("no prices")
    found = load_instruments(tmp_path)
    assert [bars.symbol for bars in found] == ["AAPL", "BTC", "EURUSD"]
    for bars in found:
        same(bars, frames[bars.symbol])
    with pytest.raises(
        ValueError, match=r"holds 3 symbols \(AAPL, BTC, EURUSD\); choose one with symbol= \(--symbol\)"
    ):
        load_bars(tmp_path)
    same(load_bars(tmp_path, symbol="BTC"), frames["BTC"])
    with pytest.raises(ValueError, match=r"has no symbol 'X'; it holds AAPL, BTC, EURUSD"):
        load_bars(tmp_path, symbol="X")


def test_several_files_are_several_instruments_and_options_hold_for_each(frames, tmp_path):
    paths = []
    for symbol, frame in frames.items():
        shown = frame.copy()
        shown.index = shown.index.tz_convert("Asia/Tokyo").tz_localize(None)
        paths.append(tmp_path / f"{symbol}.csv")
        shown.to_csv(paths[-1], index_label="time")
    for bars in load_instruments(paths[::-1], tz="Asia/Tokyo"):
        same(bars, frames[bars.symbol])
    chosen = load_instruments(paths, symbols=["EURUSD", "AAPL"], tz="Asia/Tokyo")
    assert [bars.symbol for bars in chosen] == ["EURUSD", "AAPL"]  # as the user ordered them
    with pytest.raises(ValueError, match=r"there is no symbol 'X' in .*; there are AAPL, BTC, EURUSD"):
        load_instruments(paths, symbols=["X"])
    with pytest.raises(ValueError, match="paths is an empty list"):
        load_instruments([])


def test_months_of_one_instrument_in_a_folder_are_joined_and_the_report_says_so(frames, tmp_path):
    frame = frames["BTC"]
    for i, month in enumerate(("2021-01", "2021-02", "2021-03")):
        part = frame.iloc[20 * i : 20 * (i + 1) + 1]  # one bar of each is in the next file, too
        part.to_csv(tmp_path / f"BTCUSDT-1h-{month}.csv")
    bars = load_bars(tmp_path)
    same(bars, frame)
    assert bars.symbol == "BTCUSDT-1h"
    assert bars.report.rows_read == 62
    assert bars.report.dropped == {"identical duplicate": 2}
    assert bars.report.assumed == ("3 files are parts of one instrument",)


@pytest.mark.parametrize(
    ("names", "symbols"),
    [
        (("DAT_M1_EURUSD_201202.csv", "DAT_M1_EURUSD_201203.csv"), ["DAT_M1_EURUSD"]),
        (("x-2021-03-01.csv", "x_20210302.csv"), ["x"]),
        (("aapl.us.txt", "aapl.de.txt"), ["aapl.de", "aapl.us"]),
        (("000001.csv", "600000.csv"), ["000001", "600000"]),  # codes of instruments, no dates
        (("part-00000-a1.parquet", "part-00001-b2.parquet"), ["prices"]),
    ],
)
def test_a_date_at_the_end_of_a_name_is_no_part_of_the_symbol(names, symbols, frames, tmp_path):
    folder = tmp_path / "prices"
    folder.mkdir()
    for i, name in enumerate(names):
        part = frames["BTC"].iloc[30 * i : 30 * (i + 1)]
        part.to_parquet(folder / name) if name.endswith("parquet") else part.to_csv(folder / name)
    assert [bars.symbol for bars in load_instruments(folder)] == symbols
    if symbols != ["prices"]:  # files without a name of their own, given one by one, have that of their file
        assert [bars.symbol for bars in load_instruments([folder / name for name in names])] == symbols


def test_files_without_a_name_beside_others_are_called_after_the_folder(frames, tmp_path):
    folder = tmp_path / "prices"
    folder.mkdir()
    frames["AAPL"].to_csv(folder / "AAPL.csv")
    frames["BTC"].to_csv(folder / "data.csv")
    with pytest.raises(ValueError, match=r"holds 2 symbols \(AAPL, prices\)"):
        load_bars(folder)
    same(load_bars(folder, symbol="prices"), frames["BTC"])
    (folder / "AAPL.csv").unlink()
    assert load_bars(folder, symbol="any").symbol == "any"  # the only one takes the name it is given


def test_hive_folders_say_the_symbol_and_split_it_by_year(frames, tmp_path):
    for symbol, frame in frames.items():
        for year, half in (("2020", frame.iloc[:30]), ("2021", frame.iloc[30:])):
            folder = tmp_path / f"symbol={symbol}" / f"year={year}"
            folder.mkdir(parents=True)
            half.to_parquet(folder / "part-0.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    for bars in load_instruments(tmp_path):
        same(bars, frames[bars.symbol])
    same(load_bars(tmp_path, symbol="AAPL"), frames["AAPL"])
    shutil.rmtree(tmp_path / "symbol=AAPL")
    shutil.rmtree(tmp_path / "symbol=EURUSD")
    (tmp_path / "symbol=BTC").rename(tmp_path / "symbol=BTC%2FUSD")  # as Hive writes what no folder may be called
    assert load_bars(tmp_path).symbol == "BTC/USD"


def test_a_file_of_many_symbols_gives_each_its_rows(frames, tmp_path):
    table = pd.concat([frame.assign(ticker=symbol) for symbol, frame in frames.items()])
    table.sample(frac=1, random_state=0).to_csv(tmp_path / "day.csv", index_label="window_start")
    found = load_instruments(tmp_path / "day.csv")
    assert [bars.symbol for bars in found] == sorted(frames)
    for bars in found:
        same(bars, frames[bars.symbol])
        assert bars.report.dropped == {"of another symbol": 120}


def test_two_different_series_of_one_name_are_refused(frames, tmp_path):
    frames["AAPL"].to_csv(tmp_path / "X-2021.csv")
    frames["BTC"].to_csv(tmp_path / "X-2022.csv")
    with pytest.raises(ValueError, match="60 of 60 times have two different bars"):
        load_bars(tmp_path)


def test_a_file_in_a_folder_that_cannot_be_read_is_named(frames, tmp_path):
    frames["AAPL"].to_csv(tmp_path / "A.csv")
    (tmp_path / "B.csv").write_text("time,close\n2021-01-01,1.2\nyesterday,1.3\n")
    with pytest.raises(ValueError, match=r"B.csv, line 3: column 'time' has 'yesterday'"):
        load_instruments(tmp_path)


class ArrowFrame:
    """A frame of a library that nobody here knows, which shows itself as an Arrow stream."""

    def __init__(self, frame):
        import pyarrow as pa

        self._table = pa.Table.from_pandas(frame.rename_axis("time").reset_index(), preserve_index=False)

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def test_a_frame_of_any_library_that_speaks_arrow_gives_the_bars_of_the_pandas_frame(frames):
    same(Bars.from_frame(ArrowFrame(frames["BTC"])), frames["BTC"])
    same(Bars.from_frame(ArrowFrame(frames["BTC"])._table), frames["BTC"])


def test_a_polars_frame_gives_the_bars_of_the_pandas_frame(frames):
    import polars as pl

    table = frames["BTC"].rename_axis("time").reset_index()
    columns = {name: table[name].to_numpy() for name in table.columns if name != "time"}
    frame = pl.DataFrame({"time": [time.to_pydatetime() for time in table["time"]], **columns})
    same(Bars.from_frame(frame), frames["BTC"])
    many = pl.concat([frame.with_columns(symbol=pl.lit(name).cast(pl.Categorical)) for name in ("A", "B")])
    same(Bars.from_frame(many, symbol="B"), frames["BTC"])
    texts = frame.select(pl.col("time").dt.strftime("%Y-%m-%d %H:%M:%SZ"), pl.exclude("time").cast(pl.String))
    same(Bars.from_frame(texts), frames["BTC"])


def test_pandas_frames_as_libraries_hand_them_out(frames):
    frame = frames["BTC"]
    as_yfinance = frame.rename(columns=str.title)
    as_yfinance.columns = pd.MultiIndex.from_product([as_yfinance.columns, ["MSFT"]], names=["Price", "Ticker"])
    bars = Bars.from_frame(as_yfinance.rename_axis("Datetime"))
    same(bars, frame)
    assert bars.symbol == "MSFT"
    as_alpaca = pd.concat({"A": frame, "B": frames["AAPL"]}, names=["symbol", "timestamp"])
    same(Bars.from_frame(as_alpaca, symbol="A"), frame)
    as_ccxt = pd.DataFrame(np.column_stack([frame.index.asi8 // 10**6, frame.to_numpy()]))
    same(Bars.from_frame(as_ccxt), frame)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], r"the frame is a list; give a frame of pandas or polars, or an Arrow table"),
        (pd.DataFrame(), "the frame has no rows"),
        (
            pd.DataFrame([[1, 2], [3, 4]], columns=["close", "close"]),
            r"the frame is no table that Arrow takes \(Duplicate",
        ),
    ],
)
def test_what_is_no_frame_of_prices_is_told_so(value, message):
    with pytest.raises(ValueError, match=message):
        Bars.from_frame(value)
