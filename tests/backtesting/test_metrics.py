import math

import numpy as np
import pytest

from jaxrl_trade.backtesting.ledger import Ledger, book, no_fills
from jaxrl_trade.backtesting.metrics import METRICS, days_of, evaluate_ledger, performance, sharpe
from tests.backtesting.test_ledger import fills_of

MONDAY = 4 * 1440  # minutes: 1970-01-05
HOUR, DAY = 60, 1440


def ledger_of(equity):
    """Books that hold cash only, so that the equity is what the test says."""
    equity = np.asarray(equity, float)
    return Ledger(close=np.ones(len(equity)), cash=equity, units=np.zeros(len(equity)), fills=no_fills())


def test_daily_returns_take_the_last_mark_of_each_day_and_start_from_the_capital():
    minutes = MONDAY + 12 * HOUR * np.arange(6)  # three days of two bars
    days = days_of(minutes)
    assert days.last.tolist() == [1, 3, 5]
    np.testing.assert_allclose(days.returns(np.array([100, 110, 90, 121, 5, 60.5])), [0.1, 0.1, -0.5])


def test_the_day_of_a_daily_first_bar_is_no_day_of_returns():
    days = days_of(MONDAY + DAY * np.arange(4))
    np.testing.assert_allclose(days.returns(np.array([100.0, 110, 99, 99])), [0.1, -0.1, 0.0])


def test_a_market_that_trades_on_saturdays_has_365_days():
    days = days_of(MONDAY + HOUR * np.arange(24 * 21))
    assert (days.per_year, len(days.last)) == (365, 21)
    assert days.reason == "3 of 3 Saturdays hold bars"


def test_a_sunday_evening_belongs_to_monday_where_saturdays_are_closed():
    minutes = MONDAY + HOUR * np.arange(24 * 14)
    weekday, hour = minutes // DAY % 7, minutes % DAY // HOUR
    weekday = (weekday + 3) % 7
    open_hours = (weekday < 4) | ((weekday == 4) & (hour < 22)) | ((weekday == 6) & (hour >= 22))
    days = days_of(minutes[open_hours])
    assert days.per_year == 252
    # two weeks of five days; the second Sunday evening already is the third Monday
    assert len(days.last) == 11
    assert "0 of 2 Saturdays" in days.reason


def test_days_without_bars_are_no_days():
    minutes = np.concatenate([MONDAY + HOUR * np.arange(24), MONDAY + 2 * DAY + HOUR * np.arange(24)])
    days = days_of(minutes, MONDAY + HOUR * np.arange(24 * 14))
    assert len(days.last) == 2
    equity = np.concatenate([np.full(24, 100.0), np.full(24, 110.0)])
    np.testing.assert_allclose(days.returns(equity), [0.0, 0.1])


def test_weekly_bars_are_annualised_with_52():
    days = days_of(MONDAY + 7 * DAY * np.arange(60))
    assert (days.per_year, days.reason) == (52, "one bar every 7 days")


def test_ratios_are_their_textbook_formulas():
    rng = np.random.default_rng(0)
    returns = rng.normal(0.001, 0.02, 300)
    days = days_of(MONDAY + DAY * np.arange(301))
    figures = performance(returns, days)
    growth = np.cumprod(1 + returns)
    peak = np.maximum.accumulate(np.append(1.0, growth))[1:]
    expected = {
        "annual_return": growth[-1] ** (365 / 300) - 1,
        "volatility": returns.std(ddof=1) * 365**0.5,
        "sharpe": returns.mean() / returns.std(ddof=1) * 365**0.5,
        "sortino": returns.mean() / np.sqrt((np.minimum(returns, 0) ** 2).mean()) * 365**0.5,
        "max_drawdown": (growth / peak - 1).min(),
    }
    expected["calmar"] = expected["annual_return"] / -expected["max_drawdown"]
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value, rel=1e-9), name
    assert sharpe(returns, days) == pytest.approx(expected["sharpe"], rel=1e-12)


def test_less_than_two_days_leave_yearly_figures_undefined():
    days = days_of(MONDAY + HOUR * np.arange(10))
    figures = evaluate_ledger(ledger_of(np.linspace(100, 90, 10)), days)
    for name in ("annual_return", "volatility", "sharpe", "sortino", "calmar"):
        assert math.isnan(figures[name]), name
    assert figures["total_return"] == pytest.approx(-0.1)
    assert figures["max_drawdown"] == pytest.approx(-0.1)
    assert math.isnan(sharpe(days.returns(np.linspace(100, 90, 10)), days))


