"""The Market: what it accepts, where episodes may start, and how it is split by time."""

import jax
import numpy as np
import pytest

import jaxrl_trade as jt

T = 60


def market(n_bars=T, instrument=None, **prices):
    close = np.linspace(100, 110, n_bars)
    features = np.arange(n_bars * 2, dtype=float).reshape(n_bars, 2)
    return jt.Market.from_arrays(features, prices.pop("close", close), instrument=instrument, **prices)


def test_missing_prices_are_the_previous_close_and_the_range_of_open_and_close():
    close = np.array([10.0, 12.0, 11.0, 11.0, 20.0, 18.0])
    made = market(6, close=close, instrument=["A"] * 4 + ["B"] * 2)
    np.testing.assert_array_equal(made.open, [10, 10, 12, 11, 20, 20])  # an instrument's first bar knows no other close
    np.testing.assert_array_equal(made.low, [10, 10, 11, 11, 20, 18])
    np.testing.assert_array_equal(made.high, [10, 12, 12, 11, 20, 20])


def test_given_prices_are_kept():
    close = np.array([10.0, 12.0, 11.0])
    made = market(3, close=close, low=close - 2, high=close + 3, open=close + 1)
    for name, shift in (("low", -2), ("high", 3), ("open", 1), ("close", 0)):
        np.testing.assert_array_equal(getattr(made, name), close + shift)


def test_last_bar_is_the_instruments_and_indices_are_int32():
    made = market(10, instrument=["A"] * 4 + ["B"] * 6)
    assert made.last_bar.tolist() == [3] * 4 + [9] * 6
    assert made.last_bar.dtype == np.int32
    assert (made.n_bars, made.n_features) == (10, 2)


@pytest.mark.parametrize("length", [1, 3, 5])
def test_valid_starts_are_every_bar_with_an_episode_and_its_last_bar_ahead(length):
    made = market(16, instrument=["A"] * 7 + ["B"] * 9)
    last = np.array([6] * 7 + [15] * 9)
    expected = [s for s in range(16) if s + length <= last[s]]
    starts = made.valid_starts(length)
    assert starts.tolist() == expected
    assert starts.dtype == np.int32


def test_an_instrument_too_short_for_an_episode_is_named():
    made = market(16, instrument=["LONG"] * 11 + ["TINY"] * 5)
    assert len(made.valid_starts(4)) == 7 + 1
    with pytest.raises(ValueError, match=r"'TINY' has 5 bars.*too few for one episode of 5"):
        made.valid_starts(5)


def test_draws_of_starts_are_uniform_over_the_valid_ones():
    made = market(30, instrument=["A"] * 12 + ["B"] * 18)
    valid = made.valid_starts(7)
    draws = np.asarray(jax.jit(made.draw_starts, static_argnums=(1, 2))(jax.random.key(0), (4000,), 7))
    assert draws.dtype == np.int32
    starts, counts = np.unique(draws, return_counts=True)
    assert starts.tolist() == valid.tolist()
    expected = 4000 / len(valid)
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)  # five standard deviations of a count


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({"close": [10, np.nan, 11]}, r"close\[1\] = nan is not a finite positive price"),
        ({"close": [10, 11, 0.0]}, r"close\[2\] = 0\.0"),
        ({"close": [10, -11, 11]}, r"close\[1\] = -11"),
        ({"close": [10, 11, np.inf]}, r"close\[2\] = inf"),
        ({"close": [10, 11, 12], "low": [9, 11.5, 9]}, r"close\[1\] = 11.* outside low 11\.5"),
        ({"close": [10, 11, 12], "open": [10, 11]}, r"open has shape \(2,\).*3 bars"),
        ({"close": [10, 11, 12], "high": [10, 11, 11.5]}, r"close\[2\] = 12.* high 11\.5"),
        ({"close": [10, 11, 12], "open": [10, 15, 12], "high": [10, 12, 12]}, r"open\[1\] = 15.* high 12"),
        ({"close": [10, 11, 12], "low": [9, 9]}, r"low has shape \(2,\).*3 bars"),
        ({"close": [10]}, r"at least 2 bars"),
        ({"close": [[10, 11], [12, 13]]}, r"close has shape \(2, 2\)"),
        ({"close": ["10", "11", "12"]}, r"close holds <U2; it must hold real numbers"),
        ({"close": [10, 11 + 1j, 12]}, r"close holds complex128"),
        ({"close": [10, [11], 12]}, r"close is no array of numbers"),
        ({"close": [10, 11, 12], "low": "x"}, r"low holds <U1"),
        ({"close": [1e300, 1e300, 1e300]}, r"close\[0\] = 1e\+300 is no price that float32 can hold"),
        ({"close": [1.0, 1e-40, 1.0]}, r"close\[1\] = 1e-40 is no price that float32 can hold"),
    ],
)
def test_prices_that_cannot_be_are_refused_with_their_bar(prices, message):
    with pytest.raises(ValueError, match=message):
        jt.Market.from_arrays(np.zeros((len(prices["close"]), 1)), **prices)


