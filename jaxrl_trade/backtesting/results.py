"""`backtest` and `evaluate`: a policy on bars it has not seen, judged by its ledger against the baselines.

`backtest` gives a person everything; `evaluate` gives the training loop three numbers from the same account and ledger.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_trade.backtesting import baselines, ledger, metrics
from jaxrl_trade.backtesting.baselines import RandomTiming
from jaxrl_trade.backtesting.ledger import Fills, Ledger
from jaxrl_trade.backtesting.metrics import Days
from jaxrl_trade.backtesting.simulate import NOTHING, Trace, simulate
from jaxrl_trade.backtesting.tracks import Track, When, minutes_of, track_of_bars, tracks_of_market
from jaxrl_trade.config import AgentConfig, EnvConfig
from jaxrl_trade.market import Market

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.bars import Bars

AGENT, BUY_AND_HOLD, SHORT, FLAT, RANDOM = "agent", "buy and hold", "always short", "always flat", "random timing"


@dataclasses.dataclass(frozen=True, eq=False)
class BacktestReport:
    """What a policy did on a range of bars, and what the baselines did there. Every figure is the ledger's.

    Attributes:
      equity: Series, currency, at each close of the range; UTC index.
      curves: frame on the same index: equity, buy_and_hold, always_short, cash (currency), units, close (currency), exposure
        (position value over equity).
      trades: frame of fills, indexed by the bar decided on: bar (position in `bars.frame`), action (-1 closes a ruined account),
        exposure (the order's target, fraction of max_position), units, price, value, fee, cost (fee and spread), position (units,
        after it).
      metrics: frame, a row for each strategy, a column for each of `metrics.METRICS`; random timing's are medians.
      actions: `[A]` int, how often each action was chosen.
      percentile: of the agent's total return among randomly timed copies of itself, 0 to 100.
      band: frame: 5th percentile, median and 95th percentile of those copies' equity, on some of the bars.
      days_per_year, days_reason: the annualisation, and how it was inferred.
      ruined: the bar that ruined the account, or None.
      symbol, sha256, data_report: of the bars.
      config: the account's rules.
      greedy: whether the largest logit was taken, or a sample.
      checkpoint: which weights were tested, in words, or None.
    """

    equity: pd.Series
    curves: pd.DataFrame
    trades: pd.DataFrame
    metrics: pd.DataFrame
    actions: np.ndarray
    percentile: float
    band: pd.DataFrame
    days_per_year: float
    days_reason: str
    ruined: pd.Timestamp | None
    symbol: str
    sha256: str | None
    data_report: Any
    config: EnvConfig
    greedy: bool
    checkpoint: str | None = None

    @property
    def beats_buy_and_hold(self) -> bool:
        """Whether the agent ended with more than buy and hold."""
        total = self.metrics["total_return"]
        return bool(total[AGENT] > total[BUY_AND_HOLD])

    @property
    def verdict(self) -> str:
        """One plain sentence: did it beat buy and hold on this range, after costs."""
        total = self.metrics["total_return"]
        agent, hold = total[AGENT], total[BUY_AND_HOLD]
        if self.beats_buy_and_hold:
            outcome = "beat buy and hold"
        else:
            outcome = "lost to buy and hold" if agent < hold else "did no better than buy and hold"
        who = "The agent" if len(self.trades) else "The agent never traded and"
        despite = ", though it lost money" if self.beats_buy_and_hold and agent < 0 else ""
        ruin = f"; it was ruined on {self.ruined:%Y-%m-%d %H:%M} UTC and closed" if self.ruined is not None else ""
        start, end = self.equity.index[0], self.equity.index[-1]
        return (
            f"{who} {outcome} on {self.symbol} from {start:%Y-%m-%d} to {end:%Y-%m-%d}: "
            f"{agent:+.2%} against {hold:+.2%} after costs{despite}{ruin}."
        )

    def summary(self) -> str:
        """The verdict, the table of strategies and the annualisation, as plain text for a terminal."""
        from jaxrl_trade.backtesting.formats import text_table

        notes = [self.verdict]
        if self.checkpoint:
            notes.append(f"Tested: {self.checkpoint}.")
        return "\n".join([*notes, "", text_table(self.metrics), "", self.random_note, self.annualisation])

    @property
    def annualisation(self) -> str:
        """How daily figures became yearly ones."""
        return f"Annualised with {self.days_per_year:.0f} days a year ({self.days_reason})."

    @property
    def random_note(self) -> str:
        """Where the agent stands among randomly timed copies of itself."""
        if math.isnan(self.percentile):
            return "Random timing: the range is too short to move the agent's positions."
        return (
            f"Random timing: the agent ended above {self.percentile:.0f} % of copies of itself that took the same positions "
            "at shifted times."
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything but the series, ready for JSON: undefined and infinite figures are None."""
        return {
            "symbol": self.symbol,
            "sha256": self.sha256,
            "start": self.equity.index[0].isoformat(),
            "end": self.equity.index[-1].isoformat(),
            "bars": len(self.equity),
            "initial_capital": self.config.initial_capital,
            "greedy": self.greedy,
            "checkpoint": self.checkpoint,
            "verdict": self.verdict,
            "beats_buy_and_hold": self.beats_buy_and_hold,
            "ruined": None if self.ruined is None else self.ruined.isoformat(),
            "random_timing_percentile": _number(self.percentile),
            "days_per_year": self.days_per_year,
            "days_reason": self.days_reason,
            "metrics": {
                str(strategy): {name: _number(value) for name, value in row.items()}
                for strategy, row in self.metrics.to_dict("index").items()
            },
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes equity.parquet (the curves), trades.parquet and metrics.json into `folder`, which is made if need be."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.curves.to_parquet(folder / "equity.parquet")
        self.trades.to_parquet(folder / "trades.parquet")
        text = json.dumps(self.as_dict(), indent=2, allow_nan=False)
        (folder / "metrics.json").write_text(text + "\n", encoding="utf-8")
        return folder

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        training: Sequence[Mapping[str, Any]] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Path:
        """Writes the report as one HTML file that needs no network.

        Args:
          path: of the file; its folder is made if need be.
          training: rows of the run's metrics, one an update, numbers by name.
          provenance: what reproduces it: command, commit, data hash, seed, versions.
        Raises:
          ImportError: plotly is not installed; the message says how to get it.
        """
        from jaxrl_trade.backtesting.report import render

        html = render(self, training=training or (), provenance=provenance or {})
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
        return path


def backtest(
    policy: Any,
    bars: Bars,
    config: EnvConfig | AgentConfig,
    start: When = None,
    end: When = None,
    *,
    greedy: bool = True,
    key: Any = None,
    checkpoint: str | None = None,
    shifts: int = 200,
    seed: int = 0,
) -> BacktestReport:
    """Trades the bars [start, end) with one account, after costs, and sets the baselines beside it.

    Features look back on all bars given. The account starts with `initial_capital` on the first bar of the range; every
    `episode_length` bars its reference capital and max_position are renewed from current equity without a trade. A ruined account
    is closed at that bar's close at the dearest taker fee and stays flat. A position open at the end is marked at the last close.

    Args:
      policy: `obs [N, F + 3] -> logits [N, A]`, in JAX or NumPy, of the observation alone; or a `Policy` with weights.
      bars: one instrument.
      config: the account's rules, or a run's config that holds them.
      start, end: position in `bars.frame`, date or timestamp; None is the first bar with features, and the end.
      greedy: take the first largest logit; else sample with `key`.
      key: of the sampling.
      checkpoint: which weights these are, in words; the report repeats it.
      shifts: randomly timed copies of the agent, at least 100.
      seed: of those copies.
    Raises:
      ValueError: a range that is empty or not in the data, logits of a wrong shape, or no key to sample with.
    """
    rules = _rules(config)
    track, first = track_of_bars(bars, start, end)
    days = metrics.days_of(track.minutes, minutes_of(bars.index))
    trace = simulate(policy, track, rules, greedy=greedy, key=key)
    agent = ledger.book(fills_of(trace), track.close, rules.initial_capital)
    held = {
        name: baselines.hold(side, track, rules) for name, side in ((BUY_AND_HOLD, 1.0), (SHORT, -1.0), (FLAT, 0.0))
    }
    timing = baselines.random_timing(agent, track, days, rules, shifts, seed)
    index = bars.index[first : first + len(track.close)]
    ruined = np.flatnonzero(trace.is_ruined)
    curves = _curves(agent, held, index)
    return BacktestReport(
        equity=curves["equity"],
        curves=curves,
        trades=_trades(agent, rules, index, first),
        metrics=_table({AGENT: agent, **held}, timing, days),
        actions=np.bincount(trace.action[trace.action != NOTHING], minlength=rules.n_actions),
        percentile=timing.percentile,
        band=_band(timing, index),
        days_per_year=days.per_year,
        days_reason=days.reason,
        ruined=index[ruined[0] + 1] if len(ruined) else None,
        symbol=str(bars.symbol),
        sha256=getattr(bars, "sha256", None),
        data_report=bars.report,
        config=rules,
        greedy=greedy,
        checkpoint=checkpoint,
    )


def evaluate(
    policy: Any,
    market: Market | Sequence[Track],
    config: EnvConfig | AgentConfig,
    *,
    greedy: bool = True,
    key: Any = None,
) -> dict[str, float]:
    """The figures that choose a checkpoint, after costs: one account for each instrument, over the bars of the market's split.

    A `Policy` compiles once for each length of track and not again for new weights.

    Args:
      policy: as for `backtest`.
      market: a split, or its `tracks_of_market`, which saves fetching them from the device each time.
      config: the account's rules, or a run's config that holds them.
      greedy, key: as for `backtest`; each instrument draws with its own part of the key.
    Returns:
      total_return (fraction), sharpe (per year), final_equity (currency), each the mean over instruments with bars in the split;
      trades, the sum; ruined, the fraction of instruments whose account was. sharpe is 0 where it is undefined:
      without a trade, or within one day.
    """
    import jax

    rules = _rules(config)
    tracks = tracks_of_market(market) if isinstance(market, Market) else tuple(market)
    keys = [None] * len(tracks) if key is None else jax.random.split(key, len(tracks))
    each = []
    for track, own_key in zip(tracks, keys, strict=True):
        trace = simulate(policy, track, rules, greedy=greedy, key=own_key)
        books = ledger.book(fills_of(trace), track.close, rules.initial_capital)
        days, equity = metrics.days_of(track.minutes), books.equity
        sharpe = metrics.sharpe(days.returns(equity), days)
        ruined = float(trace.is_ruined.any())
        each.append(
            (
                equity[-1] / equity[0] - 1.0,
                sharpe if math.isfinite(sharpe) else 0.0,
                equity[-1],
                len(books.fills),
                ruined,
            )
        )
    total, sharpe, final, trades, ruined = np.array(each, np.float64).T
    return {
        "total_return": float(total.mean()),
        "sharpe": float(sharpe.mean()),
        "final_equity": float(final.mean()),
        "trades": float(trades.sum()),
        "ruined": float(ruined.mean()),
    }


def fills_of(trace: Trace) -> Fills:
    """The fills of a trace; one that closed a ruined account comes last."""
    traded = np.flatnonzero(trace.units)
    closing = np.flatnonzero(trace.closing_units)
    prices_after = trace.closing_price[closing]
    fees = trace.closing_fee[closing]
    return Fills(
        bar=np.concatenate([traded, closing + 1]),
        mark=np.concatenate([traded, closing]) + 1,
        action=np.concatenate([trace.action[traded], np.full(len(closing), NOTHING)]),
        units=np.concatenate([trace.units[traded], trace.closing_units[closing]]),
        price=np.concatenate([trace.price[traded], prices_after]),
        fee=np.concatenate([trace.fee[traded], fees]),
        cost=np.concatenate([trace.cost[traded], fees]),
    )


def _rules(config: Any) -> EnvConfig:
    rules = getattr(config, "env", config)
    if not isinstance(rules, EnvConfig):
        raise ValueError(
            f"config is a {type(config).__name__}; give an EnvConfig, or a config of a run that holds one as .env"
        )
    return rules


def _curves(agent: Ledger, held: Mapping[str, Ledger], index: pd.DatetimeIndex) -> pd.DataFrame:
    import pandas as pd

    equity = agent.equity
    return pd.DataFrame(
        {
            "equity": equity,
            "buy_and_hold": held[BUY_AND_HOLD].equity,
            "always_short": held[SHORT].equity,
            "cash": agent.cash,
            "units": agent.units,
            "close": agent.close,
            "exposure": np.where(equity > 0, agent.units * agent.close / np.where(equity > 0, equity, 1.0), 0.0),
        },
        index=index,
    )


def _trades(agent: Ledger, config: EnvConfig, index: pd.DatetimeIndex, first: int) -> pd.DataFrame:
    import pandas as pd

    fills = agent.fills
    target = np.append(config.execution.exposure, 0.0)[fills.action]  # the last is the closing of a ruined account
    return pd.DataFrame(
        {
            "bar": fills.bar + first,
            "action": fills.action,
            "exposure": target,
            "units": fills.units,
            "price": fills.price,
            "value": fills.value,
            "fee": fills.fee,
            "cost": fills.cost,
            "position": agent.units[fills.mark],
        },
        index=index[fills.bar].rename("time"),
    )


def _table(ledgers: Mapping[str, Ledger], timing: RandomTiming, days: Days) -> pd.DataFrame:
    import pandas as pd

    rows = {name: metrics.evaluate_ledger(books, days) for name, books in ledgers.items()}
    rows[RANDOM] = timing.figures
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(metrics.METRICS), dtype=float)


def _band(timing: RandomTiming, index: pd.DatetimeIndex) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(timing.band.T, columns=["low", "median", "high"], index=index[timing.kept])


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