@pytest.mark.parametrize(("n", "is_yearly"), [(59, False), (60, True)])
def test_a_return_of_less_than_60_days_is_not_compounded_to_a_year(n, is_yearly):
    figures = performance(np.resize([0.01, -0.005], n - 1), days_of(MONDAY + DAY * np.arange(n)))
    assert np.isfinite([figures["annual_return"], figures["calmar"]]).tolist() == [is_yearly, is_yearly]
    assert np.isfinite([figures["volatility"], figures["sharpe"], figures["sortino"]]).all()


def test_an_equity_that_never_moves_has_zero_return_and_no_ratio():
    figures = evaluate_ledger(ledger_of(np.full(24 * 5, 100.0)), days_of(MONDAY + HOUR * np.arange(24 * 5)))
    assert figures["total_return"] == figures["volatility"] == figures["max_drawdown"] == figures["trades"] == 0
    assert all(math.isnan(figures[name]) for name in ("sharpe", "sortino", "calmar", "hit_rate", "profit_factor"))


def test_a_drawdown_lasts_from_its_peak_to_the_recovery():
    #           day 0 (two bars)  1    2   3    4    5
    equity = [100, 110, 110, 120, 90, 90, 60, 80, 120, 130, 125, 131]
    figures = evaluate_ledger(ledger_of(equity), days_of(MONDAY + 12 * HOUR * np.arange(12)))
    assert figures["max_drawdown"] == pytest.approx(
        80 / 120 - 1
    )  # daily closes 110 120 90 80 130 131; 60 is within a day
    assert (figures["drawdown_days"], figures["drawdown_bars"]) == (3, 6)  # from day 1 (bar 3) to day 4 (bar 9)


def test_a_drawdown_that_never_recovers_lasts_to_the_end():
    figures = evaluate_ledger(ledger_of([100, 90, 95, 92]), days_of(MONDAY + DAY * np.arange(4)))
    assert (figures["drawdown_days"], figures["drawdown_bars"]) == (3, 3)


def test_a_lost_account_returns_minus_one_once():
    days = days_of(MONDAY + DAY * np.arange(5))
    np.testing.assert_array_equal(days.returns(np.array([100.0, 50, -20, -20, -20])), [-0.5, -1, 0, 0])
    figures = evaluate_ledger(ledger_of([100.0, 50, *[-20.0] * 58]), days_of(MONDAY + DAY * np.arange(60)))
    assert figures["annual_return"] == -1
    assert figures["total_return"] == pytest.approx(-1.2)


def test_turnover_costs_exposure_and_trips_are_sums_over_the_books():
    close = np.array([100.0, 100.0, 110.0, 110.0, 110.0])
    books = book(fills_of([5, -5, 1], [100, 110, 110], [1, 2, 0.5], mark=[1, 2, 4]), close, 1000.0)
    fills = books.fills
    object.__setattr__(fills, "cost", np.array([1.5, 2.0, 0.5]))
    days = days_of(MONDAY + DAY * np.arange(5))  # 4 days of returns
    figures = evaluate_ledger(books, days)
    equity = np.array([1000, 999, 1047, 1047, 1046.5])
    np.testing.assert_allclose(books.equity, equity)
    years = 4 / days.per_year
    assert figures["turnover"] == pytest.approx((500 + 550 + 110) / equity.mean() / years)
    assert figures["cost_drag"] == pytest.approx(4.0 / equity.mean() / years)
    # held during the four steps: 5 units from 100, nothing, nothing, 1 unit from 110
    assert figures["exposure"] == pytest.approx((500 / 1000 + 110 / 1047) / 4)
    assert figures["time_in_market"] == 0.5
    assert figures["trades"] == 3
    # trips: 5 x 10 - 3 = 47, and 1 unit at its price less 0.5
    assert figures["hit_rate"] == 0.5
    assert figures["profit_factor"] == pytest.approx(47 / 0.5)


def test_profits_without_a_loss_have_an_infinite_factor():
    books = book(fills_of([1, -1], [10, 12], [0, 0], mark=[1, 2]), np.array([10.0, 10, 12]), 100.0)
    assert evaluate_ledger(books, days_of(MONDAY + DAY * np.arange(3)))["profit_factor"] == math.inf


def test_the_figures_come_in_the_tables_order_and_each_is_explained():
    figures = evaluate_ledger(ledger_of([1.0, 1.0, 1.0]), days_of(MONDAY + DAY * np.arange(3)))
    assert list(figures) == list(METRICS)
    assert all(text.endswith(".") for text in METRICS.values())
