"""What the agent has to beat, on the same bars and at the same costs.

- buy and hold: max_position, as sized on the first bar, is bought there in full by the account's own arithmetic as the dearest
  taker of the execution table (fee, half spread and fill price as any other order, the reserve included) and held to the end.
- always short: the same, sold.
- always flat: nothing.
- random timing: the agent's own exposures (position value over equity) and what it traded (value over equity), bar by bar, moved
  around the range by a random number of bars: what falls off the end comes in at the start. Each moved trade pays the agent's own
  mean cost per value traded, and the gap to the next open where the agent's order was filled there, so that turnover and costs are
  the agent's and only the timing is chance. The order that closes a ruined account is left out.

A held position follows the agent's rule of ruin: at or below `ruin_fraction` of the reference capital, which is renewed every
`episode_length` bars, it is closed at that close at the dearest taker's fee.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxrl_trade.backtesting.ledger import Fills, Ledger, book, no_fills
from jaxrl_trade.backtesting.metrics import Days, performance
from jaxrl_trade.backtesting.orders import dearest_taker
from jaxrl_trade.backtesting.steps import NOTHING, first_fill
from jaxrl_trade.backtesting.tracks import Track
from jaxrl_trade.config import EnvConfig

Array = np.ndarray

MIN_SHIFTS = 100
TIE = 1e-12  # relative difference of equities that is rounding
CHUNK = 4_000_000  # numbers of one array while shifts are computed side by side


@dataclasses.dataclass(frozen=True)
class RandomTiming:
    """S moved versions of the agent.

    Attributes:
      shifts: `[S]` int, bars.
      total_returns: `[S]`.
      percentile: 0 to 100, of the agent's total return among them; ties count half; NaN where nothing can be moved.
      figures: medians of the figures of daily returns, by name.
      kept: `[P]` int, the bars of `band`.
      band: `[3, P]` currency: 5th percentile, median and 95th percentile of the equities.
    """

    shifts: Array
    total_returns: Array
    percentile: float
    figures: dict[str, float]
    kept: Array
    band: Array


def hold(exposure: float, track: Track, config: EnvConfig, costs: float = 1.0) -> Ledger:
    """Buys (1), sells (-1) or leaves (0) max_position on the first bar and holds it, at `costs` times the table's costs."""
    fills = no_fills() if exposure == 0 else _one_fill(*first_fill(exposure, track, config, costs))
    ledger = book(fills, track.close, config.initial_capital)
    ruined = _ruin(ledger.equity, config)
    if ruined is None or not len(fills):
        return ledger
    units, price = -ledger.units[ruined], track.close[ruined]
    fee = abs(units) * price * dearest_taker(config, costs)[0]
    both = _one_fill(units, price, fee, fee, bar=ruined, mark=ruined)
    fills = Fills(**{f: np.concatenate([getattr(fills, f), getattr(both, f)]) for f in vars(fills)})
    return book(fills, track.close, config.initial_capital)


def random_timing(
    ledger: Ledger, track: Track, days: Days, config: EnvConfig, n_shifts: int = 200, seed: int = 0, n_kept: int = 1000
) -> RandomTiming:
    """The agent's exposures at other times.

        growth[t] = 1 + w[t - k] r[t] - g[t - k] o[t] - |s[t - k]| c,   equity = capital x product of growth

    with w the exposure after the trade and s the trade (value over equity at the close decided on), r the bar's return, o the gap
    from the close to the next open (paid by g, the trades that fill there), c the agent's mean cost per value traded.

    Args:
      ledger: of the agent.
      track, days: its bars.
      config: the account's rules.
      n_shifts: S, at least 100; drawn without repetition where the range is long enough.
      seed: of the draw.
      n_kept: bars on which the band is kept.
    Raises:
      ValueError: fewer than 100 shifts, or a seed below 0.
    """
    if n_shifts < MIN_SHIFTS:
        raise ValueError(
            f"n_shifts = {n_shifts}; random timing needs at least {MIN_SHIFTS} shifts to give a percentile"
        )
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed = {seed!r} must be a whole number of at least 0")
    n_steps = track.n_steps
    kept = np.unique(np.concatenate([np.linspace(0, n_steps, min(n_kept, n_steps + 1)).astype(int), [0], days.last]))
    rng = np.random.default_rng(seed)
    if n_steps < 2:  # there is nowhere to move to
        nowhere = np.zeros(0, np.int64)
        return RandomTiming(nowhere, np.zeros(0), float("nan"), {}, kept, np.full((3, len(kept)), np.nan))
    shifts = rng.choice(np.arange(1, n_steps), n_shifts, replace=n_steps - 1 < n_shifts)
    equity = shifted_equity(ledger, track, config, shifts, kept)
    total = equity[:, -1] / config.initial_capital - 1.0
    own = ledger.equity[-1] / config.initial_capital - 1.0
    is_tie = np.abs(total - own) <= TIE * max(1.0, 1.0 + own)
    percentile = 100.0 * float(np.where(is_tie, 0.5, total < own).mean())
    kept_days = dataclasses.replace(days, last=np.searchsorted(kept, days.last))
    each = [performance(kept_days.returns(row), days) for row in equity]
    figures = {name: float(np.median([f[name] for f in each])) for name in each[0]}
    figures |= {"total_return": float(np.median(total)), "final_equity": float(np.median(equity[:, -1]))}
    return RandomTiming(shifts, total, percentile, figures, kept, np.quantile(equity, [0.05, 0.5, 0.95], axis=0))


