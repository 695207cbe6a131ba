"""Charts of the trading: the price with trades and barriers on it, and the Sharpe ratio as it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_trade.backtesting.chart_parts import AGENT, DOWN, GREY, HOLD, UP, Chart, axes, chart, line, numbers, times

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.backtesting.results import BacktestReport

MAX_TRADES = 1000  # markers of each kind
SHORTEST, LONGEST = 20, 63  # days of the rolling window


def price(report: BacktestReport) -> Chart:
    """The closes, every fill at its price, and where the triple barrier was hit or expired."""
    curves, trades = report.curves, report.trades
    data = [line(curves["close"], "close", GREY, 1.5)]
    for name, side, symbol, color in (("buys", 1.0, "triangle-up", UP), ("sells", -1.0, "triangle-down", DOWN)):
        chosen = _largest(trades[np.sign(trades["units"]) == side])
        data.append(_markers(chosen["price"], name, symbol, color, 8) | {"text": _texts(chosen), "hoverinfo": "text"})
    for name, label, color in (("barrier, profit", 1.0, UP), ("barrier, loss", -1.0, DOWN)):
        ends = curves["close"][curves["barrier"] == label].iloc[-MAX_TRADES:]
        data.append(_markers(ends, name, "circle-open", color, 11))
    won, lost = (int((curves["barrier"] == label).sum()) for label in (1.0, -1.0))
    most = f" The largest {MAX_TRADES:,} of each side are drawn." if len(trades) > MAX_TRADES else ""
    note = (
        f"{len(trades):,} fills, marked at their price on the bar they were decided on. Circles are where a triple barrier ended: "
        f"{won:,} in profit, {lost:,} in loss.{most}"
    )
    return chart("price", "Price and trades", note, data, axes("time (UTC)", "price (currency per unit)"))


def rolling_sharpe(report: BacktestReport) -> list[Chart]:
    """The Sharpe ratio of the last days, of agent and buy and hold; none where there are too few days."""
    window = min(max(SHORTEST, len(report.daily) // 4), LONGEST)
    if len(report.daily) < window + 5:
        return []
    data = []
    for name, label, color in (("buy_and_hold", "buy and hold", HOLD), ("agent", "agent", AGENT)):
        rolling = report.daily[name].rolling(window)
        deviation = rolling.std()
        ratio = rolling.mean() / deviation.where(deviation > 1e-12) * report.days_per_year**0.5
        data.append(line(ratio.iloc[window - 1 :], label, color, 1.5) | {"connectgaps": False})
    note = f"Of the last {window} days' returns, per year; no line where an account did not move."
    return [chart("rolling", "Rolling Sharpe ratio", note, data, axes("time (UTC)", "Sharpe ratio (per year)"))]


def _largest(trades: pd.DataFrame) -> pd.DataFrame:
    """At most `MAX_TRADES` of them, the largest by value, in order of time."""
    if len(trades) <= MAX_TRADES:
        return trades
    return trades.iloc[np.sort(np.argsort(-trades["value"].to_numpy(), kind="stable")[:MAX_TRADES])]


def _markers(series: pd.Series, name: str, symbol: str, color: str, size: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": times(series.index),
        "y": numbers(series),
        "marker": {"symbol": symbol, "color": color, "size": size},
    }


def _texts(trades: pd.DataFrame) -> list[str]:
    """What the pointer shows of each fill."""
    texts = []
    for row in trades.to_dict("records"):
        side, target = "buy" if row["units"] > 0 else "sell", row["exposure"]
        wanted = f"{target:+.0%}" if target else "flat"
        texts.append(
            f"{side} {abs(row['units']):,.6g} at {row['price']:,.6g}, target {wanted}, cost {row['cost']:,.2f}"
        )
    return texts
