"""The look-ahead check finds nothing in the 51 features and finds every way of peeking that it is shown."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_trade.bars import Bars, check_lookahead, sample_bars
from tests.bars.builders import random_frame


@pytest.fixture(scope="module")
def short():
    return Bars.from_frame(random_frame(380, seed=2))


def test_no_feature_changes_on_any_truncated_history(short):
    report = check_lookahead(short)
    assert report.histories == 380 - 320 - 1  # every row of features but the last, which is the whole history
    assert report.differences == {}
    assert report.ok
    assert str(report) == "no look-ahead: 59 truncated histories give exactly the same features"


def test_no_feature_changes_on_the_sample_cut_at_a_few_places():
    assert check_lookahead(sample_bars(), rows=8).ok


PEEKING = {
    "centred mean": lambda bars: bars.frame["close"].rolling(5, center=True, min_periods=1).mean(),
    "z-score over the whole series": lambda bars: (
        (bars.frame["close"] - bars.frame["close"].mean()) / bars.frame["close"].std()
    ),
    "the next close": lambda bars: bars.frame["close"].shift(-1),
    "gaps filled from behind": lambda bars: bars.frame["close"].where(bars.frame["close"].diff() > 0).bfill(),
    "scaled by the largest": lambda bars: bars.frame["close"] / bars.frame["close"].max(),
    "peeks on Mondays only": lambda bars: bars.frame["close"].shift(-1).where(bars.index.day_of_week == 0, 0.0),
}


@pytest.mark.parametrize("how", PEEKING)
def test_a_feature_that_peeks_ahead_is_found_and_named(how, short):
    def features(bars):
        close = bars.frame["close"]
        return np.column_stack([close.rolling(10).mean(), PEEKING[how](bars)])

    report = check_lookahead(short.head(100), features=features)
    assert not report.ok
    assert set(report.differences) == {"feature 1"}  # the rolling mean beside it is innocent
    assert "look-ahead in feature 1" in str(report)


def test_the_first_bar_named_is_the_earliest_that_changed(short):
    def features(bars):
        values = np.zeros(len(bars))
        values[40:-1] = 1.0  # a bar from 40 on turns into 1 when another bar follows it
        return values

    report = check_lookahead(short.head(100), features=features)
    assert report.first_bar == {"feature 0": 40}
    assert report.differences == {"feature 0": 1.0}


def test_rows_bounds_the_number_of_histories_and_frames_name_their_columns(short):
    calls = []

    def features(bars):
        calls.append(len(bars))
        return bars.frame[["close"]] / bars.frame["close"].iloc[-1]

    report = check_lookahead(short, rows=5, features=features)
    assert report.histories == 5
    assert calls == [
        380,
        1,
        95,
        190,
        284,
        379,
    ]  # the whole, then ends evenly spaced from the first bar to the last but one
    assert set(report.differences) == {"close"}


def test_histories_end_no_earlier_than_asked(short):
    calls = []

    def features(bars):
        calls.append(len(bars))
        return bars.frame[["close"]]

    assert check_lookahead(short, rows=3, features=features, since=300).ok
    assert calls == [380, 301, 340, 379]


def test_nothing_to_truncate_is_an_error(short):
    with pytest.raises(ValueError, match="has 321 bars, too few to take one away"):
        check_lookahead(short.head(321))
    with pytest.raises(ValueError, match="rows = 0"):
        check_lookahead(short, rows=0)
