"""Splits in unadjusted prices are noticed, and undone when the user asks for it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jaxrl_trade.bars import Bars
from tests.bars.builders import random_frame


def unadjusted(frame, *splits):
    """The frame as it was quoted before each (bar, ratio)."""
    frame = frame.copy()
    for bar, ratio in splits:
        frame.iloc[:bar, :4] *= ratio
        frame.iloc[:bar, 4] /= ratio
    return frame


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(2, "2:1"), (4, "4:1"), (20, "20:1"), (1.5, "3:2"), (0.5, "1:2"), (0.1, "1:10"), (2 / 3, "2:3")],
)
def test_a_split_is_noticed_with_its_day_and_the_option_undoes_it(ratio, words):
    frame = random_frame(200, freq="D")
    bars = Bars.from_frame(unadjusted(frame, (120, ratio)))
    (warning,) = bars.report.warnings
    assert f"{words} on 2021-06-29" in warning  # 120 days after 2021-03-01
    assert "undo it with adjust=True (--adjust)" in warning
    np.testing.assert_array_equal(bars.frame, unadjusted(frame, (120, ratio)))
    adjusted = Bars.from_frame(unadjusted(frame, (120, ratio)), adjust=True)
    pd.testing.assert_frame_equal(
        adjusted.frame, frame, check_freq=False, check_names=False, rtol=1e-14
    )  # two roundings
    assert adjusted.report.assumed == (f"prices are adjusted for {words} on 2021-06-29",)
    assert adjusted.report.warnings == ()


def test_every_split_of_several_is_undone():
    frame = random_frame(300, freq="D")
    splits = ((50, 2), (120, 7), (200, 1.5))
    bars = Bars.from_frame(unadjusted(frame, *splits), adjust=True)
    pd.testing.assert_frame_equal(bars.frame, frame, check_freq=False, check_names=False, rtol=1e-14)
    assert "2:1 on 2021-04-20, 7:1 on 2021-06-29, 3:2 on 2021-09-17" in bars.report.assumed[0]


@pytest.mark.parametrize("ratio", [1.35, 1.75, 2.4, 1 / 1.75])
def test_a_jump_that_is_no_whole_ratio_is_a_move_of_the_price(ratio):
    frame = unadjusted(random_frame(200, freq="D"), (120, ratio))
    assert Bars.from_frame(frame).report.warnings == ()
    assert Bars.from_frame(frame, adjust=True).report.assumed == ("no split was noticed",)


def test_a_split_is_known_by_the_open_though_the_day_itself_moved_the_price():
    frame = random_frame(200, freq="D")
    frame.iloc[120:, :4] *= 1.12
    frame.iloc[120, 0] /= 1.12  # it opened where it had closed
    frame.iloc[120, 2] /= 1.12
    assert "5:1" in Bars.from_frame(unadjusted(frame, (120, 5))).report.warnings[0]


def test_a_bad_tick_that_comes_back_is_no_split():
    frame = random_frame(200, freq="D")
    frame.iloc[120, :4] /= 10
    assert Bars.from_frame(frame).report.warnings == ()


def test_prices_that_the_file_adjusts_itself_have_no_split_left():
    frame = random_frame(200, freq="D")
    quoted = unadjusted(frame, (120, 4)).assign(**{"Adj Close": frame["close"]})
    report = Bars.from_frame(quoted).report
    assert report.assumed == ("prices are adjusted by the column 'Adj Close'",)
    assert report.warnings == ()
