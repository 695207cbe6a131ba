"""Files of many shapes give the same bars, and what reads two ways is refused by name."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from jaxrl_trade.bars import Bars, LoadOptions, load_bars, parse_columns
from tests.bars.builders import epoch, plain_rows, random_frame, write

HEADER = "timestamp,open,high,low,close,volume"


def line(i, o, h, lo, c, v):
    return f"{epoch(i)},{o},{h},{lo},{c},{v}"


def day(i):
    return f"{i + 1:02d}"


# a row of each: how the same 30 bars are written, their header, options; times are hours from 2021-03-01 unless daily
HOURLY = {
    "epoch seconds": (line, HEADER, {}),
    "epoch milliseconds": (lambda i, *r: line(i, *r).replace(",", "000,", 1), HEADER, {}),
    "epoch microseconds": (lambda i, *r: line(i, *r).replace(",", "000000,", 1), HEADER, {}),
    "epoch nanoseconds": (lambda i, *r: line(i, *r).replace(",", "000000000,", 1), HEADER, {}),
    "seconds and milliseconds mixed": (
        lambda i, *r: line(i, *r).replace(",", ("," if i % 2 else "000,"), 1),
        HEADER,
        {},
    ),
    "float seconds": (lambda i, *r: line(i, *r).replace(",", ".0,", 1), HEADER, {}),
    "ISO": (
        lambda i, o, h, lo, c, v: f"2021-03-{1 + i // 24:02d}T{i % 24:02d}:00:00Z,{o},{h},{lo},{c},{v}",
        HEADER,
        {},
    ),
    "ISO with an offset": (
        lambda i, o, h, lo, c, v: (
            f"2021-03-{1 + (i + 2) // 24:02d} {(i + 2) % 24:02d}:00:00+02:00,{o},{h},{lo},{c},{v}"
        ),
        HEADER,
        {},
    ),
    "a local clock": (
        lambda i, o, h, lo, c, v: f"2021-03-{1 + (i + 1) // 24:02d} {(i + 1) % 24:02d}:00,{o},{h},{lo},{c},{v}",
        HEADER,
        {"tz": "Europe/Berlin"},
    ),
    "a fixed offset": (
        lambda i, o, h, lo, c, v: f"202103{1 + (i + 5) // 24:02d} {(i + 5) % 24:02d}0000;{o};{h};{lo};{c};{v}",
        None,
        {"tz": "+05:00"},
    ),
    "twelve-hour clock": (
        lambda i, o, h, lo, c, v: (
            f"2021-03-{1 + i // 24:02d} {i % 12 or 12}:00 {'AP'[i % 24 // 12]}M,{o},{h},{lo},{c},{v}"
        ),
        HEADER,
        {},
    ),
    "date and time apart": (
        lambda i, o, h, lo, c, v: f"2021.03.{1 + i // 24:02d}\t{i % 24:02d}:00:00\t{o}\t{h}\t{lo}\t{c}\t{v}\t0\t3",
        "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>",
        {},
    ),
    "compact date and time apart": (
        lambda i, o, h, lo, c, v: f"X,60,202103{1 + i // 24:02d},{i % 24:02d}0000,{o},{h},{lo},{c},{v},0",
        "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>",
        {},
    ),
    "no header, date and time apart": (
        lambda i, o, h, lo, c, v: f"2021.03.{1 + i // 24:02d},{i % 24:02d}:00,{o},{h},{lo},{c},{v}",
        None,
        {},
    ),
    "no header, twelve columns": (
        lambda i, o, h, lo, c, v: f"{epoch(i)}000,{o},{h},{lo},{c},{v},{epoch(i + 1)}999,5,6,7,8,0",
        None,
        {},
    ),
    "semicolons and decimal commas": (
        lambda i, *r: line(i, *r).replace(",", ";").replace(".", ","),
        HEADER.replace(",", ";"),
        {},
    ),
    "bars as delimiter": (lambda i, *r: line(i, *r).replace(",", "|"), HEADER.replace(",", "|"), {}),
    "quoted, spaced, capital names": (
        lambda i, *r: ", ".join(f'"{x}"' for x in line(i, *r).split(",")).replace(", ", ","),
        '"Open Time","Open Price","High Price","Low Price","Close Price","Vol."',
        {},
    ),
    "numbered names, close before open": (
        lambda i, o, h, lo, c, v: f"{epoch(i)},{c},{v},{lo},{o},{h}",
        "date,4. close,5. volume,3. low,1. open,2. high",
        {},
    ),
    "names given by the user": (
        line,
        "Tid,Först,Högst,Lägst,Senast,Volym",
        {
            "columns": {
                "time": "Tid",
                "open": "Först",
                "high": "Högst",
                "low": "Lägst",
                "close": "Senast",
                "volume": "Volym",
            }
        },
    ),
    "positions given by the user": (
        lambda i, o, h, lo, c, v: f"{v},{c},{lo},{h},{o},{epoch(i)}",
        None,
        {"columns": {"time": "6", "open": "5", "high": "4", "low": "3", "close": "2", "volume": "1"}},
    ),
    "a banner above the header": (line, f"Data from a site, free of charge\n{HEADER}", {}),
    "names in three rows": (
        lambda i, o, h, lo, c, v: f"2021-03-{1 + i // 24:02d} {i % 24:02d}:00:00+00:00,{c},{h},{lo},{o},{v}",
        "Price,Close,High,Low,Open,Volume\nTicker,ABC,ABC,ABC,ABC,ABC\nDatetime,,,,,",
        {},
    ),
    "rows one delimiter longer than the header": (lambda i, *r: line(i, *r) + ",", HEADER, {}),
    "a header one name short": (
        lambda i, o, h, lo, c, v: f"2021-03-{1 + i // 24:02d},{i % 24:02d}:00:00,{o},{h},{lo},{c},{v}",
        "Date,Open,High,Low,Close,Volume",
        {},
    ),
}


@pytest.mark.parametrize("shape", HOURLY)
def test_a_file_of_any_usual_shape_gives_the_same_bars(shape, tmp_path):
    row, header, options = HOURLY[shape]
    bars = load_bars(write(tmp_path, row, header), **options)
    np.testing.assert_array_equal(bars.frame.to_numpy(), np.round(plain_rows(), 4))
    np.testing.assert_array_equal(bars.times.astype("datetime64[s]").astype(int), [epoch(i) for i in range(30)])


DAILY = {
    "day first, shown by a day above 12": lambda i, o, h, lo, c, v: f"{day(i)}/03/2021,{o},{h},{lo},{c},{v}",
    "month first, shown by a day above 12": lambda i, o, h, lo, c, v: f"03/{day(i)}/2021,{o},{h},{lo},{c},{v}",
    "YYYYMMDD": lambda i, o, h, lo, c, v: f"202103{day(i)},{o},{h},{lo},{c},{v}",
    "YYYYMMDD as a float": lambda i, o, h, lo, c, v: f"202103{day(i)}.0,{o},{h},{lo},{c},{v}",
    "month by name": lambda i, o, h, lo, c, v: f"{day(i)}-Mar-2021,{o},{h},{lo},{c},{v}",
    "American with a name": lambda i, o, h, lo, c, v: f'"Mar {day(i)}, 2021",{o},{h},{lo},{c},{v}',
    "currency signs": lambda i, o, h, lo, c, v: f"2021-03-{day(i)},${o},${h},${lo},${c},{v}",
}


@pytest.mark.parametrize("shape", DAILY)
def test_dates_of_any_usual_shape_give_the_same_daily_bars(shape, tmp_path):
    bars = load_bars(write(tmp_path, DAILY[shape], HEADER))
    np.testing.assert_array_equal(bars.frame.to_numpy(), np.round(plain_rows(), 4))
    np.testing.assert_array_equal(
        bars.times.astype("datetime64[D]"), np.arange("2021-03-01", "2021-03-31", dtype="M8[D]")
    )


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(gzip.compress, id="gzip"),
        pytest.param(bz2.compress, id="bzip2"),
        pytest.param(lzma.compress, id="xz"),
        pytest.param(lambda data: pa.compress(data, codec="zstd", asbytes=True), id="zstd"),
        pytest.param(lambda data: b"\xef\xbb\xbf" + data, id="UTF-8 with a byte order mark"),
        pytest.param(lambda data: data.decode().encode("utf-16"), id="UTF-16 with a byte order mark"),
        pytest.param(lambda data: data.decode().encode("utf-16-le"), id="UTF-16 little-endian without one"),
        pytest.param(lambda data: data.decode().encode("utf-16-be"), id="UTF-16 big-endian without one"),
        pytest.param(lambda data: data.replace(b"\n", b"\r\n"), id="Windows line ends"),
        pytest.param(lambda data: data.replace(b"\n", b"\n\n"), id="blank lines"),
        pytest.param(lambda data: data.rstrip(), id="no last line end"),
        pytest.param(lambda data: data.replace(b"volume", "Stückzahl".encode("latin-1")), id="Latin-1 names"),
    ],
)
def test_compression_and_encoding_change_nothing(pack, tmp_path):
    plain = write(tmp_path, line, HEADER)
    packed = tmp_path / "packed.bin"
    packed.write_bytes(pack(plain.read_bytes()))
    np.testing.assert_array_equal(load_bars(packed).frame.iloc[:, :4], load_bars(plain).frame.iloc[:, :4])


def test_an_archive_with_one_table_is_read_and_notes_beside_it_are_not(tmp_path):
    plain = write(tmp_path, line, HEADER)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(plain, "prices.csv")
        archive.writestr("readme.txt", "nothing here")
    assert load_bars(tmp_path / "a.zip").sha256 == load_bars(plain).sha256


def test_an_archive_with_two_tables_is_refused_naming_both(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("one.csv", "a")
        archive.writestr("two.csv", "b")
    with pytest.raises(ValueError, match=r"2 price files \(one.csv, two.csv\)"):
        load_bars(tmp_path / "a.zip")


def test_an_excel_workbook_is_told_how_to_become_a_file_of_prices(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr("[Content_Types].xml", "x")
        archive.writestr("xl/workbook.xml", "x")
    with pytest.raises(ValueError, match="is an Excel workbook; save its sheet as CSV"):
        load_bars(tmp_path / "a.xlsx")


def test_order_in_the_file_does_not_matter(tmp_path):
    plain = write(tmp_path, line, HEADER)
    head, *rows = plain.read_text().splitlines()
    (tmp_path / "down.csv").write_text("\n".join([head, *rows[::-1]]))
    assert load_bars(tmp_path / "down.csv").sha256 == load_bars(plain).sha256


@pytest.mark.parametrize(
    "kind", ["index", "named index", "column", "naive", "seconds", "float32", "decimal", "arrow", "arrow stream"]
)
def test_parquet_and_arrow_files_give_the_bars_of_the_frame_they_were_made_of(kind, tmp_path):
    frame = random_frame(50)
    path, changed = tmp_path / "p.parquet", frame.copy()
    if kind == "named index":
        changed.index.name = "Date"
    elif kind == "column":
        changed = changed.rename_axis("timestamp").reset_index()
    elif kind == "naive":
        changed.index = changed.index.tz_localize(None)
    elif kind == "seconds":
        changed.index = changed.index.as_unit("s").tz_convert("America/New_York")
    elif kind == "float32":
        frame = changed = frame.astype("float32")
    elif kind == "decimal":
        exact = pa.Table.from_pandas(frame)
        exact = exact.set_column(3, "close", exact["close"].cast(pa.decimal128(20, 5)))
        pq.write_table(exact, path)
    if kind == "arrow":
        feather.write_feather(changed.reset_index(names="time"), path)
    elif kind == "arrow stream":
        table = pa.Table.from_pandas(changed)
        with pa.ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table)
    elif kind != "decimal":
        changed.to_parquet(path)
    bars = load_bars(path)
    np.testing.assert_array_equal(bars.frame.to_numpy(), frame.to_numpy().astype(float))
    np.testing.assert_array_equal(bars.times, frame.index.tz_localize(None).to_numpy())


def test_a_frame_and_its_files_have_the_same_content_hash_and_another_price_has_not(tmp_path):
    frame = random_frame(50)
    frame.to_csv(tmp_path / "p.csv")
    frame.to_parquet(tmp_path / "p.parquet")
    hashes = {
        Bars.from_frame(frame).sha256,
        load_bars(tmp_path / "p.csv").sha256,
        load_bars(tmp_path / "p.parquet").sha256,
    }
    assert len(hashes) == 1
    frame.iloc[7, 3] = np.nextafter(frame.iloc[7, 3], 2)
    assert Bars.from_frame(frame).sha256 not in hashes


def test_the_frame_has_five_float_columns_under_an_ascending_utc_index(tmp_path):
    frame = load_bars(write(tmp_path, line, HEADER)).frame
    assert list(frame.columns) == ["open", "high", "low", "close", "volume"]
    assert (frame.dtypes == np.float64).all()
    assert str(frame.index.dtype) == "datetime64[ns, UTC]"
    assert frame.index.is_monotonic_increasing
    assert frame.index.is_unique


def test_the_symbol_is_the_argument_else_the_column_else_the_name_of_the_file(tmp_path):
    with_symbol = write(tmp_path, lambda i, *r: "ABC," + line(i, *r), "symbol," + HEADER, name="b.csv")
    assert load_bars(write(tmp_path, line, HEADER, name="eth.usd.csv.gz"[:7])).symbol == "eth"
    assert load_bars(with_symbol).symbol == "ABC"
    assert load_bars(write(tmp_path, line, HEADER), symbol="Q").symbol == "Q"


def test_a_file_of_several_symbols_needs_one_of_those_it_lists(tmp_path):
    path = write(tmp_path, lambda i, *r: f"{'AB'[i % 2]}," + line(i, *r), "ticker," + HEADER)
    with pytest.raises(ValueError, match=r"2 symbols \(A, B\); choose one with symbol= \(--symbol\)"):
        load_bars(path)
    with pytest.raises(ValueError, match=r"no symbol 'C'; it holds A, B"):
        load_bars(path, symbol="C")
    bars = load_bars(path, symbol="B")
    np.testing.assert_array_equal(bars.frame["close"], [round(1.11 + i / 100, 4) for i in range(1, 30, 2)])
    assert bars.report.dropped == {"of another symbol": 15}


def test_prices_are_adjusted_by_the_ratio_of_the_adjusted_close_and_volume_is_not(tmp_path):
    rows = plain_rows()
    path = write(
        tmp_path, lambda i, *r: line(i, *r) + f",{float(r[3]) * (0.25 if i < 10 else 1):.6f}", HEADER + ",Adj Close"
    )
    bars = load_bars(path)
    ratio = np.where(np.arange(30) < 10, 0.25, 1.0)[:, None]
    np.testing.assert_allclose(bars.frame.iloc[:, :4], np.array(rows)[:, :4] * ratio, rtol=1e-12)  # two roundings
    np.testing.assert_array_equal(bars.frame["volume"], [row[4] for row in rows])
    assert bars.report.assumed == ("prices are adjusted by the column 'Adj Close'",)


def test_a_column_of_closes_alone_makes_bars_and_says_so(tmp_path):
    bars = load_bars(write(tmp_path, lambda i, o, h, lo, c, v: f"{epoch(i)},{c}", "time,close", bars=3))
    close = [1.11, 1.12, 1.13]
    open = [1.11, 1.11, 1.12]
    np.testing.assert_array_equal(bars.frame.iloc[:, :4], np.transpose([open, close, open, close]))
    assert bars.report.assumed[0].startswith("without open, high and low: open is the close before")


REFUSED = {
    "dates that read both ways": (
        lambda i, o, h, lo, c, v: f"{i % 12 + 1:02d}/03/{2000 + i},{o},{h},{lo},{c},{v}",
        HEADER,
        r"line 2: column 'timestamp' has '01/03/2000'.*day_first=True \(--day-first\).*--month-first",
    ),
    "dates of both orders": (
        lambda i, o, h, lo, c, v: f"{'13/03' if i else '03/13'}/{2000 + i},{o},{h},{lo},{c},{v}",
        HEADER,
        "'03/13/2000', month first, but other rows",
    ),
    "commas that read both ways": (
        lambda i, *r: f"2021-03-{day(i)};1,{100 + i};1,{200 + i};1,{100 + i};1,{150 + i};1",
        HEADER.replace(",", ";"),
        r"comma in '1,100'.*settle it with decimal=.*--decimal",
    ),
    "no close": (
        lambda i, o, h, lo, c, v: f"{epoch(i)},{o},{h},{lo},{v}",
        "time,open,high,low,volume",
        r"no close column \(it has 'time', 'open', 'high', 'low', 'volume'\); name it with columns= \(--columns",
    ),
    "no high": (lambda i, o, h, lo, c, v: f"{epoch(i)},{o},{lo},{c}", "time,open,low,close", "no high column"),
    "no time": (lambda i, o, h, lo, c, v: f"{o},{h},{lo},{c}", "open,high,low,close", "no time column"),
    "two closes": (lambda i, *r: line(i, *r) + ",1", HEADER + ",close", "2 columns named 'close'"),
    "text in a price": (
        lambda i, o, h, lo, c, v: f"{epoch(i)},{o},{h},{'1.2x' if i == 7 else lo},{c},{v}",
        HEADER,
        "line 9: column 'low' should hold a number, but has '1.2x'",
    ),
    "text in the time": (
        lambda i, *r: "Total," + ",".join(map(str, r)) if i == 29 else line(i, *r),
        HEADER,
        "line 31: column 'timestamp' has 'Total', which is not a time",
    ),
    "a day that is not in the calendar": (
        lambda i, o, h, lo, c, v: f"2021-02-{day(i)},{o},{h},{lo},{c},{v}",
        HEADER,
        "'2021-02-29', which is no day of the calendar",
    ),
    "a time that is not in the day": (
        lambda i, o, h, lo, c, v: f"2021-02-01 {i}:00,{o},{h},{lo},{c},{v}",
        HEADER,
        "'2021-02-01 24:00', which is no time of the day",
    ),
    "spreadsheet day numbers": (
        lambda i, o, h, lo, c, v: f"{44000 + i},{o},{h},{lo},{c},{v}",
        HEADER,
        "'44000', which is neither an epoch",
    ),
    "epochs that a spreadsheet rounded": (
        lambda i, o, h, lo, c, v: f"1.61E+12,{o},{h},{lo},{c},{v}",
        HEADER,
        "'1.61E\\+12', which is not a time",
    ),
    "several instruments side by side": (
        lambda i, o, h, lo, c, v: f"{epoch(i)},{o},{c},{o},{c}",
        "time,BTC:open,BTC:close,ETH:open,ETH:close",
        r"holds 2 symbols \(BTC, ETH\); choose one with symbol= \(--symbol\)",
    ),
    "several tickers under the names": (
        lambda i, o, h, lo, c, v: f"2021-03-{day(i)},{c},{c},{o},{o}",
        "Price,Close,Close,Open,Open\nTicker,A,B,A,B\nDate,,,,",
        r"holds 2 symbols \(A, B\); choose one with symbol= \(--symbol\)",
    ),
    "no header and swapped prices": (
        lambda i, o, h, lo, c, v: f"{epoch(i)},{c},{h},{lo},{o},{v}",
        None,
        "look swapped; name the columns",
    ),
    "no header and no order of prices": (
        lambda i, o, h, lo, c, v: f"{epoch(i)},{h},{o},{lo},{c},{v}",
        None,
        "columns 2 to 5 do not look like open, high, low, close",
    ),
    "two series in one file": (
        lambda i, *r: line(i // 2, *r),
        HEADER,
        "15 of 15 times have two different bars, first at 2021-03-01 00:00:00",
    ),
    "a quotation mark that is never closed": (
        lambda i, *r: ('"' if i == 20 else "") + line(i, *r),
        HEADER,
        "row 21 opens a quotation mark that its line does not close, and hides 9 lines after it",
    ),
    "rows of all widths": (lambda i, *r: line(i, *r) + ",1" * (i % 3), HEADER, "is not a table|do not have 6 fields"),
    "a header alone": (lambda *r: "", HEADER, "has no rows of numbers"),
    "a single bar": (lambda i, *r: line(0, *r[:-1], 7) if i == 0 else "", HEADER, "a single usable bar"),
    "no usable price": (lambda i, *r: f"{epoch(i)},0,0,0,0,1", HEADER, "no usable row .30 zero or negative price"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_one_way_is_refused_by_name(case, tmp_path):
    row, header, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        load_bars(write(tmp_path, row, header))


@pytest.mark.parametrize("symbol", ["", "X;"])
def test_lines_below_the_table_without_a_time_and_a_price_are_dropped_and_counted(symbol, tmp_path):
    names = f"{symbol and 'symbol;'}Datum;Eröffnung;Hoch;Tief;Schluss;Volumen"
    rows = [f"{symbol}{day}.01.2024;2,0;2,5;1,5;2,{day};7" for day in range(15, 18)]
    gap = ";" * names.count(";")
    below = [gap, f"{symbol}Quelle: eine Börse, Stand 17.01.2024;;;;;", f"{symbol}Summe;;;;;12345"]
    (tmp_path / "p.csv").write_text("\n".join([names, *rows, *below]))
    bars = load_bars(tmp_path / "p.csv")
    assert bars.frame["close"].tolist() == [2.15, 2.16, 2.17]
    assert bars.report.dropped == {"below the table, without a time and a price": 2, "without a time": 1}
    assert bars.report.rows_read == 6


@pytest.mark.parametrize("broken", ["32.01.2024;;;;;", "Summe;2,0;2,5;1,5;2,1;7"])
def test_a_last_row_with_a_wrong_day_or_with_a_price_is_no_line_below_the_table(broken, tmp_path):
    rows = [f"{day}.01.2024;2,0;2,5;1,5;2,{day};7" for day in range(15, 18)]
    (tmp_path / "p.csv").write_text("\n".join(["Datum;Eröffnung;Hoch;Tief;Schluss;Volumen", *rows, broken]))
    with pytest.raises(ValueError, match=r"line 5: column 'Datum' has .*(no day of the calendar|not a time)"):
        load_bars(tmp_path / "p.csv")


def test_a_line_without_a_time_amid_the_rows_is_refused(tmp_path):
    (tmp_path / "p.csv").write_text("date,close,volume\n2024-01-15,1,5\nnote,,\n2024-01-16,2,5\n2024-01-17,2,5\n")
    with pytest.raises(ValueError, match="line 3: column 'date' has 'note', which is not a time"):
        load_bars(tmp_path / "p.csv")


@pytest.mark.parametrize("day_first", [True, False])
def test_the_user_settles_dates_that_read_both_ways(day_first, tmp_path):
    path = write(tmp_path, lambda i, o, h, lo, c, v: f"0{i % 9 + 1}/05/{1990 + i},{o},{h},{lo},{c},{v}", HEADER)
    times = load_bars(path, day_first=day_first).times.astype("datetime64[D]")
    expected = [f"{1990 + i}-05-0{i % 9 + 1}" if day_first else f"{1990 + i}-0{i % 9 + 1}-05" for i in range(30)]
    np.testing.assert_array_equal(times, np.array(expected, "datetime64[D]"))


@pytest.mark.parametrize(("decimal", "scale"), [(".", 1000.0), (",", 1.0)])
def test_the_user_settles_commas_that_read_both_ways(decimal, scale, tmp_path):
    path = write(
        tmp_path,
        lambda i, *r: f"2021-03-{day(i)};1,{100 + i};1,{200 + i};1,{100 + i};1,{150 + i};1",
        HEADER.replace(",", ";"),
    )
    expected = scale * np.array([1 + (100 + i) / 1000 for i in range(30)])
    np.testing.assert_allclose(load_bars(path, decimal=decimal).frame["open"], expected, rtol=1e-15)  # one rounding


def test_a_point_that_is_neither_decimal_mark_nor_separator_is_refused(tmp_path):
    row, header, _ = HOURLY["semicolons and decimal commas"]
    path = write(tmp_path, lambda i, *r: row(i, *r) if i != 4 else row(i, *r).replace("1,2", "1.2"), header)
    with pytest.raises(ValueError, match=r"line 6: column 'high' should hold a number, but has '1.2400'"):
        load_bars(path)


def test_a_refused_row_is_named_by_its_line_in_the_file_over_blank_and_malformed_ones(tmp_path):
    path = write(tmp_path, line, f"A banner\n\n{HEADER}")
    lines = path.read_text().splitlines()
    lines[10] = lines[10].replace("1.1", "1.x", 1)
    path.write_text("\n".join([*lines[:5], "", "torn,row", *lines[5:]]))
    assert path.read_text().splitlines()[12].count("x") == 1
    with pytest.raises(ValueError, match=r"line 13: column 'open' should hold a number, but has '1.x"):
        load_bars(path)


def test_a_user_who_contradicts_the_dates_is_told_so(tmp_path):
    path = write(tmp_path, DAILY["day first, shown by a day above 12"], HEADER)
    with pytest.raises(ValueError, match="'13/03/2021', which contradicts day_first=False"):
        load_bars(path, day_first=False)


NO_PRICE_FILE = {
    "empty": (b"", "is empty"),
    "blank": (b"  \n \n", "is empty"),
    "a byte order mark alone": (b"\xef\xbb\xbf\n", "is empty"),
    "binary": (bytes(range(256)) * 20, "binary data"),
    "Parquet": (b"PAR1 and nothing more", "damaged or cut off"),
    "Arrow": (b"ARROW1 and nothing more", "damaged or cut off"),
    "gzip cut off": (gzip.compress(b"time,close\n" * 1000)[:-20], "damaged or cut off"),
    "zstd": (b"\x28\xb5\x2f\xfd nothing", "damaged or cut off"),
    "zip": (b"PK\x03\x04 nothing", "damaged or cut off"),
    "prose": (b"a line of prose\nand another one\n", "is not a table"),
    "an Arrow stream cut off": (b"\xff\xff\xff\xff and nothing more", "damaged or cut off"),
    "UTF-16 cut off": (b"\xff\xfea", "not valid UTF-16"),
}


@pytest.mark.parametrize("kind", NO_PRICE_FILE)
def test_what_is_no_price_file_gets_one_line_of_our_own(kind, tmp_path):
    content, message = NO_PRICE_FILE[kind]
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_bars(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_without_prices_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing.csv"):
        load_bars(tmp_path / "nothing.csv")
    (tmp_path / ".hidden.csv").write_text("time,close\n")
    with pytest.raises(ValueError, match="there is no price file in the folder"):
        load_bars(tmp_path)


@pytest.mark.parametrize("path", [None, 5, pd.DataFrame({"close": [1.0]})])
def test_a_path_is_a_path(path):
    with pytest.raises(
        ValueError, match=r"path is a \w+; give the path of a price file, or a frame to Bars.from_frame"
    ):
        load_bars(path)


def test_options_are_checked_before_the_file():
    with pytest.raises(ValueError, match="columns names the role 'klose'"):
        LoadOptions(columns={"klose": "x"})
    with pytest.raises(ValueError, match="decimal = 'x'"):
        LoadOptions(decimal="x")
    assert parse_columns("close=Last, time=Time Stamp") == {"close": "Last", "time": "Time Stamp"}
    with pytest.raises(ValueError, match="write role=column pairs"):
        parse_columns("close")


TWO_COLUMNS = "Dag;Klocka;Högst;Lägst;Senast\n15.01.2024;14:30;2,5;1,5;2,1\n15.01.2024;14:31;2,6;1,6;2,2\n"


@pytest.mark.parametrize(
    "given",
    ["date=Dag,clock=Klocka", "date=Dag,time=Klocka", "time=Dag,clock=Klocka", "date=1,clock=2"],
)
def test_date_and_clock_in_two_columns_may_be_named_in_every_natural_way(given, tmp_path):
    (tmp_path / "p.csv").write_text(TWO_COLUMNS)
    bars = load_bars(tmp_path / "p.csv", columns=parse_columns(f"{given},close=Senast"))
    np.testing.assert_array_equal(bars.times, np.array(["2024-01-15T14:30", "2024-01-15T14:31"], "M8[ns]"))
    assert bars.frame["close"].tolist() == [2.1, 2.2]
    assert bars.report.assumed[1].startswith("columns 'Högst', 'Lägst' are not used; columns= (--columns open=NAME")


@pytest.mark.parametrize("given", ["time=Dag,close=Senast", "date=Dag,close=Senast"])
def test_a_clock_left_over_beside_days_that_come_twice_is_named_with_its_flag(given, tmp_path):
    (tmp_path / "p.csv").write_text(TWO_COLUMNS)
    with pytest.raises(ValueError, match=r"column 'Dag' has days alone.*'Klocka'.*--columns date=Dag,clock=Klocka"):
        load_bars(tmp_path / "p.csv", columns=parse_columns(given))


def test_a_date_that_the_user_names_goes_with_a_clock_that_is_known_and_the_other_way_around(tmp_path):
    for names, given in (("Dag;Uhrzeit", "date=Dag"), ("Datum;Klocka", "clock=Klocka")):
        (tmp_path / "p.csv").write_text(TWO_COLUMNS.replace("Dag;Klocka", names))
        bars = load_bars(tmp_path / "p.csv", columns=parse_columns(f"{given},close=Senast"))
        np.testing.assert_array_equal(bars.times, np.array(["2024-01-15T14:30", "2024-01-15T14:31"], "M8[ns]"))


@pytest.mark.parametrize("copy", ["", "2024-01-16,2,09:30\n"])
def test_a_day_of_each_bar_needs_no_clock_that_stands_beside_it(copy, tmp_path):
    (tmp_path / "p.csv").write_text("date,close,time of the high\n2024-01-15,1,14:30\n2024-01-16,2,09:30\n" + copy)
    assert load_bars(tmp_path / "p.csv").frame["close"].tolist() == [1, 2]


@pytest.mark.parametrize("joint", ["_", ":"])
def test_a_ticker_that_means_a_price_in_another_language_is_a_ticker(joint, tmp_path):
    names = [f"{price}{joint}{symbol}" for symbol in ("BAS", "SAP") for price in ("open", "high", "low", "close")]
    rows = [f"2024-01-{day},2,3,1,2,5,6,4,5" for day in (15, 16)]
    (tmp_path / "p.csv").write_text("\n".join([",".join(["date", *names]), *rows]))
    assert load_bars(tmp_path / "p.csv", symbol="BAS").frame["close"].tolist() == [2, 2]
    assert load_bars(tmp_path / "p.csv", symbol="SAP").frame["close"].tolist() == [5, 5]


def test_all_roles_that_no_column_plays_are_named_at_once(tmp_path):
    (tmp_path / "p.csv").write_text(TWO_COLUMNS)
    message = r"has no time, open, high, low and no close column \(it has 'Dag', .*--columns date=NAME,clock=Klocka,open=NAME,"
    with pytest.raises(ValueError, match=message):
        load_bars(tmp_path / "p.csv")
    with pytest.raises(ValueError, match=r"has no open and no low column .*--columns open=NAME,low=NAME\)"):
        load_bars(tmp_path / "p.csv", columns=parse_columns("date=Dag,clock=Klocka,high=Högst,close=Senast"))


def test_a_column_the_user_names_must_be_there(tmp_path):
    with pytest.raises(ValueError, match=r"close='Last' matches no column of .*'timestamp', 'open'"):
        load_bars(write(tmp_path, line, HEADER), columns={"close": "Last"})


def test_a_frame_with_text_prices_or_mixed_types_is_refused():
    frame = random_frame(30)
    with pytest.raises(ValueError, match="row 1: column 'close' should hold a number, but has 'a'"):
        Bars.from_frame(frame.assign(close="a"))
    with pytest.raises(ValueError, match="mixed types"):
        Bars.from_frame(frame.assign(close=pd.Series([1.0, "a"] * 15, index=frame.index, dtype=object)))
