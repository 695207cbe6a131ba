"""The 51 features against their formulas, TA-Lib, their ranges and awkward prices."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import talib

from jaxrl_trade.bars import FEATURE_NAMES, FEATURE_RANGES, FEATURE_VERSION, WARMUP, Bars, features, sample_bars
from jaxrl_trade.bars.features import _columns
from jaxrl_trade.bars.indicators import Prices
from tests.bars import reference
from tests.bars.builders import random_frame

# name, range: the table of FEATURES, written out
TABLE = """
ret_1 -5 5, ret_2 -5 5, ret_4 -5 5, ret_8 -5 5, ret_16 -5 5, ret_32 -5 5, ret_64 -5 5, ret_128 -5 5, gap -5 5, range -1 4,
body -1 1, clv -1 1, wick -1 1, ema_dist_8 -5 5, ema_dist_21 -5 5, ema_dist_55 -5 5, ema_dist_144 -5 5, macd -5 5,
macd_hist -5 5, adx_14 -1 1, di_diff_14 -2 2, aroon_25 -1 1, slope_32 -5 5, rsi_7 -1 1, rsi_14 -1 1, rsi_28 -1 1,
stoch_k -1 1, cci_20 -3 3, mfi_14 -1 1, ultosc -1 1, natr_z -5 5, rvol_16_z -5 5, rvol_64_z -5 5, vol_ratio_16_128 -3 3,
parkinson_32_z -5 5, gk_cc_ratio_32 -3 3, bb_pctb_20 -3 3, bb_width_z -5 5, donchian_20 -1 1, donchian_55 -1 1,
donchian_252 -1 1, drawdown_252 -5 0, volume_z_64 -5 5, volume_ratio_8_64 -3 3, cmf_20 -1 1, vwap_dist_32 -5 5,
obv_flow_32 -1 1, tod_sin -1 1, tod_cos -1 1, dow_sin -1 1, dow_cos -1 1
"""
CLOCK = ("tod_sin", "tod_cos", "dow_sin", "dow_cos")


@pytest.fixture(scope="module")
def sample():
    return sample_bars()


def by_name(table):
    return dict(zip(table.names, table.values.T, strict=True))


def with_prices(frame, prices):
    """The frame with its four prices replaced."""
    return Bars.from_frame(frame.assign(**dict.fromkeys(("open", "high", "low", "close"), prices)))


def test_the_list_of_features_and_their_ranges_is_the_table():
    rows = [entry.split() for entry in TABLE.replace("\n", " ").split(",")]
    assert len(rows) == 51
    assert [(name, float(low), float(high)) for name, low, high in rows] == [
        (name, *limits) for name, limits in FEATURE_RANGES.items()
    ]
    assert tuple(FEATURE_RANGES) == FEATURE_NAMES
    assert FEATURE_VERSION == 1


@pytest.mark.parametrize("name", FEATURE_NAMES)
def test_every_feature_equals_its_formula_worked_out_bar_by_bar(name, worked_out):
    table, expected = worked_out
    # both sides are float64 sums of at most 256 terms; Wilder's directional averages start from a sum in TA-Lib, a difference
    # that (13/14)^300 has made smaller than this by the first row
    np.testing.assert_allclose(by_name(table)[name], expected[name][WARMUP:], rtol=1e-8, atol=1e-8)


@pytest.fixture(scope="module")
def worked_out():
    frame = random_frame(440, seed=5, freq="30min")
    frame.iloc[200:260, 4] = 0  # hours without volume
    minute = np.arange(440) * 30 % 1440
    weekday = np.arange(440) // 48 % 7  # 2021-03-01 is a Monday
    expected = reference.market_features(*frame.to_numpy().T, minute, weekday)
    return features(Bars.from_frame(frame)), expected


def test_the_slowest_feature_is_complete_at_row_319_and_the_first_320_rows_are_dropped(sample):
    raw = {name: sample.frame[name].to_numpy() for name in sample.frame.columns}
    prices = Prices.of(**raw)
    missing = {name: np.isnan(column) for name, column in _columns(prices, prices, sample.times, None).items()}
    first = {name: int(np.argmin(column)) for name, column in missing.items()}
    assert max(first.values()) == 319
    assert first["rvol_64_z"] == 64 + 255
    assert not any(column[first[name] :].any() for name, column in missing.items())
    table = features(sample)
    assert table.values.shape == (6225 - 320, 51)
    pd.testing.assert_index_equal(table.index, sample.frame.index[320:])


def test_every_value_is_finite_and_in_its_range_and_a_good_part_of_the_range_is_used(sample):
    for name, column in by_name(features(sample)).items():
        low, high = FEATURE_RANGES[name]
        assert np.isfinite(column).all(), name
        assert column.min() >= low, name
        assert column.max() <= high, name
        assert np.ptp(column) > 0.2 * (high - low), name


def test_features_written_out_equal_those_of_talib_on_real_prices(sample):
    _o, h, lo, c, v = (x.to_numpy() for _, x in sample.frame.items())
    upper, middle, _lower = talib.BBANDS(c, timeperiod=20)
    expected = {
        "stoch_k": talib.STOCH(h, lo, c, fastk_period=14, slowk_period=3)[0] / 50 - 1,
        "ultosc": talib.ULTOSC(h, lo, c) / 50 - 1,
        "mfi_14": talib.MFI(h, lo, c, v) / 50 - 1,
        "bb_pctb_20": (c - middle) / (upper - middle),
        "adx_14": talib.ADX(h, lo, c) / 50 - 1,
        "rsi_14": talib.RSI(c) / 50 - 1,
        "cci_20": talib.CCI(h, lo, c, timeperiod=20) / 200,
        "aroon_25": talib.AROONOSC(h, lo, timeperiod=25) / 100,
        "donchian_55": (2 * c - talib.MAX(h, 55) - talib.MIN(lo, 55)) / (talib.MAX(h, 55) - talib.MIN(lo, 55)),
    }
    typical = np.round((h + lo + c) * 1e5)
    near_tie = pd.Series(np.append(False, typical[1:] == typical[:-1])).rolling(14).sum().to_numpy() > 0
    actual = by_name(features(sample))
    for name, column in expected.items():
        differs = np.abs(actual[name] - column[WARMUP:]) > 1e-6  # TA-Lib's running sums lose up to 7 of 16 digits here
        # whether typical prices that are equal in ticks are equal in float64 is up to rounding: some rows of the money flow
        assert not (differs & ~near_tie[WARMUP:] if name == "mfi_14" else differs).any(), name


@pytest.mark.parametrize("factor", [2.0**17, 2.0**-20])
def test_the_unit_of_the_price_changes_nothing(factor, sample):
    prices = sample.frame.assign(**{name: sample.frame[name] * factor for name in ("open", "high", "low", "close")})
    np.testing.assert_array_equal(features(Bars.from_frame(prices)).values, features(sample).values)


@pytest.mark.parametrize("factor", [1e5, 1e-6])
def test_prices_rescaled_with_rounding_give_the_same_features_save_where_equal_prices_round_apart(factor, sample):
    prices = sample.frame.assign(**{name: sample.frame[name] * factor for name in ("open", "high", "low", "close")})
    rescaled = by_name(features(Bars.from_frame(prices)))
    by_ties = {
        "mfi_14",
        "adx_14",
        "di_diff_14",
    }  # they compare sums or differences that are equal in ticks, not in float64
    for name, column in by_name(features(sample)).items():
        differs = np.abs(rescaled[name] - column) > 1e-6
        assert np.isfinite(rescaled[name]).all()
        assert differs.mean() < (0.1 if name in by_ties else 1e-9), name


def test_constant_prices_give_0_where_a_range_is_divided_by_and_stay_finite(sample):
    table = by_name(features(with_prices(sample.frame, 1.2345)))
    resting = {"range": -1.0, "adx_14": -1.0}  # no range and no trend are the bottom of these two
    for name, column in table.items():
        assert np.isfinite(column).all(), name
        if name not in (*CLOCK, "volume_z_64", "volume_ratio_8_64"):
            np.testing.assert_array_equal(column, resting.get(name, 0.0), err_msg=name)


@pytest.mark.parametrize("close", [0.1, 0.7, 1.1, 1.3, 4271.3])
def test_bars_of_one_shape_repeated_have_no_deviation_to_divide_by(close, sample):
    shape = {"open": close, "high": close * 1.1, "low": close * 0.9, "close": close * 1.03}
    table = by_name(features(Bars.from_frame(sample.frame.head(400).assign(**shape))))
    for name in ("cci_20", "bb_pctb_20", "mfi_14", "rsi_14", "macd", "natr_z", "parkinson_32_z", "bb_width_z"):
        np.testing.assert_allclose(table[name], 0.0, atol=1e-9, err_msg=name)  # averages of equal values may round


def test_prices_that_stop_moving_stay_finite_and_end_neutral(sample):
    frame = sample.frame.copy()
    frame.iloc[1000:, :4] = 1.0625
    table = by_name(features(Bars.from_frame(frame)))
    assert all(np.isfinite(column).all() for column in table.values())
    for name in ("ret_1", "body", "rsi_7", "rsi_14", "rsi_28", "stoch_k", "cci_20", "mfi_14", "ultosc", "bb_pctb_20"):
        assert table[name][-1] == 0, name


def test_without_volume_the_volume_features_are_0(sample):
    table = by_name(features(Bars.from_frame(sample.frame.assign(volume=0.0))))
    for name in ("mfi_14", "volume_z_64", "volume_ratio_8_64", "cmf_20", "obv_flow_32"):
        np.testing.assert_array_equal(table[name], 0.0, err_msg=name)
    assert all(np.isfinite(column).all() for column in table.values())
    assert np.ptp(table["vwap_dist_32"]) > 1  # falls back on the mean typical price


def test_a_single_huge_volume_is_forgotten_when_it_leaves_the_window(sample):
    frame = sample.frame.head(800).copy()
    spiked = frame.assign(volume=frame["volume"].where(np.arange(800) != 400, 1e25))
    plain, spiked = features(Bars.from_frame(frame)), features(Bars.from_frame(spiked))
    np.testing.assert_array_equal(plain.values[480 - WARMUP :], spiked.values[480 - WARMUP :])


def test_the_time_of_day_is_that_of_the_zone_given(sample):
    utc, local = by_name(features(sample)), by_name(features(sample, tz="-06:00"))
    np.testing.assert_allclose(local["tod_sin"], -utc["tod_cos"], atol=1e-15)  # a quarter of a day earlier
    assert (local["dow_cos"] != utc["dow_cos"]).mean() == pytest.approx(0.25, abs=0.01)


def test_too_few_bars_are_refused_with_both_numbers(sample):
    with pytest.raises(ValueError, match="EURUSD has 320 bars, but the features need more than 320"):
        features(sample.head(320))
    assert len(features(sample.head(321))) == 1
