"""Local times, daylight saving and the limits of what is a time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jaxrl_trade.bars import Bars, load_bars
from tests.bars.builders import random_frame

BERLIN = "Europe/Berlin"


def local_csv(path, frame, zone=BERLIN):
    """The frame as a file under the clock of a zone, without offsets."""
    shown = frame.copy()
    shown.index = shown.index.tz_convert(zone).tz_localize(None)
    shown.to_csv(path, index_label="time")
    return path


@pytest.mark.parametrize("freq", ["h", "15min"])
@pytest.mark.parametrize("start", ["2021-03-27", "2021-10-30"], ids=["spring", "autumn"])
@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_local_times_over_a_change_of_clocks_come_back_exactly(freq, start, descending, tmp_path):
    frame = random_frame(250, start=start, freq=freq)
    path = local_csv(tmp_path / "p.csv", frame[::-1] if descending else frame)
    bars = load_bars(path, tz=BERLIN)
    pd.testing.assert_frame_equal(bars.frame, frame, check_freq=False, check_names=False)
    assert bars.report.dropped == {}


def test_one_bar_of_an_hour_shown_twice_is_dropped_and_reported(tmp_path):
    frame = random_frame(100, start="2021-10-30")
    twice = frame.index.get_loc(pd.Timestamp("2021-10-31 01:00", tz="UTC"))
    path = local_csv(tmp_path / "p.csv", frame.drop(frame.index[twice]))
    bars = load_bars(path, tz=BERLIN)
    assert len(bars) == 98
    assert bars.report.dropped == {"of a local time that daylight saving repeats": 1}


def test_copies_of_a_bar_are_not_taken_for_the_hour_shown_twice(tmp_path):
    frame = random_frame(100, start="2021-10-30")
    path = local_csv(tmp_path / "p.csv", pd.concat([frame, frame.iloc[20:40]]))
    bars = load_bars(path, tz=BERLIN)
    np.testing.assert_array_equal(bars.index, frame.index)


def test_an_hour_shown_twice_is_dropped_where_the_rows_are_in_no_order(tmp_path):
    frame = random_frame(100, start="2021-10-30")
    path = local_csv(tmp_path / "p.csv", frame.sample(frac=1, random_state=1))
    bars = load_bars(path, tz=BERLIN)
    twice = pd.DatetimeIndex(["2021-10-31 00:00", "2021-10-31 01:00"], tz="UTC")  # 02:00 in Berlin, both of them
    np.testing.assert_array_equal(bars.index, frame.index.drop(twice))
    assert bars.report.dropped == {"of a local time that daylight saving repeats": 2}


def test_times_that_no_clock_showed_are_dropped_and_reported(tmp_path):
    frame = random_frame(50, start="2021-03-27")
    frame.index = frame.index.tz_localize(
        None
    )  # UTC's hours, said to be Berlin's: 02:00 on 28 March does not exist there
    frame.to_csv(tmp_path / "p.csv", index_label="time")
    bars = load_bars(tmp_path / "p.csv", tz=BERLIN)
    assert len(bars) == 49
    assert bars.report.dropped == {"of a local time that daylight saving skips": 1}


def test_times_without_a_zone_are_assumed_to_be_utc_and_dates_need_no_assumption():
    hourly = Bars.from_frame(random_frame(50).tz_localize(None))
    assert hourly.index[0] == pd.Timestamp("2021-03-01", tz="UTC")
    assert "taken as UTC; if they are not, say so with tz= (--tz)" in hourly.report.assumed[0]
    assert Bars.from_frame(random_frame(50, freq="D").tz_localize(None)).report.assumed == ()


def test_a_zone_for_times_that_say_their_own_is_not_used_and_the_report_says_so():
    bars = Bars.from_frame(random_frame(50), tz=BERLIN)
    assert bars.index[0] == pd.Timestamp("2021-03-01", tz="UTC")
    assert bars.report.assumed == ("the times say their own offset, so Europe/Berlin was not used",)


@pytest.mark.parametrize(
    ("name", "hour", "zone"),
    [
        ("Time (EET)", 10, "EET"),
        ("Gmt time", 12, "UTC"),
        ("timestamp_utc", 12, "UTC"),
        ("Time (Europe/Berlin)", 11, "Europe/Berlin"),
    ],
)
def test_the_name_of_the_column_may_say_the_zone(name, hour, zone, tmp_path):
    (tmp_path / "p.csv").write_text(f"{name},close\n2021-01-04 12:00,1.5\n2021-01-04 13:00,1.6\n")
    bars = load_bars(tmp_path / "p.csv")
    assert bars.times[0] == np.datetime64(f"2021-01-04T{hour}:00", "ns")
    assert bars.report.assumed[-1] == f"times are of {zone}, as the file says"
    assert load_bars(tmp_path / "p.csv", tz="-05:00").times[0] == np.datetime64("2021-01-04T17:00", "ns")  # the user's


@pytest.mark.parametrize(
    ("name", "clock", "expected"),
    [("Hour", "9", "09:00"), ("Hour", "09:30", "09:30"), ("Time", "930", "09:30"), ("Time", "93015", "09:30:15")],
)
def test_a_number_of_a_clock_is_hours_where_it_is_called_so(name, clock, expected, tmp_path):
    (tmp_path / "p.csv").write_text(f"Date,{name},Close\n2021-01-04,{clock},1.5\n2021-01-05,{clock},1.6\n")
    assert load_bars(tmp_path / "p.csv").times[0] == np.datetime64(f"2021-01-04T{expected}", "ns")


def test_rows_of_several_zones_are_refused(tmp_path):
    (tmp_path / "p.csv").write_text("time,close\n20210104 12:00:00 Asia/Tokyo,1\n20210105 12:00:00 US/Eastern,1\n")
    with pytest.raises(
        ValueError, match="line 2: column 'time' has '20210104 12:00:00 Asia/Tokyo', which is not a time"
    ):
        load_bars(tmp_path / "p.csv")


@pytest.mark.parametrize("tz", ["Europe/Nowhere", "EST5", "+25:00", "../etc"])
def test_a_zone_that_is_none_is_named(tz):
    with pytest.raises(ValueError, match="is no time zone; write one such as"):
        Bars.from_frame(random_frame(50).tz_localize(None), tz=tz)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2021-03-04 05:06:07.089", "2021-03-04T05:06:07.089"),
        ("2021/3/4 5:06", "2021-03-04T05:06"),
        ("2021-03-04T05:06:07,123456789Z", "2021-03-04T05:06:07.123456789"),
        ("2021-03-04T05:06:07-0330", "2021-03-04T08:36:07"),
        ("14.03.2021 22:00:00.000 GMT+0200", "2021-03-14T20:00"),
        ("2021-03-04 12:00 AM", "2021-03-04T00:00"),
        ("2021-03-04 12:30 pm", "2021-03-04T12:30"),
        ("2021-03-04 09-AM", "2021-03-04T09:00"),
        ("14.03.2021 08:00 Uhr", "2021-03-14T08:00"),
        ("14.03.2021, 8 Uhr", "2021-03-14T08:00"),
        ("20210304", "2021-03-04"),
        ("202103041530", "2021-03-04T15:30"),
        ("20210304153045", "2021-03-04T15:30:45"),
        ("20210304 153045", "2021-03-04T15:30:45"),
        ("20210304-15:30:45", "2021-03-04T15:30:45"),
        ("20210304 15:30:45 Asia/Tokyo", "2021-03-04T06:30:45"),
        ("4 March 2021", "2021-03-04"),
        ("Mar 4, 2021", "2021-03-04"),
        ("2020-02-29", "2020-02-29"),
        ("1614834367", "2021-03-04T05:06:07"),
        ("1614834367.5", "2021-03-04T05:06:07.5"),
        ("1614834367089", "2021-03-04T05:06:07.089"),
        ("1614834367089123", "2021-03-04T05:06:07.089123"),
        ("1614834367089123456", "2021-03-04T05:06:07.089123456"),
    ],
)
def test_a_time_means_what_it_says(text, expected, tmp_path):
    (tmp_path / "p.csv").write_text(f'time;close\n"{text}";1.5\n2030-01-01;1.6\n')
    assert load_bars(tmp_path / "p.csv").times[0] == np.datetime64(expected, "ns")


@pytest.mark.parametrize("descending", [False, True])
def test_dotted_years_of_two_digits_come_last_where_the_order_of_the_rows_shows_it(descending, tmp_path):
    days = np.arange("1999-12-20", "2000-02-20", dtype="M8[D]")
    rows = [f"{day.item():%d.%m.%y},{i + 1}" for i, day in enumerate(days)]
    (tmp_path / "p.csv").write_text("\n".join(["Datum,Schluss", *(rows[::-1] if descending else rows)]))
    bars = load_bars(tmp_path / "p.csv")
    np.testing.assert_array_equal(bars.times, days.astype("M8[ns]"))
    assert "years of two digits are those of 1970 to 2069" in bars.report.assumed


@pytest.mark.parametrize(
    "days",
    [
        [f"21.03.{day:02d}" for day in range(1, 32)],  # of March 2021, as in Korea
        ["21.01.31", "21.02.28", "21.03.31", "21.04.30"],
        ["31.12.21", "31.12.22", "31.12.23"],
    ],
)
def test_a_year_of_two_digits_that_may_come_first_is_refused_and_settled_by_the_flag(days, tmp_path):
    (tmp_path / "p.csv").write_text("\n".join(["date,close", *(f"{day},{i + 1}" for i, day in enumerate(days))]))
    with pytest.raises(ValueError, match=r"line 2: column 'date' has .* may have the year first or last.*--day-first"):
        load_bars(tmp_path / "p.csv")
    day, month, year = days[0].split(".")
    assert load_bars(tmp_path / "p.csv", day_first=True).frame["close"].loc[f"20{year}-{month}-{day}"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "2021-02-30",
        "2021-13-01",
        "31.04.2021",
        "2021-03-04 24:00",
        "2021-03-04 13:00 PM",
        "2021-03-04 0:30 AM",
        "03/04/21",
    ]
    + [
        "20211301",
        "4 Foo 2021",
        "1.6E+12",
        "44000",
        "0",
        "9999-01-01",
        "today",
        "2021-03-04 05:06 EST",
        "99999999999999999999",
    ],
)
def test_what_is_no_time_is_refused_with_its_row_and_value(text, tmp_path):
    (tmp_path / "p.csv").write_text(f"time,close\n2021-01-01,1.5\n{text},1.6\n2022-01-01,1.5\n")
    with pytest.raises(ValueError, match="line 3: column 'time' has ") as caught:
        load_bars(tmp_path / "p.csv")
    assert repr(text) in str(caught.value)