def test_features_of_another_length_or_not_finite_are_refused():
    with pytest.raises(ValueError, match=r"features has shape \(4, 1\).*3 closes"):
        jt.Market.from_arrays(np.zeros((4, 1)), [10, 11, 12])
    with pytest.raises(ValueError, match=r"features has shape \(3, 0\).* F at least 1"):
        jt.Market.from_arrays(np.zeros((3, 0)), [10, 11, 12])
    with pytest.raises(ValueError, match=r"features\[2, 1\] = nan"):
        jt.Market.from_arrays([[0, 0], [0, 0], [0, np.nan]], [10, 11, 12])
    with pytest.raises(ValueError, match=r"features\[1, 0\] = -1e\+39 is too large for float32"):
        jt.Market.from_arrays([[0], [-1e39], [0]], [10, 11, 12])
    with pytest.raises(ValueError, match=r"features holds <U1"):
        jt.Market.from_arrays([["a"], ["b"], ["c"]], [10, 11, 12])


def test_only_bars_make_a_market_of_bars():
    for wrong in ("prices.csv", None, [np.zeros(3)]):
        with pytest.raises(ValueError, match=r"bars\[0\] is a \w+; give Bars, as load_bars"):
            jt.Market.from_bars(wrong)


@pytest.mark.parametrize("length", [0, -1, 1.5, "x", None])
def test_an_episode_is_a_whole_number_of_bars(length):
    with pytest.raises(ValueError, match=rf"episode_length = {length!r} must be a whole number of at least 1"):
        market().valid_starts(length)


def test_instruments_must_label_every_bar_and_lie_together():
    with pytest.raises(ValueError, match=r"instrument has shape \(3,\).*6 bars"):
        market(6, instrument=["A"] * 3)
    with pytest.raises(ValueError, match=r"'A' do not lie together"):
        market(6, instrument=["A", "A", "B", "B", "A", "A"])


def test_splits_follow_in_time_with_an_embargo_that_belongs_to_none():
    whole = market(100)
    parts = jt.split(whole, (0.5, 0.3, 0.2), embargo=5)
    inside = [np.flatnonzero(np.asarray(part.last_bar) >= 0) for part in parts]
    assert [(bars[0], bars[-1]) for bars in inside] == [(0, 49), (55, 79), (85, 99)]
    for part, bars in zip(parts, inside, strict=True):
        assert np.array_equal(bars, np.arange(bars[0], bars[-1] + 1))
        assert set(np.asarray(part.last_bar)[bars]) == {bars[-1]}
        np.testing.assert_array_equal(part.close, whole.close)  # the same arrays, another last_bar
        starts = part.valid_starts(4)
        assert (starts[0], starts[-1]) == (bars[0], bars[-1] - 4)


