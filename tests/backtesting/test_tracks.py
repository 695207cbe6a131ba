import datetime

import numpy as np
import pandas as pd
import pytest

from jaxrl_trade.backtesting import track_of_bars, tracks_of_market
from jaxrl_trade.bars import WARMUP, features
from jaxrl_trade.market import Market, split
from tests.backtesting.tracks import bars_of, random_walk


@pytest.fixture(scope="module")
def bars():
    return bars_of(random_walk(0, 500))  # hourly from 2024-01-01 00:00; bar 480 is 2024-01-21 00:00


def test_the_first_bar_traded_already_has_the_features_of_the_whole_file(bars):
    track, first = track_of_bars(bars, 400, 450)
    table = features(bars)
    assert first == 400
    np.testing.assert_array_equal(track.features, table.values[400 - WARMUP : 450 - WARMUP].astype(np.float32))
    np.testing.assert_array_equal(track.close, bars.frame["close"].to_numpy()[400:450])


def test_without_a_range_the_track_runs_from_the_first_features_to_the_last_bar(bars):
    track, first = track_of_bars(bars)
    assert (first, len(track.close)) == (WARMUP, 500 - WARMUP)


@pytest.mark.parametrize(
    "start", ["2024-01-21", datetime.date(2024, 1, 21), pd.Timestamp("2024-01-21 01:00", tz="Europe/Berlin"), 480]
)
def test_a_start_is_a_date_a_timestamp_or_a_position(bars, start):
    assert track_of_bars(bars, start)[1] == 480


def test_a_start_between_bars_is_the_next_bar_and_the_end_is_not_included(bars):
    track, first = track_of_bars(bars, "2024-01-20 23:30", "2024-01-21 03:00")
    assert (first, len(track.close)) == (480, 3)


def test_an_end_after_the_data_is_the_end_of_the_data(bars):
    assert len(track_of_bars(bars, 480, "2030-01-01")[0].close) == 20


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ("2023-12-01", None, "start = 2023-12-01 is outside the data, which runs from 2024-01-01"),
        ("2025-01-01", None, "start = 2025-01-01 is outside the data"),
        (500, None, "start = 500 is no bar of the data; its bars are numbered 0 to 499"),
        (-1, None, "start = -1 is no bar"),
        (480, 501, "end = 501 is no bar"),
        (100, None, "start = 100 is bar 100, but features need the 320 bars before"),
        (480, 480, "hold 0 bars"),
        (480, 470, "hold 0 bars"),
        (499, None, "hold 1 bars; a backtest needs at least 2"),
        ("yesterday-ish", None, "start = 'yesterday-ish' is neither a date nor a bar number"),
        (True, None, "start = True is neither a date"),
    ],
)
def test_a_range_outside_the_data_or_without_bars_is_refused(bars, start, end, message):
    with pytest.raises(ValueError, match=message):
        track_of_bars(bars, start, end)


def test_a_markets_tracks_are_its_instruments_over_the_bars_of_the_split():
    n = 40
    close = np.concatenate([np.arange(1.0, n + 1), np.arange(101.0, n + 101)])
    market = Market.from_arrays(close[:, None], close, instrument=["A"] * n + ["B"] * n)
    tracks = tracks_of_market(split(market, (0.5, 0.5), embargo=5)[1])
    assert [t.close.tolist() for t in tracks] == [list(range(26, 41)), list(range(126, 141))]
    np.testing.assert_array_equal(tracks[1].features[:, 0], tracks[1].close)


def test_an_instrument_without_bars_in_the_split_has_no_track():
    close = np.arange(1.0, 61.0)
    market = Market.from_arrays(
        close[:, None], close, instrument=["A"] * 40 + ["B"] * 20, time=[*range(40), *range(20)]
    )
    second = split(market, (0.5, 0.5), embargo=5)[1]
    assert [t.close.tolist() for t in tracks_of_market(second)] == [list(range(26, 41))]
    ended = split(market, (0.5, 0.475, 0.025), embargo=0)[2]
    with pytest.raises(ValueError, match="no instrument has 2 bars in this split of A, B"):
        tracks_of_market(ended)


@pytest.mark.parametrize("wrong", ["bars.csv", None, np.zeros(9)])
def test_a_track_is_of_bars_only(wrong):
    with pytest.raises(ValueError, match=r"bars is a \w+; give Bars, as load_bars"):
        track_of_bars(wrong)
