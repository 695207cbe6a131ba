"""Every vendor's file gives the same five bars, and those that read two ways name the flag that settles it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from jaxrl_trade.bars import load_bars, load_instruments
from jaxrl_trade.bars.vendors import ALIASES, VENDORS, normalise
from tests.bars.vendor_files import AMBIGUOUS, DAYS, FILES, MINUTES, PRICES


def assert_bars(bars, times, with_volume=True):
    expected = np.array(PRICES, float)
    expected[:, 4] *= with_volume
    np.testing.assert_array_equal(bars.frame.to_numpy(), expected)
    np.testing.assert_array_equal(bars.times, np.array(times, "datetime64[ns]"))


@pytest.mark.parametrize("shape", FILES)
def test_the_file_of_a_vendor_gives_its_bars_without_an_option(shape, tmp_path):
    times, with_volume, text = FILES[shape]
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    assert_bars(load_bars(path), times, with_volume)


@pytest.mark.parametrize("shape", AMBIGUOUS)
def test_what_reads_two_ways_names_the_flag_that_settles_it_and_loads_with_it(shape, tmp_path):
    text, message, options, times, with_volume = AMBIGUOUS[shape]
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        load_bars(path)
    assert "\n" not in str(caught.value)
    assert_bars(load_bars(path, **options), times, with_volume)


@pytest.mark.parametrize(
    "names",
    [
        "Datum;Erster;Hoch;Tief;Schlusskurs;Stuecke",
        "Datum;EROEFFNUNG;Hoechst;Tiefst;Letzter (EUR);Volumen",
        "Fecha;Apertura;Máximo;Mínimo;Cierre;Volumen",
        "Data;Apertura;Massimo;Minimo;Chiusura;Volume",
        "Data;Abertura;Máxima;Mínima;Fechamento;Volume",
        "Date;Ouverture;Haut;Bas;Dernier;Volume",
    ],
)
def test_names_in_several_languages_are_known_with_accents_and_without(names, tmp_path):
    rows = FILES["French"][2].partition("\n")[2]
    (tmp_path / "p.csv").write_text(f"{names}\n{rows}")
    assert_bars(load_bars(tmp_path / "p.csv"), DAYS)


@pytest.mark.parametrize("names", ["Datum;Zeit", "Date;Heure", "Fecha;Hora", "Data;Ora"])
def test_dates_and_clocks_in_several_languages_are_known(names, tmp_path):
    rows = FILES["German"][2].partition("\n")[2]
    (tmp_path / "p.csv").write_text(f"{names};open;high;low;close;volume;x\n{rows}")
    assert_bars(load_bars(tmp_path / "p.csv"), MINUTES)


def test_metatrader_files_in_utf_16_give_the_same_bars(tmp_path):
    times, with_volume, text = FILES["11 MetaTrader 5"]
    for encoding in ("utf-16", "utf-16-le"):
        (tmp_path / "p.csv").write_text(text, encoding=encoding)
        assert_bars(load_bars(tmp_path / "p.csv"), times, with_volume)


@pytest.mark.parametrize(
    ("shape", "assumed"),
    [
        ("1 Yahoo", "prices are adjusted by the column 'Adj Close'"),
        ("6 CryptoDataDownload, quote volume first", "volume is 'Volume ETH', not 'Volume USDT'"),
        ("10 Alpha Vantage", "times carry no time zone and are taken as UTC; if they are not, say so with tz= (--tz)"),
        ("10 Alpha Vantage, JSON", "times are of US/Eastern, as the file says"),
        ("12 MetaTrader 4, HistData MT", "columns without names are date, clock, open, high, low, close, volume"),
        ("14 Dukascopy", "dates have the day first, as 15/1 shows"),
        ("14 Dukascopy", "times are of UTC, as the file says"),
        ("16 Databento, integers", "prices are whole numbers of 1/1,000,000,000, as Databento writes them"),
        ("18 Interactive Brokers, intraday", "times are of US/Eastern, as the file says"),
        ("21 TradeStation", "dates have the month first, as 1/15 shows"),
        ("22 semicolons and decimal commas", "the comma is the decimal mark"),
        ("23 stockstats", "the column 'adjClose' has no prices and was not used"),
    ],
)
def test_the_report_says_what_was_assumed(shape, assumed, tmp_path):
    (tmp_path / "p.csv").write_text(FILES[shape][2])
    report = load_bars(tmp_path / "p.csv").report
    assert any(line.startswith(assumed) for line in report.assumed)
    assert any(line.startswith(f"assumed        {assumed}") for line in report.lines())


def test_a_file_that_says_all_of_it_leaves_nothing_to_assume(tmp_path):
    for shape in (
        "2 yfinance since 0.2.51",
        "5 Kaggle bitstamp, newer",
        "15 Polygon",
        "20 TradingView, ISO and no volume",
    ):
        (tmp_path / "p.csv").write_text(FILES[shape][2])
        assert load_bars(tmp_path / "p.csv").report.assumed == ()


def test_the_symbol_is_the_one_that_the_file_says(tmp_path):
    shapes = {
        "2 yfinance since 0.2.51": "MSFT",
        "10 Alpha Vantage, JSON": "IBM",
        "15 Polygon, JSON": "AAPL",
        "16 Databento, integers": "ESH4",
        "24 wide, of one instrument": "BTC",
    }
    for shape, symbol in shapes.items():
        (tmp_path / "p.csv").write_text(FILES[shape][2])
        assert load_bars(tmp_path / "p.csv").symbol == symbol


def test_a_row_of_names_without_a_ticker_names_no_symbol(tmp_path):
    (tmp_path / "p.csv").write_text(FILES["2 yfinance since 0.2.51"][2].replace("MSFT", ""))
    assert load_bars(tmp_path / "p.csv").symbol == "p"
    assert_bars(load_bars(tmp_path / "p.csv", symbol="Q"), DAYS)


def test_a_price_that_databento_does_not_know_drops_its_bar(tmp_path):
    lines = FILES["16 Databento, integers"][2].splitlines()
    lines[3] = lines[3].replace("101250000000", str(2**63 - 1))
    (tmp_path / "p.csv").write_text("\n".join(lines))
    bars = load_bars(tmp_path / "p.csv")
    assert bars.report.dropped == {"without a price": 1}
    assert bars.frame["close"].tolist() == [101.5, 101.75, 101.0, 101.25]


def test_whole_prices_of_other_vendors_are_prices(tmp_path):
    (tmp_path / "p.csv").write_text("ts_event,open,high,low,close\n2024-01-11,7,9,6,8\n2024-01-12,8,9,7,9\n")
    assert load_bars(tmp_path / "p.csv").frame["close"].tolist() == [8, 9]


def test_a_mean_price_behind_the_close_is_not_taken_for_the_volume(tmp_path):
    rows = [f"170532900{i},{o},{h},{lo},{c},{(h + lo) / 2},{v}" for i, (o, h, lo, c, v) in enumerate(PRICES)]
    (tmp_path / "p.csv").write_text("\n".join(rows))
    with pytest.raises(ValueError, match=r"column 6 lies between high and low.*--columns"):
        load_bars(tmp_path / "p.csv")


def test_json_of_any_usual_orientation_gives_the_same_bars(tmp_path):
    import pandas as pd

    path = tmp_path / "p.json"
    frame = pd.DataFrame(PRICES, pd.DatetimeIndex(MINUTES), ["open", "high", "low", "close", "volume"])
    table = frame.rename_axis("time").reset_index()
    for text in (
        frame.to_json(date_format="iso", date_unit="s"),
        frame.to_json(orient="index", date_unit="ms"),
        table.to_json(orient="records", date_format="iso"),
        table.to_json(orient="records", lines=True, date_format="iso"),
        table.assign(time=table["time"].astype(str)).to_dict("list").__repr__().replace("'", '"'),
    ):
        path.write_text(text)
        assert_bars(load_bars(path), MINUTES)


def test_json_of_several_symbols_lists_them_and_gives_each(tmp_path):
    bars = FILES["15 Polygon, JSON"][2].split('"results":')[1].split('],\n"status"')[0] + "]"
    path = tmp_path / "p.json"
    path.write_text(f'{{"bars": {{"AAPL": {bars}, "MSFT": {bars}}}, "next_page_token": null}}')
    with pytest.raises(ValueError, match=r"2 symbols \(AAPL, MSFT\); choose one with symbol= \(--symbol\)"):
        load_bars(path)
    assert_bars(load_bars(path, symbol="MSFT"), MINUTES)
    assert [each.symbol for each in load_instruments(path)] == ["AAPL", "MSFT"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"Information": "You have reached the limit"}', "JSON without a table of bars"),
        ('{"open": [1, 2], "close": [1, 2], ', "does not read as JSON"),
        ("[" * 100_000, "JSON"),
        ('{"a": ' * 50_000, "JSON"),
        ('{"a": [{"close": 1, "time": 2}], "b": [{"close": 1, "date": 2}]}', r"2 tables that do not match \(a, b\)"),
        ("[[1, 2, 3, 4, 5], [1, 2, 3]]", "JSON without a table"),
        ("[]", "JSON without a table"),
    ],
)
def test_json_without_bars_is_refused_in_one_line(text, message, tmp_path):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_bars(tmp_path / "p.json")
    assert str(caught.value).startswith(str(tmp_path / "p.json"))
    assert "\n" not in str(caught.value)


def outcomes(number, tmp_path):
    """What is seen of the files of a source: whether one loads without a word, what is said of others, flags of refusals."""
    plain, said, flags = False, [], set()
    for shape, (_, _, text) in FILES.items():
        if shape.split()[0] == number:
            (tmp_path / "p.csv").write_text(text)
            assumed = load_bars(tmp_path / "p.csv").report.assumed
            said += assumed
            plain |= not assumed
    for shape, (text, *_) in AMBIGUOUS.items():
        if shape.split()[0] == number:
            (tmp_path / "p.csv").write_text(text)
            with pytest.raises(ValueError, match="--") as caught:
                load_bars(tmp_path / "p.csv")
            flags |= set(re.findall(r"--[a-z-]+", str(caught.value)))
    return plain, said, flags


def test_the_table_in_the_docs_says_what_happens(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "data.md"
    rows = dict(re.findall(r"^\| (\d+) \| .* \| (.*) \|$", page.read_text(), re.MULTILINE))
    assert list(rows) == [str(i + 1) for i in range(25)]
    for number, text in rows.items():
        if number == "25":  # no text files: `test_load_bars` and `test_folders` have them
            continue
        plain, said, flags = outcomes(number, tmp_path)
        stops = re.search(r"stops and names `(--[a-z-]+)`", text)
        assert text.startswith("loads and says") == bool(said), text
        assert plain or said
        assert bool(stops) == bool(flags), text
        assert not stops or stops[1] in flags, text
        assert ("taken as UTC" in text) == any("taken as UTC" in line for line in said), text
        assert ("which volume it took" in text or "TICKVOL" in text) == any(
            line.startswith("volume is") for line in said
        )
        assert ("order of columns" in text) == any(line.startswith("columns without names") for line in said), text


def test_the_names_in_the_table_of_vendors_are_normal_and_mean_one_thing():
    for role, names in ALIASES.items():
        assert [normalise(name) for name in names] == list(names)
        for other, others in ALIASES.items():
            if {role, other} > {"time"} and {role, other} & {"date", "clock"}:
                continue  # a date may be all the time there is
            assert role == other or not set(names) & set(others)


def test_a_new_vendor_is_one_row(tmp_path, monkeypatch):
    from jaxrl_trade.bars import vendors

    row = vendors.Vendor(
        "a new one", time="tid", open="forst", high="hogst", low="lagst", close="senast", volume="volym"
    )
    for role, names in vendors.aliases([*VENDORS, row]).items():
        monkeypatch.setitem(ALIASES, role, names)
    text = re.sub("Date.*", "Tid,Först,Högst,Lägst,Senast", FILES["9 Stooq"][2])
    (tmp_path / "p.csv").write_text(text)
    assert_bars(load_bars(tmp_path / "p.csv"), DAYS, with_volume=False)


def test_every_vendor_has_one_row():
    assert len({vendor.name for vendor in VENDORS}) == len(VENDORS)
