"""Cleaning drops, keeps and reports as its rules say, and never makes a bar up."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pandas as pd
import pytest

from jaxrl_trade.bars import Bars, load_bars
from tests.bars.builders import random_frame, write

UTC = datetime.UTC


@pytest.fixture
def frame():
    return random_frame(400, seed=9)


def cleaned(frame, **changes):
    """Bars of the frame after setting single cells: close_7=nan sets the close of row 7."""
    frame = frame.copy()
    for cell, value in changes.items():
        name, row = cell.split("_")
        frame.iloc[int(row), frame.columns.get_loc(name)] = value
    return Bars.from_frame(frame)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"open_7": np.nan}, "without a price"),
        ({"close_7": np.inf}, "without a price"),
        ({"low_7": 0.0}, "zero or negative price"),
        ({"close_7": -1.0}, "zero or negative price"),
        ({"high_7": 0.5, "low_7": 0.6}, "high below low"),
        ({"close_7": 2.0}, "open or close outside low to high"),
        ({"open_7": 0.5}, "open or close outside low to high"),
    ],
)
def test_a_bar_that_cannot_be_is_dropped_for_its_reason_and_leaves_a_gap(changes, reason, frame):
    bars = cleaned(frame, **changes)
    pd.testing.assert_frame_equal(bars.frame, frame.drop(frame.index[7]), check_freq=False, check_names=False)
    assert bars.report.dropped == {reason: 1}
    assert (bars.report.rows_read, bars.report.rows_kept) == (400, 399)
    assert bars.report.gaps == 1
    gap = bars.report.largest_gaps[0]
    assert (gap.start, gap.end, gap.missing) == (frame.index[6], frame.index[8], 1)


def test_an_open_or_close_a_little_outside_widens_the_bar_and_is_reported(frame):
    close = frame["high"].iloc[7] * 1.0005
    bars = cleaned(frame, close_7=close)
    assert bars.frame["high"].iloc[7] == close
    assert bars.report.dropped == {}
    assert bars.report.repaired == {"widened to hold open and close": 1}


def test_every_kept_bar_holds_its_open_and_close(frame):
    rng = np.random.default_rng(0)
    noisy = frame.copy()
    noisy.iloc[:, :4] *= np.exp(rng.normal(0, 1e-3, (400, 4)))
    bars = Bars.from_frame(noisy)
    assert 100 < len(bars) < 400
    open, high, low, close, _ = bars.frame.to_numpy().T
    assert (low > 0).all()
    assert (low <= np.minimum(open, close)).all()
    assert (high >= np.maximum(open, close)).all()


def test_copies_of_a_bar_are_kept_once_and_bars_that_differ_are_reported(frame):
    copies = pd.concat([frame, frame.iloc[10:15]])
    changed = frame.iloc[[20]] * [1, 1, 1, 1, 2]
    bars = Bars.from_frame(pd.concat([copies, changed]))
    expected = frame.copy()
    expected.iloc[20] = changed.iloc[0]  # the last in the file
    pd.testing.assert_frame_equal(bars.frame, expected, check_freq=False, check_names=False)
    assert bars.report.dropped == {"identical duplicate": 5, "another bar of the same time": 1}
    assert bars.report.warnings == (
        "1 times have bars that differ, first at 2021-03-01 20:00:00; the last one in the file was kept",
    )


def test_two_series_in_one_file_are_refused(frame):
    with pytest.raises(ValueError, match="400 of 400 times have two different bars"):
        Bars.from_frame(pd.concat([frame, frame * 2]))


def test_missing_and_negative_volume_becomes_0_and_is_counted(frame):
    bars = cleaned(frame, volume_3=np.nan, volume_4=-1.0)
    assert bars.frame["volume"].iloc[[3, 4]].tolist() == [0, 0]
    assert bars.report.repaired == {"missing or negative volume set to 0": 2}
    assert bars.report.warnings == ()


@pytest.mark.parametrize("volume", [None, 0.0, -1.0, np.nan])
def test_no_volume_at_all_is_0_with_one_warning(volume, frame):
    bars = Bars.from_frame(frame.drop(columns="volume") if volume is None else frame.assign(volume=volume))
    assert (bars.frame["volume"] == 0).all()
    assert bars.report.warnings == ("no volume: the volume features are neutral",)


def test_the_report_counts_gaps_bar_size_and_bars_per_year():
    frame = random_frame(1000, freq="D").drop(pd.date_range("2021-06-01", periods=40, tz="UTC"))
    frame = frame.drop(pd.date_range("2022-06-01", periods=7, tz="UTC"))
    report = Bars.from_frame(frame).report
    assert report.bar_size == datetime.timedelta(days=1)
    assert report.gaps == 2
    assert [gap.missing for gap in report.largest_gaps] == [40, 7]
    assert report.first == datetime.datetime(2021, 3, 1, tzinfo=UTC)
    assert report.last == datetime.datetime(2021, 3, 1, tzinfo=UTC) + datetime.timedelta(days=999)
    assert report.bars_per_year == pytest.approx(952 / 999 * 365.25)  # 953 bars, 952 steps, 999 days


def test_steps_of_many_sizes_are_warned_of():
    frame = random_frame(400)
    frame.index = frame.index[0] + pd.to_timedelta(np.random.default_rng(1).permutation(5000)[:400], unit="min")
    assert any("of the bars are" in warning for warning in Bars.from_frame(frame).report.warnings)
    mixed = random_frame(400)
    mixed.index = mixed.index[:300].append(pd.date_range(mixed.index[299], periods=101, freq="min")[1:].as_unit("ns"))
    assert any("two bar sizes" in warning for warning in Bars.from_frame(mixed).report.warnings)


def test_rows_of_another_width_and_repeated_headers_are_dropped_and_counted(tmp_path):
    path = write(
        tmp_path,
        lambda i, o, h, lo, c, v: f"2021-03-{i + 1:02d},{o},{h},{lo},{c},{v}",
        "date,open,high,low,close,volume",
    )
    clean = load_bars(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:11], lines[0], *lines[11:], "", "Source: somewhere", "2021-04-01,1.2,1.3"]))
    bars = load_bars(path)
    assert bars.sha256 == clean.sha256
    assert bars.report.dropped == {"a repeated header": 1, "with another number of fields": 2}
    assert bars.report.rows_read == 33


def test_rows_without_a_time_are_dropped(tmp_path):
    path = write(
        tmp_path, lambda i, *r: ",".join(["" if i == 3 else f"2021-03-{i + 1:02d}", *map(str, r)]), "date,o,h,l,c,v"
    )
    bars = load_bars(path)
    assert len(bars) == 29
    assert bars.report.dropped == {"without a time": 1}


def test_the_report_is_readable_and_goes_into_json(frame):
    bars = cleaned(frame, close_7=np.nan)
    text = str(bars.report)
    for part in (
        "400 read, 399 kept",
        "1 without a price",
        "2021-03-01 00:00:00 to",
        "1 hour",
        "bars per year",
        "1 bars missing",
    ):
        assert part in text
    stored = json.loads(json.dumps(bars.report.as_dict()))
    assert stored["dropped"] == {"without a price": 1}
    assert stored["bar_size_seconds"] == 3600
    assert stored["first"] == "2021-03-01T00:00:00+00:00"
    assert stored["columns"]["close"] == "close"


def test_the_report_of_truncated_bars_is_that_of_the_file(frame):
    bars = Bars.from_frame(frame)
    assert len(bars.head(10)) == 10
    assert bars.head(10).report is bars.report
    assert bars.head(10).sha256 != bars.sha256


@pytest.mark.parametrize(
    ("freq", "words"),
    [
        ("D", "1 day"),
        ("h", "1 hour"),
        ("4h", "4 hours"),
        ("90min", "90 minutes"),
        ("min", "1 minute"),
        ("30s", "30 seconds"),
    ],
)
def test_the_bar_size_is_said_in_the_largest_unit_that_divides_it(freq, words):
    assert f"bar size       {words}" in Bars.from_frame(random_frame(20, freq=freq)).report.lines()
