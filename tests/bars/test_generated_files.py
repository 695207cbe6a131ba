"""Files written every way at once: the same bars come back or a refusal by name, never a wrong number."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxrl_trade.bars import load_bars
from tests.bars.builders import random_frame

PRICES = ("open", "high", "low", "close")
ZONE = "America/New_York"
CLOCKS = {  # how times are written; a space splits those that may stand in two columns
    "seconds": lambda t: t.asi8 // 10**9,
    "float seconds": lambda t: [f"{ns // 10**9}.0" for ns in t.asi8],
    "milliseconds": lambda t: t.asi8 // 10**6,
    "microseconds": lambda t: t.asi8 // 10**3,
    "nanoseconds": lambda t: t.asi8,
    "mixed epochs": lambda t: [ns // 10 ** (9 if i % 3 else 6) for i, ns in enumerate(t.asi8)],
    "ISO": lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "ISO without a zone": lambda t: t.strftime("%Y-%m-%d %H:%M:%S"),
    "offset": lambda t: t.tz_convert("Asia/Kolkata").strftime("%Y-%m-%d %H:%M:%S+05:30"),
    "name of the zone": lambda t: t.tz_convert("Asia/Kolkata").strftime("%Y%m%d  %H:%M:%S Asia/Kolkata"),
    "day first": lambda t: t.strftime("%d/%m/%Y %H:%M"),
    "month first": lambda t: t.strftime("%m/%d/%Y %I:%M %p"),
    "dotted day first": lambda t: t.strftime("%d.%m.%Y %H:%M:%S.000"),
    "dotted, two digits of the year": lambda t: t.strftime("%d.%m.%y %H:%M Uhr"),
    "compact": lambda t: t.strftime("%Y%m%d %H%M%S"),
    "compact digits": lambda t: t.strftime("%Y%m%d%H%M%S"),
    "named month": lambda t: t.strftime("%d-%b-%Y %H:%M"),
    "local": lambda t: t.tz_convert(ZONE).strftime("%Y-%m-%d %H:%M:%S"),
}
SPLIT = ("ISO without a zone", "month first", "dotted day first", "compact", "local")  # may stand in two columns
NAMES = {
    "plain": ("time", "open", "high", "low", "close", "volume"),
    "brackets": ("<DATE>", "<OPEN>", "<HIGH>", "<LOW>", "<CLOSE>", "<TICKVOL>"),
    "numbered": ("timestamp", "1. open", "2. high", "3. low", "4. close", "5. volume"),
    "short": ("t", "o", "h", "l", "c", "v"),
    "units": ("Gmt time", "Open (USD)", "High (USD)", "Low (USD)", "Close (USD)", "Volume_(BTC)"),
    "of one instrument": ("Date", "X:open", "X:high", "X:low", "X:close", "X:volume"),
    None: None,
}
JUNK = ("", "# end of file", "Total,,", "1,2", "<html>", "\x00", "2021-03-01,1.5", "header again")
# all that a generated file may be refused for
REFUSALS = re.compile(
    r"--day-first|--decimal|--columns|--symbol|two different bars|not a time|should hold a number|of \d+ rows do not have"
    r"|year first or last"
    r"|no usable row|single usable|binary data|is not a table|no rows of numbers|the header has|quotation mark|UTF-16"
    r"|JSON without a table of bars|neither an epoch|contradicts|no day of the calendar|no time of the day|month first, but"
)

files = st.fixed_dictionaries(
    {
        "bars": st.integers(5, 60),
        "seed": st.integers(0, 50),
        "start": st.sampled_from(["2021-03-01", "2021-03-13", "2021-11-06", "2019-12-28 17:00", "2004-02-28"]),
        "freq": st.sampled_from(["min", "15min", "h", "D"]),
        "scale": st.sampled_from([0.05, 1.0, 1234.0]),
        "clock": st.sampled_from(sorted(CLOCKS)),
        "apart": st.booleans(),
        "names": st.sampled_from(list(NAMES)),
        "delimiter": st.sampled_from([",", ";", "\t", "|"]),
        "comma": st.booleans(),
        "thousands": st.booleans(),
        "order": st.sampled_from(["up", "down", "shuffled"]),
        "mix": st.integers(0, 5),
        "gaps": st.integers(0, 3),
        "copies": st.integers(0, 3),
        "conflict": st.booleans(),
        "missing": st.integers(0, 3),
        "adjusted": st.booleans(),
        "more": st.booleans(),
        "symbols": st.sampled_from([0, 0, 1, 2]),
        "banner": st.booleans(),
        "junk": st.lists(st.tuples(st.sampled_from(JUNK), st.integers(0, 60)), max_size=3),
        "quoted": st.booleans(),
        "ends": st.sampled_from(["\n", "\n", "\r\n"]),
        "encoding": st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
        "container": st.sampled_from(["text", "text", "gzip", "zip", "json"]),
        "decimals": st.sampled_from([3, 5]),
    }
)


def written(spec):
    """The bars, rows of text by column, and the options to load them with."""
    rng = np.random.default_rng(spec["seed"])
    bars = spec["bars"] if spec["clock"] != "local" else spec["bars"] + 30  # a few shuffled rows may seem to be sorted
    frame = random_frame(bars, spec["seed"], spec["start"], spec["freq"])
    frame[list(PRICES)] = np.round(frame[list(PRICES)] * spec["scale"], spec["decimals"])
    frame = frame.drop(frame.index[rng.choice(range(1, len(frame) - 1), spec["gaps"], replace=False)])
    number = "{:,.{}f}" if spec["thousands"] else "{:.{}f}"
    table = pd.DataFrame({"time": pd.Series(CLOCKS[spec["clock"]](frame.index)).astype(str).to_numpy()})
    for name in PRICES:
        table[name] = [number.format(x, spec["decimals"]) for x in frame[name]]
    table["volume"] = [f"{x:.0f}" for x in frame["volume"]]
    expected = frame.copy()
    if spec["adjusted"]:
        share = np.where(np.arange(len(frame)) < len(frame) // 2, 0.5, 1.0)
        table["adj_close"] = [number.format(x, 9) for x in frame["close"] * share]
        expected[list(PRICES)] *= share[:, None]
    if spec["comma"]:
        swap = str.maketrans(".,", ",.")
        table.loc[:, table.columns != "time"] = table.drop(columns="time").map(lambda cell: cell.translate(swap))
    hollow = rng.permutation(len(table))[: spec["missing"]]
    for i in hollow:
        table.iloc[i, 1 + i % 4] = ["", "NaN", "null"][i % 3]
    expected = expected.drop(expected.index[[*hollow, *_untellable(frame.index, spec)]])
    if spec["more"]:
        table["trades"] = rng.integers(1, 99, len(table)).astype(str)
    table = table.assign(symbol="AAA") if spec["symbols"] else table
    order = {"up": np.arange(len(table)), "down": np.arange(len(table))[::-1], "shuffled": rng.permutation(len(table))}
    rows = table.iloc[order[spec["order"]]]
    rows = pd.concat([rows, rows.iloc[rng.integers(0, len(rows), spec["copies"])]])
    if spec["conflict"] and 0 not in hollow and spec["clock"] != "local":
        rows = pd.concat([rows, table.iloc[:1].assign(volume="7")])  # the last in the file is kept
        expected.iloc[0, 4] = 7
    if spec["symbols"] == 2:
        rows = pd.concat([rows, table.assign(symbol="BBB", volume="3")])
    options = {"symbol": "AAA"} if spec["symbols"] == 2 else {}
    return expected, rows, options | ({"tz": ZONE} if spec["clock"] == "local" else {})


def _untellable(index, spec):
    """Rows of a local hour shown twice which only one row has, or any where rows are in no order."""
    if spec["clock"] != "local":
        return []
    shown = index.tz_convert(ZONE).tz_localize(None)
    first, second = (shown.tz_localize(ZONE, ambiguous=np.full(len(shown), summer)) for summer in (True, False))
    alone = ~shown.duplicated(keep=False) | (spec["order"] == "shuffled")
    return np.flatnonzero((first != second) & alone)


def text_of(rows, spec):
    """The rows as a text, with names and junk."""
    names = NAMES[spec["names"]]
    renamed = dict(zip(("time", *PRICES, "volume"), names or (), strict=False)) | {"adj_close": "Adj Close"}
    if spec["apart"] and spec["clock"] in SPLIT:
        time = rows["time"].str.partition(" ")
        rows = rows.drop(columns="time")
        rows.insert(0, "date", time[0])
        rows.insert(1, "clock", time[2])
        renamed |= {"date": "<DATE>", "clock": "<TIME>"}
    if names is None:
        rows = rows.drop(columns=[name for name in ("adj_close", "symbol") if name in rows])
    else:
        rows = rows[np.random.default_rng(spec["mix"]).permutation(rows.columns)] if spec["mix"] else rows
    if spec["container"] == "json":
        return json.dumps({"data": [{renamed.get(k, k): v for k, v in row.items()} for row in rows.to_dict("records")]})
    quote = '"' if spec["quoted"] or (spec["delimiter"] == "," and (spec["comma"] or spec["thousands"])) else ""
    join = spec["delimiter"].join
    lines = [join(f"{quote}{cell}{quote}" for cell in row) for row in rows.to_numpy()]
    header = join(renamed.get(name, name) for name in rows.columns)
    for junk, at in spec["junk"]:
        lines.insert(at % (len(lines) + 1), header if junk == "header again" and names else junk)
    lines = [header, *lines] if names else lines
    lines = ["Prices of a site, for free: www.example.org", *lines] if spec["banner"] else lines
    return spec["ends"].join(lines) + spec["ends"]


def store(path, text, spec):
    data = text.encode(spec["encoding"])
    if spec["container"] == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("prices.csv", data)
    else:
        path.write_bytes(gzip.compress(data) if spec["container"] == "gzip" else data)


def check(spec):
    """Whether the file was read; fails where its bars are wrong or its refusal has no name."""
    expected, rows, options = written(spec)
    meaningless = NAMES[spec["names"]] is None and (spec["adjusted"] or spec["symbols"])
    if meaningless or (spec["names"] == "of one instrument" and spec["symbols"] == 2):
        return None  # columns that nobody could tell, two kinds of symbols
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.csv"
        store(path, text_of(rows, spec), spec)
        try:
            bars = load_bars(path, **options)
        except ValueError as error:
            refusal = str(error)
        else:
            pd.testing.assert_frame_equal(
                bars.frame,
                expected,
                check_freq=False,
                check_names=False,
                check_exact=not spec["adjusted"],
                rtol=1e-9 if spec["adjusted"] else 0,  # the adjusted close has 9 decimals, of prices from 0.05
                atol=1e-8 if spec["adjusted"] else 0,
            )
            return True
    assert refusal.startswith(str(path))
    assert "\n" not in refusal
    assert REFUSALS.search(refusal), refusal
    return False


def test_generated_files_give_their_bars_or_a_named_refusal():
    outcomes = Counter()

    @settings(max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(files)
    def every(spec):
        outcomes[check(spec)] += 1

    every()
    assert outcomes[True] > 40  # a loader that refuses all would pass otherwise
    assert outcomes[False] > 5


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(files)
def test_many_generated_files_give_their_bars_or_a_named_refusal(spec):
    check(spec)


PLAIN = {
    **{"bars": 40, "seed": 1, "start": "2021-03-13", "freq": "h", "scale": 1.0, "apart": False, "comma": False},
    **{"thousands": False, "order": "down", "mix": 3, "gaps": 2, "copies": 2, "conflict": False, "missing": 1},
    **{"adjusted": False, "more": True, "symbols": 0, "banner": False, "junk": [], "quoted": True, "ends": "\n"},
    **{"encoding": "utf-8", "container": "text", "decimals": 5, "names": "plain", "delimiter": ",", "clock": "ISO"},
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_generated_files_without_junk_and_ambiguity_are_read_and_not_refused(clock):
    ways = zip(NAMES, itertools.cycle(",;\t|"), itertools.cycle(["text", "gzip", "zip", "json"]), strict=False)
    for names, delimiter, container in ways:
        kept = {"mix": 0, "more": False} if names is None else {}
        spec = PLAIN | {"clock": clock, "names": names, "delimiter": delimiter, "container": container} | kept
        assert check(spec) is True


@pytest.mark.parametrize(
    "changes",
    [
        {"apart": True, "clock": "compact"},
        {"comma": True, "delimiter": ";"},
        {"thousands": True, "scale": 1234.0},
        {"thousands": True, "comma": True, "scale": 1234.0},
        {"conflict": True, "bars": 60},
        {"adjusted": True},
        {"symbols": 1},
        {"symbols": 2},
        {"banner": True},
        {"junk": [("header again", 7), ("# end of file", 40), ("", 3)]},
        {"encoding": "utf-16", "ends": "\r\n"},
        {"clock": "local", "start": "2021-11-06", "gaps": 0, "missing": 0},
    ],
    ids=str,
)
def test_each_way_alone_is_read_and_not_refused(changes):
    assert check(PLAIN | changes) is True
