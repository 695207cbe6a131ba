import numpy as np
import pytest

from jaxrl_trade.backtesting import ledger
from jaxrl_trade.backtesting.ledger import Fills, book, no_fills, round_trips


def fills_of(units, price, fee, mark):
    n = len(units)
    whole, real = np.zeros(n, np.int64), np.zeros(n)
    return Fills(
        bar=np.asarray(mark) - 1,
        mark=np.asarray(mark),
        action=whole,
        units=np.asarray(units, float),
        price=np.asarray(price, float),
        fee=np.asarray(fee, float),
        cost=real,
    )


def test_cash_pays_for_units_and_fees_and_equity_marks_them_at_the_close():
    # buy 2 at 100 (fee 1) before the second close, sell 3 at 110 (fee 2) before the third
    books = book(fills_of([2, -3], [100, 110], [1, 2], mark=[1, 2]), np.array([100.0, 105.0, 108.0, 90.0]), 1000.0)
    np.testing.assert_array_equal(books.cash, [1000, 1000 - 201, 799 + 330 - 2, 1127])
    np.testing.assert_array_equal(books.units, [0, 2, -1, -1])
    np.testing.assert_array_equal(books.equity, [1000, 799 + 210, 1127 - 108, 1127 - 90])


def test_a_change_of_sides_closes_one_round_trip_and_opens_the_next():
    books = book(fills_of([2, -3], [100, 110], [1, 2], mark=[1, 2]), np.array([100.0, 105.0, 108.0, 90.0]), 1000.0)
    trips = round_trips(books)
    # long 2: bought for 200 + 1, sold for 220 less two thirds of the fee; short 1: sold for 110 less a third of it, now worth 90
    np.testing.assert_allclose(trips.profit, [220 - 201 - 4 / 3, 110 - 2 / 3 - 90], rtol=1e-12)
    np.testing.assert_array_equal(trips.opened, [0, 1])
    np.testing.assert_array_equal(trips.closed, [1, -1])


def test_adding_and_reducing_stay_in_one_round_trip():
    books = book(fills_of([1, 1, -1, -1], [10, 12, 15, 9], [0] * 4, mark=[1, 2, 3, 4]), np.full(6, 10.0), 100.0)
    trips = round_trips(books)
    np.testing.assert_allclose(trips.profit, [-10 - 12 + 15 + 9])
    np.testing.assert_array_equal(trips.closed, [3])


def test_profits_of_round_trips_sum_to_the_change_of_equity():
    rng = np.random.default_rng(5)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, 400)))
    target = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0], 399)
    trades = np.diff(target, prepend=0.0)
    k = np.flatnonzero(trades)
    books = book(fills_of(trades[k], close[k], 0.001 * np.abs(trades[k]) * close[k], mark=k + 1), close, 1e4)
    np.testing.assert_allclose(round_trips(books).profit.sum(), books.equity[-1] - 1e4, rtol=0, atol=1e-7)


def test_without_fills_equity_is_the_capital_and_there_are_no_trips():
    books = book(no_fills(), np.array([1.0, 2.0, 3.0]), 50.0)
    np.testing.assert_array_equal(books.equity, [50, 50, 50])
    assert len(round_trips(books).profit) == 0


def test_rounding_left_by_a_sum_of_fills_is_no_position():
    units = [0.1, 0.2, -0.3]  # sums to 5.6e-17 in float64
    assert sum(units) != 0
    books = book(fills_of(units, [1, 1, 1], [0, 0, 0], mark=[1, 2, 3]), np.ones(4), 1.0)
    assert books.units[-1] == 0
    np.testing.assert_array_equal(round_trips(books).closed, [2])


def test_value_is_what_changed_hands_whatever_the_side():
    np.testing.assert_array_equal(fills_of([2, -3], [100, 110], [1, 2], mark=[1, 2]).value, [200, 330])


@pytest.mark.parametrize("name", ["jax", "pandas"])
def test_the_ledger_needs_nothing_but_numpy(name):
    assert name not in vars(ledger)
