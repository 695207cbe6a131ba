"""Files written every way at once: the same bars come back or a refusal by name, never a wrong number."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxrl_trade.bars import load_bars
from tests.bars.builders import random_frame

CLOCKS = {
    "seconds": lambda t: t.asi8 // 10**9,
    "milliseconds": lambda t: t.asi8 // 10**6,
    "microseconds": lambda t: t.asi8 // 10**3,
    "nanoseconds": lambda t: t.asi8,
    "mixed epochs": lambda t: [ns // 10 ** (9 if i % 3 else 6) for i, ns in enumerate(t.asi8)],
    "ISO": lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "offset": lambda t: t.tz_convert("Asia/Kolkata").strftime("%Y-%m-%d %H:%M:%S+05:30"),
    "day first": lambda t: t.strftime("%d/%m/%Y %H:%M"),
    "month first": lambda t: t.strftime("%m/%d/%Y %I:%M %p"),
    "dotted day first": lambda t: t.strftime("%d.%m.%Y %H:%M:%S.000"),
    "compact": lambda t: t.strftime("%Y%m%d %H%M%S"),
    "compact digits": lambda t: t.strftime("%Y%m%d%H%M%S"),
    "named month": lambda t: t.strftime("%d-%b-%Y %H:%M"),
}
NAMES = {
    "plain": ("time", "open", "high", "low", "close", "volume"),
    "brackets": ("<DATE>", "<OPEN>", "<HIGH>", "<LOW>", "<CLOSE>", "<TICKVOL>"),
    "numbered": ("timestamp", "1. open", "2. high", "3. low", "4. close", "5. volume"),
    "short": ("t", "o", "h", "l", "c", "v"),
    "units": ("Gmt time", "Open (USD)", "High (USD)", "Low (USD)", "Close (USD)", "Volume_(BTC)"),
    None: None,
}
JUNK = ("", "# end of file", "Total,,", "1,2", "<html>", "\x00")

files = st.fixed_dictionaries(
    {
        "bars": st.integers(5, 60),
        "seed": st.integers(0, 50),
        "start": st.sampled_from(["2021-03-01", "2021-03-20", "2019-12-28 17:00", "2004-02-28"]),
        "freq": st.sampled_from(["min", "h", "D"]),
        "scale": st.sampled_from([0.05, 1.0, 1234.0]),
        "clock": st.sampled_from(sorted(CLOCKS)),
        "names": st.sampled_from(list(NAMES)),
        "delimiter": st.sampled_from([",", ";", "\t", "|"]),
        "comma": st.booleans(),
        "order": st.sampled_from(["up", "down", "shuffled"]),
        "columns": st.permutations(range(6)),
        "copies": st.integers(0, 3),
        "conflict": st.booleans(),
        "missing": st.integers(0, 3),
        "junk": st.lists(st.tuples(st.sampled_from(JUNK), st.integers(0, 60)), max_size=3),
        "quoted": st.booleans(),
        "encoding": st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
        "decimals": st.sampled_from([3, 5]),
    }
)


def written(spec):
    """The bars, and the text of a file that holds them as `spec` says."""
    rng = np.random.default_rng(spec["seed"])
    frame = random_frame(spec["bars"], spec["seed"], spec["start"], spec["freq"])
    frame.iloc[:, :4] = np.round(frame.iloc[:, :4] * spec["scale"], spec["decimals"])
    expected = frame.copy()
    time = pd.Series(CLOCKS[spec["clock"]](frame.index)).astype(str)
    prices = [frame[name].map(lambda x: f"{x:.{spec['decimals']}f}") for name in ("open", "high", "low", "close")]
    fields = (
        np.column_stack([time, *prices, frame["volume"].map(lambda x: f"{x:.0f}")])
        if len(frame)
        else np.empty((0, 6), str)
    )
    rows = [list(row) for row in fields]
    if spec["comma"]:
        rows = [[row[0], *(cell.replace(".", ",") for cell in row[1:])] for row in rows]
    hollow = rng.permutation(len(rows))[: spec["missing"]]
    for i in hollow:
        rows[i][1 + i % 4] = ["", "NaN", "null"][i % 3]
    expected = expected.drop(expected.index[hollow])
    if spec["conflict"]:
        rows.append([*rows[0][:5], "7"])
        if 0 not in hollow:
            expected.iloc[0, 4] = 7 if spec["order"] != "down" else expected.iloc[0, 4]
    order = {"up": range(len(rows)), "down": range(len(rows))[::-1], "shuffled": rng.permutation(len(rows))}[
        spec["order"]
    ]
    rows = [rows[i] for i in order]
    if spec["conflict"] and spec["order"] == "shuffled" and 0 not in hollow:
        kept = [row for row in rows if row[0] == time.iloc[0]][-1]  # the last of the two in the file
        expected.iloc[0, 4] = float(kept[5])
    rows += [rows[i] for i in rng.integers(0, len(rows), spec["copies"])] if not spec["conflict"] else []
    columns = list(range(6)) if NAMES[spec["names"]] is None else spec["columns"]
    quote = '"' if spec["quoted"] or (spec["comma"] and spec["delimiter"] == ",") else ""
    lines = [spec["delimiter"].join(f"{quote}{row[i]}{quote}" for i in columns) for row in rows]
    for text, at in spec["junk"]:
        lines.insert(at % (len(lines) + 1), text)
    if NAMES[spec["names"]] is not None:
        lines.insert(0, spec["delimiter"].join(NAMES[spec["names"]][i] for i in columns))
    return expected, "\n".join(lines) + "\n"


def check(spec):
    expected, text = written(spec)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.csv"
        path.write_text(text, encoding=spec["encoding"])
        try:
            bars = load_bars(path)
        except ValueError as error:
            refusal = str(error)
        else:
            pd.testing.assert_frame_equal(bars.frame, expected, check_freq=False, check_names=False, check_exact=True)
            return True
    assert refusal.startswith(str(path))
    assert "\n" not in refusal
    return False


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(files)
def test_generated_files_give_their_bars_or_a_named_refusal(spec):
    check(spec)


@pytest.mark.slow
@settings(max_examples=4000, deadline=None, suppress_health_check=list(HealthCheck))
@given(files)
def test_many_generated_files_give_their_bars_or_a_named_refusal(spec):
    check(spec)


def test_generated_files_without_junk_and_ambiguity_are_read_and_not_refused():
    plain = {"seed": 1, "start": "2021-03-20", "scale": 1.0, "copies": 2, "conflict": False, "missing": 1, "junk": []}
    plain |= {
        "comma": False,
        "columns": [0, 4, 2, 3, 1, 5],
        "order": "down",
        "encoding": "utf-8",
        "decimals": 5,
        "quoted": True,
    }
    ways = itertools.zip_longest(CLOCKS, itertools.cycle(NAMES), itertools.cycle(",;\t|"))
    for clock, names, delimiter in itertools.islice(ways, len(CLOCKS)):
        assert check(plain | {"bars": 30, "freq": "h", "clock": clock, "names": names, "delimiter": delimiter})
