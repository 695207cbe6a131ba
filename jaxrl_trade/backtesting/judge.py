"""`backtest` and `evaluate`: a policy on bars it has not seen, judged by its ledger against the baselines.

`backtest` gives a person everything; `evaluate` gives the training loop a few numbers from the same account and ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_trade.backtesting import baselines, inference, ledger, metrics, stress
from jaxrl_trade.backtesting.baselines import RandomTiming
from jaxrl_trade.backtesting.ledger import Ledger
from jaxrl_trade.backtesting.metrics import Days
from jaxrl_trade.backtesting.results import AGENT, BUY_AND_HOLD, FLAT, RANDOM, SHORT, BacktestReport
from jaxrl_trade.backtesting.simulate import NOTHING, Relay, Simulator, Trace, simulate
from jaxrl_trade.backtesting.tracks import Track, When, minutes_of, track_of_bars, tracks_of_market
from jaxrl_trade.config import AgentConfig, EnvConfig
from jaxrl_trade.market import Market

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.bars import Bars, FeatureFunction


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
    costs: Sequence[float] = stress.COSTS,
    trials: int = 1,
    trials_variance: float | None = None,
) -> BacktestReport:
    """Trades the bars [start, end) with one account, after costs, and sets the baselines beside it.

    Features look back on all bars given. The account starts with `initial_capital` on the first bar of the range; every
    `episode_length` bars its reference capital and max_position are renewed from current equity without a trade. A ruined account
    is closed at that bar's close at the dearest taker fee and stays flat. A position open at the end is marked at the last close.

    Args:
      policy: `obs [N, F + 3] -> logits [N, A]`, in JAX or NumPy, of the observation alone; or a `Policy` with weights; or a
        `Relay` of policies that take turns.
      bars: one instrument.
      config: the account's rules, or a run's config that holds them.
      start, end: position in `bars.frame`, date or timestamp; None is the first bar with features, and the end.
      greedy: take the first largest logit; else sample with `key`.
      key: of the sampling.
      checkpoint: which weights these are, in words; the report repeats it.
      shifts: randomly timed copies of the agent, at least 100.
      seed: of those copies, and of the bootstrap.
      costs: multiples of the table's costs at which the policy trades the range again; a NumPy policy is called as often.
      trials: settings and seeds that were tried on these bars, this one included; they deflate the Sharpe ratio.
      trials_variance: of their Sharpe ratios a year; None is what chance gives trials that are worth nothing.
    Raises:
      ValueError: a range that is empty or not in the data, logits of a wrong shape, no key to sample with, negative costs, or no
        trial.
    """
    rules = _rules(config)
    if wrong := [x for x in costs if not 0 <= x < math.inf]:
        raise ValueError(f"costs hold {wrong[0]!r}; each must be a multiple of the table's costs, 0 or more")
    track, first = track_of_bars(bars, start, end, _features_of(policy))
    days = metrics.days_of(track.minutes, minutes_of(bars.index))
    simulator = Simulator(policy, track, rules, greedy=greedy, key=key)
    trace = simulator.run()
    agent = ledger.book(trace.fills, track.close, rules.initial_capital)
    held = {
        name: baselines.hold(side, track, rules) for name, side in ((BUY_AND_HOLD, 1.0), (SHORT, -1.0), (FLAT, 0.0))
    }
    timing = baselines.random_timing(agent, track, days, rules, shifts, seed)
    index = bars.index[first : first + len(track.close)]
    ruined = np.flatnonzero(trace.is_ruined)
    rewards = stress.rewards(trace, config)
    curves = _curves(agent, held, trace, rewards, index)
    daily = _daily(agent, held[BUY_AND_HOLD], days)
    returns = daily["agent"].to_numpy()
    return BacktestReport(
        equity=curves["equity"],
        curves=curves,
        trades=_trades(agent, rules, index, first),
        metrics=_table({AGENT: agent, **held}, timing, days),
        actions=np.bincount(trace.action[trace.action != NOTHING], minlength=rules.n_actions),
        percentile=timing.percentile,
        band=_band(timing, index),
        daily=daily,
        comparison=inference.sharpe_difference(
            returns, daily["buy_and_hold"].to_numpy(), days.per_year, seed=int(seed)
        ),
        deflated=inference.deflated_sharpe(returns, days.per_year, trials, trials_variance),
        by_year=stress.by_year(agent, held[BUY_AND_HOLD], days),
        stress=stress.under_stress(simulator, trace, track, days, rules, costs),
        reward_correlation=stress.correlation(rewards, agent.equity),
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
        books = ledger.book(trace.fills, track.close, rules.initial_capital)
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


def _features_of(policy: Any) -> FeatureFunction | None:
    """What makes the features that a policy was trained on; of policies in turn, the first's."""
    first = policy.policies[0] if isinstance(policy, Relay) else policy
    return getattr(getattr(first, "origin", None), "features_by", None)


def _rules(config: Any) -> EnvConfig:
    rules = getattr(config, "env", config)
    if not isinstance(rules, EnvConfig):
        raise ValueError(
            f"config is a {type(config).__name__}; give an EnvConfig, or a config of a run that holds one as .env"
        )
    return rules


def _curves(
    agent: Ledger, held: Mapping[str, Ledger], trace: Trace, rewards: np.ndarray | None, index: pd.DatetimeIndex
) -> pd.DataFrame:
    import pandas as pd

    equity = agent.equity
    after = lambda steps: np.concatenate([[np.nan], steps])  # noqa: E731  # of the step that ends at each close
    return pd.DataFrame(
        {
            "equity": equity,
            "buy_and_hold": held[BUY_AND_HOLD].equity,
            "always_short": held[SHORT].equity,
            "cash": agent.cash,
            "units": agent.units,
            "close": agent.close,
            "exposure": np.where(equity > 0, agent.units * agent.close / np.where(equity > 0, equity, 1.0), 0.0),
            "reward": np.full(len(equity), np.nan) if rewards is None else after(rewards),
            "barrier": after(trace.barrier_label),
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


def _daily(agent: Ledger, hold: Ledger, days: Days) -> pd.DataFrame:
    import pandas as pd

    index = pd.DatetimeIndex(days.number.astype("datetime64[D]").astype("datetime64[ns]"), name="day")
    return pd.DataFrame({"agent": days.returns(agent.equity), "buy_and_hold": days.returns(hold.equity)}, index=index)


def _band(timing: RandomTiming, index: pd.DatetimeIndex) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(timing.band.T, columns=["low", "median", "high"], index=index[timing.kept])
