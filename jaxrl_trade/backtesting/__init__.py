"""Backtests: a policy on bars it has not seen, a float64 ledger, metrics, baselines and a report. pandas loads on first use."""

from jaxrl_trade.backtesting.judge import backtest, evaluate
from jaxrl_trade.backtesting.metrics import METRICS
from jaxrl_trade.backtesting.results import BacktestReport
from jaxrl_trade.backtesting.simulate import Relay
from jaxrl_trade.backtesting.sweep import SweepReport
from jaxrl_trade.backtesting.tracks import Track, track_of_bars, tracks_of_market
from jaxrl_trade.backtesting.walk_forward import WalkForwardReport

__all__ = [
    "METRICS",
    "BacktestReport",
    "Relay",
    "SweepReport",
    "Track",
    "WalkForwardReport",
    "backtest",
    "evaluate",
    "track_of_bars",
    "tracks_of_market",
]