def shifted_equity(ledger: Ledger, track: Track, config: EnvConfig, shifts: Array, kept: Array) -> Array:
    """Equities `[S, P]` on the bars `kept` `[P]` of the agent moved by each of `shifts` `[S]` bars."""
    n_steps = track.n_steps
    exposure, traded, gapped = _relative(ledger, config)
    fills = ledger.fills
    value = float((np.abs(fills.units) * track.close[fills.bar]).sum())
    rate = float(fills.cost.sum()) / value if value > 0 else 0.0
    move = np.diff(track.close) / track.close[:-1]
    gap = track.open[1:] / track.close[:-1] - 1.0
    result = np.empty((len(shifts), len(kept)))
    size = max(1, CHUNK // n_steps)
    for i in range(0, len(shifts), size):
        source = (np.arange(n_steps) - shifts[i : i + size, None]) % n_steps
        growth = 1.0 + exposure[source] * move - gapped[source] * gap - np.abs(traded[source]) * rate
        path = np.cumprod(np.maximum(growth, 0.0), axis=1)
        result[i : i + size] = np.concatenate([np.ones((len(path), 1)), path], axis=1)[:, kept]
    return result * config.initial_capital


def _relative(ledger: Ledger, config: EnvConfig) -> tuple[Array, Array, Array]:
    """Per step: exposure after the trade, value traded, and the part of it filled at the next open; over equity, signed."""
    close, fills, n_steps = ledger.close[:-1], ledger.fills, len(ledger.close) - 1
    equity = ledger.equity[:-1]
    per_unit = np.where(equity > 0, close / np.where(equity > 0, equity, 1.0), 0.0)
    units, gapped = np.zeros(n_steps), np.zeros(n_steps)
    own = fills.action != NOTHING  # the order that closes a ruined account is not a decision
    np.add.at(units, fills.bar[own], fills.units[own])
    if config.fill == "next_open":
        is_maker = np.asarray(config.execution.is_maker)[fills.action]
        takes = own & ~is_maker
        np.add.at(gapped, fills.bar[takes], fills.units[takes])
    held = np.concatenate([[0.0], ledger.units[1:-1]]) + units  # not the books' units: ruin closes them within the step
    return held * per_unit, units * per_unit, gapped * per_unit


def _ruin(equity: Array, config: EnvConfig) -> int | None:
    """The first bar whose equity is at or below the ruin of its episode's reference capital."""
    bar = np.arange(1, len(equity))
    reference = equity[(bar - 1) // config.episode_length * config.episode_length]
    low = np.flatnonzero(equity[1:] <= config.ruin_fraction * reference)
    return int(low[0]) + 1 if len(low) else None


def _one_fill(units: float, price: float, fee: float, cost: float, bar: int = 0, mark: int = 1) -> Fills:
    whole = [np.array([x], np.int64) for x in (bar, mark, NOTHING)]
    real = [np.array([x], np.float64) for x in (units, price, fee, cost)]
    return Fills(*whole, *real)
