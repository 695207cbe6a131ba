"""Performance figures of a ledger. Returns are of days; ratios are empyrical's, the rest is arithmetic on the books.

Knows nothing of policies: a ledger and the days of its bars in, numbers out. Undefined figures are NaN.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxrl_trade.backtesting.ledger import Ledger, round_trips

Array = np.ndarray

MINUTES_PER_DAY = 1440
DAYS_PER_YEAR = 365.25
YEARLY_SPAN = 60  # days: a return of less is not compounded to a year, which would promise what nobody has seen
LONG_BAR = 5  # days: bars further apart than this are weekly or longer, not daily with a weekend between

# name -> what it says, in the order of the table
METRICS: dict[str, str] = {
    "total_return": "Final equity over initial capital, less 1.",
    "annual_return": f"Compound return per year, from daily returns; none of fewer than {YEARLY_SPAN} calendar days.",
    "volatility": "Standard deviation of daily returns, per year.",
    "sharpe": "Mean over standard deviation of daily returns, per year; no risk-free rate.",
    "sortino": "Mean over downside deviation of daily returns, per year.",
    "calmar": "Annual return over maximum drawdown; none where there is no annual return.",
    "max_drawdown": "Deepest fall below an earlier peak, from daily closes.",
    "drawdown_days": "Calendar days from that peak to its recovery, or to the end.",
    "drawdown_bars": "The same in bars.",
    "turnover": "Value traded over mean equity, per year.",
    "cost_drag": "Fees and spread paid over mean equity, per year; negative where limit orders earned more than they paid.",
    "exposure": "Mean of absolute position value over equity.",
    "time_in_market": "Share of bars with a position.",
    "trades": "Fills.",
    "hit_rate": "Share of round trips that made money after fees; an open one counts at the last close.",
    "profit_factor": "Profits over losses of round trips; infinite without a loss.",
    "final_equity": "Currency, marked at the last close.",
}


@dataclasses.dataclass(frozen=True)
class Days:
    """The days of n bars.

    Attributes:
      last: `[D]` int, the last bar of each day; the day of the account's first bar is left out if it holds nothing else.
      number: `[D]` int, days since 1970 UTC.
      opened: the day of the account's first bar.
      per_year: days a year, to annualise with.
      reason: why `per_year`, for people.
    """

    last: Array
    number: Array
    opened: int
    per_year: float
    reason: str

    @property
    def years(self) -> float:
        """Length of the range."""
        return len(self.last) / self.per_year

    @property
    def span(self) -> int:
        """Calendar days from the first bar's to the last bar's, both included."""
        return int(self.number[-1]) - self.opened + 1 if len(self.number) else 1

    def returns(self, equity: Array) -> Array:
        """Daily returns `[D]` of equities `[n]`; -1 on the day that loses everything, 0 after it."""
        levels = np.maximum(equity[np.concatenate([[0], self.last])], 0.0)
        before = levels[:-1]
        return np.where(before > 0, levels[1:] / np.where(before > 0, before, 1.0) - 1.0, 0.0)


def days_of(minutes: Array, all_minutes: Array | None = None) -> Days:
    """Groups bars by UTC day and infers the days of a year.

    365 where at least half of the Saturdays hold bars, else 252; bars of a weekend (the Sunday evening of currencies) then belong
    to the Monday after it. Bars further apart than `LONG_BAR` days count as they come: 52 weekly ones a year. Days without bars
    are no days.

    Args:
      minutes: `[n]` since 1970 UTC, of the range.
      all_minutes: of all bars known, to infer from; the range itself where None.
    """
    known = np.unique((minutes if all_minutes is None else all_minutes) // MINUTES_PER_DAY)
    day = minutes // MINUTES_PER_DAY
    spacing = float(np.median(np.diff(known))) if len(known) > 1 else 1.0
    if spacing > LONG_BAR:
        per_year = float(round(DAYS_PER_YEAR / spacing))
        reason = f"one bar every {spacing:.0f} days"
    else:
        every_day = np.arange(known[0], known[-1] + 1)
        saturdays = every_day[_weekday(every_day) == 5]
        held = int(np.isin(saturdays, known).sum())
        trades_weekends = len(saturdays) > 0 and 2 * held >= len(saturdays)
        per_year = 365.0 if trades_weekends else 252.0
        reason = f"{held} of {len(saturdays)} Saturdays hold bars"
        if not trades_weekends:
            day = day + np.where(_weekday(day) >= 5, 7 - _weekday(day), 0)
    last = np.append(np.flatnonzero(np.diff(day)), len(day) - 1)
    last = last[last > 0]
    return Days(last=last, number=day[last], opened=int(day[0]), per_year=per_year, reason=reason)


def performance(returns: Array, days: Days) -> dict[str, float]:
    """The figures that depend on daily returns `[D]` alone; NaN where fewer than 2 days leave them undefined.

    annual_return and calmar, which compound what was seen to a year, are NaN also where the days span less than `YEARLY_SPAN`.
    """
    import empyrical

    nan = float("nan")
    factor = days.per_year
    depth = float(empyrical.max_drawdown(returns))
    figures = {"max_drawdown": depth}
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # days compounded to a year may be infinite
        enough = len(returns) >= 2
        figures["annual_return"] = nan
        if enough and days.span >= YEARLY_SPAN:
            figures["annual_return"] = float(empyrical.annual_return(returns, annualization=factor))
        figures["volatility"] = float(empyrical.annual_volatility(returns, annualization=factor)) if enough else nan
        figures["sharpe"] = float(empyrical.sharpe_ratio(returns, annualization=factor)) if enough else nan
        figures["sortino"] = float(empyrical.sortino_ratio(returns, annualization=factor)) if enough else nan
        figures["calmar"] = figures["annual_return"] / -depth if depth < 0 else nan
    return figures


def sharpe(returns: Array, days: Days) -> float:
    """Sharpe ratio per year of daily returns `[D]`, NaN with fewer than 2 or without any variation.

    empyrical's definition, for the training loop: it must run without pandas and SciPy.
    """
    deviation = float(np.std(returns, ddof=1)) if len(returns) >= 2 else 0.0
    return float(np.mean(returns)) / deviation * days.per_year**0.5 if deviation > 0 else float("nan")


def evaluate_ledger(ledger: Ledger, days: Days) -> dict[str, float]:
    """Every figure of `METRICS`, in its order."""
    equity = ledger.equity
    fills, before = ledger.fills, equity[:-1]
    mean_equity, years = float(equity.mean()), days.years
    is_solvent = before > 0
    value = np.abs(ledger.units[1:]) * ledger.close[:-1]  # of what the step held, at the prices it began with
    exposure = np.where(is_solvent, value / np.where(is_solvent, before, 1.0), 0.0)
    start, length = _drawdown_length(equity, days)
    figures = {
        **performance(days.returns(equity), days),
        "total_return": float(equity[-1] / equity[0] - 1.0),
        "drawdown_days": start,
        "drawdown_bars": length,
        "turnover": _per(float(fills.value.sum()), mean_equity * years),
        "cost_drag": _per(float(fills.cost.sum()), mean_equity * years),
        "exposure": float(exposure.mean()),
        "time_in_market": float((ledger.units[1:] != 0).mean()),
        "trades": float(len(fills)),
        "final_equity": float(equity[-1]),
        **_trip_figures(round_trips(ledger).profit),
    }
    return {name: figures[name] for name in METRICS}


def _trip_figures(profit: Array) -> dict[str, float]:
    gains, losses = float(profit[profit > 0].sum()), float(-profit[profit < 0].sum())
    factor = gains / losses if losses > 0 else (float("inf") if gains > 0 else float("nan"))
    return {"hit_rate": float((profit > 0).mean()) if len(profit) else float("nan"), "profit_factor": factor}


def _drawdown_length(equity: Array, days: Days) -> tuple[float, float]:
    """Days and bars from the peak before the deepest daily drawdown to the first day at or above it, or to the end."""
    bar = np.concatenate([[0], days.last])
    number = np.concatenate([[days.opened], days.number])
    levels = equity[bar]
    peak = np.maximum.accumulate(levels)
    deepest = int(np.argmin(levels / peak - 1.0))
    if levels[deepest] >= peak[deepest]:
        return 0.0, 0.0
    top = int(np.flatnonzero(levels[: deepest + 1] == peak[deepest])[-1])
    recovered = np.flatnonzero(levels[deepest:] >= peak[deepest])
    end = deepest + int(recovered[0]) if len(recovered) else len(levels) - 1
    return float(number[end] - number[top]), float(bar[end] - bar[top])


def _per(amount: float, base: float) -> float:
    return amount / base if base > 0 else float("nan")


def _weekday(day: Array) -> Array:
    """0 is Monday; day 0 of 1970 was a Thursday."""
    return (day + 3) % 7