def test_instruments_are_split_at_the_same_moments():
    # B begins 20 minutes after A and ends with it
    time = np.concatenate([np.arange(100), np.arange(20, 100)])
    whole = market(180, instrument=["A"] * 100 + ["B"] * 80, time=time)
    parts = jt.split(whole, (0.6, 0.4), embargo=3)
    begins, ends = ([time[np.asarray(part.last_bar) >= 0] for part in parts][i] for i in (0, 1))
    assert begins.max() == 59
    assert ends.min() == 63
    assert np.asarray(parts[0].segments).tolist() == [[0, 59], [100, 139]]
    assert np.asarray(parts[1].segments).tolist() == [[63, 99], [143, 179]]


def test_a_start_in_another_split_or_in_the_embargo_is_refused():
    parts = jt.split(market(100), (0.5, 0.3, 0.2), embargo=5)
    config = jt.EnvConfig(episode_length=4)
    for wrong in (10, 52, 78, 90):
        with pytest.raises(ValueError, match=rf"starts\[1\] = {wrong} "):
            jt.env.reset(parts[1], config, np.array([55, wrong]))


@pytest.mark.parametrize(
    ("fractions", "embargo", "message"),
    [
        ((0.8, 0.3), 0, r"fractions = \(0\.8, 0\.3\)"),
        ((0.5, 0.0), 0, r"fractions = \(0\.5, 0\.0\)"),
        ((0.5, float("nan")), 0, r"fractions = \(0\.5, nan\)"),
        (0.5, 0, r"fractions = 0\.5 must be a list of shares"),
        ((), 0, r"fractions = \(\) must be a list of shares"),
        (("a",), 0, r"fractions holds <U1"),
        (None, 0, r"fractions = None must be|fractions is no array"),
        ((0.5, 0.5), -1, r"embargo = -1"),
        ((0.5, 0.5), 1.5, r"embargo = 1\.5 .* whole number"),
        ((0.5, 0.5), None, r"embargo = None .* whole number"),
        ((0.9, 0.1), 10, r"split 1 .*no bars left after an embargo of 10"),
    ],
)
def test_a_split_that_cannot_be_made_says_why(fractions, embargo, message):
    with pytest.raises(ValueError, match=message):
        jt.split(market(100), fractions, embargo)


def test_prices_and_features_are_looked_up_by_clipped_indices():
    made = market(10)
    assert made.close_at(np.array([-1, 10, 99])).tolist() == [made.close[0], made.close[9], made.close[9]]
    np.testing.assert_array_equal(made.features_at(np.array([-3, 12])), np.asarray(made.features)[[0, 9]])
    last = made.prices_at(np.array(9))
    assert last.close == last.next_close == made.close[9]


def test_times_that_fall_within_an_instrument_are_refused():
    with pytest.raises(ValueError, match=r"time\[2\] = 1 comes before time\[1\] = 5"):
        market(4, time=[0, 5, 1, 6])
    market(4, instrument=["A", "A", "B", "B"], time=[4, 5, 1, 6])  # another instrument begins afresh


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ([0, 1, np.nan, 3], r"time\[2\] = nan must be whole minutes"),
        ([0, 0.5, 1, 2], r"time\[1\] = 0\.5 must be whole minutes"),
        ([0, 1, 2, 1_600_000_000_000], r"time\[3\] = 16.* must be whole minutes since 1970, below 2\*\*31"),
        (np.datetime64("2020-01-01") + np.arange(4), r"time, in minutes since 1970, holds datetime64\[D\]"),
        (["a"] * 4, r"time, in minutes since 1970, holds <U1"),
    ],
)
def test_times_that_are_no_minutes_are_refused(time, message):
    with pytest.raises(ValueError, match=message):
        market(4, time=time)


@pytest.mark.parametrize("starts", [[0.5], ["a"], None, [True]])
def test_starts_that_are_no_whole_numbers_are_refused(starts):
    with pytest.raises(ValueError, match=r"starts holds \S+, but bars are whole numbers"):
        jt.env.reset(market(), jt.EnvConfig(episode_length=4), starts)


def test_the_last_bar_of_each_instrument_is_known():
    two = market(6, instrument=["A"] * 3 + ["B"] * 3)
    np.testing.assert_array_equal(two.is_last(np.arange(6)), [False, False, True, False, False, True])
