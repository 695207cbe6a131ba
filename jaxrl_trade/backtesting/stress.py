"""The same agent year by year, at other costs, and a bar late; and whether its reward means its money."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_trade.backtesting import baselines, metrics
from jaxrl_trade.backtesting.ledger import Ledger, book
from jaxrl_trade.backtesting.metrics import Days
from jaxrl_trade.backtesting.simulate import NOTHING, Simulator, Trace, replay
from jaxrl_trade.backtesting.steps import cpu
from jaxrl_trade.backtesting.tracks import Track
from jaxrl_trade.config import AgentConfig, EnvConfig, RewardScales
from jaxrl_trade.env import diversity, reward

if TYPE_CHECKING:
    import pandas as pd

COSTS = (0.0, 1.0, 2.0, 5.0)  # times the execution table's
LATE = "one bar late"
_FIGURES = ("total_return", "sharpe", "max_drawdown", "trades", "final_equity")


def by_year(agent: Ledger, hold: Ledger, days: Days) -> pd.DataFrame:
    """Calendar years (UTC): a row each, the figures of its days; its returns compound to the total return.

    Columns: agent, buy_and_hold (total returns, fractions), agent_sharpe, buy_and_hold_sharpe (per year), max_drawdown (of the
    agent), days.
    """
    import pandas as pd

    year = days.number.astype("datetime64[D]").astype("datetime64[Y]").astype(int) + 1970
    own, held = days.returns(agent.equity), days.returns(hold.equity)
    rows = {}
    for each in np.unique(year):
        mine, theirs = own[year == each], held[year == each]
        figures = metrics.performance(mine, days)
        rows[int(each)] = {
            "agent": float(np.prod(1.0 + mine) - 1.0),
            "buy_and_hold": float(np.prod(1.0 + theirs) - 1.0),
            "agent_sharpe": figures["sharpe"],
            "buy_and_hold_sharpe": metrics.performance(theirs, days)["sharpe"],
            "max_drawdown": figures["max_drawdown"],
            "days": float(len(mine)),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("year")


def under_stress(
    simulator: Simulator,
    trace: Trace,
    track: Track,
    days: Days,
    config: EnvConfig,
    costs: Sequence[float] = COSTS,
) -> pd.DataFrame:
    """The same weights at multiples of the costs, and the same actions one bar late.

    Args:
      simulator: of the agent on `track`.
      trace: what it did at the costs of the config, which is the row of 1.
      track, days: the bars.
      config: the account's rules.
      costs: multiples of the table's fees and takers' offsets, 0 or more.
    Returns:
      A row each, "costs x 2" and "one bar late"; columns total_return, sharpe, max_drawdown, trades, final_equity (of the agent)
      and buy_and_hold (its total return at those costs). A ruined agent decides nothing more, and an account that follows it a bar
      late may not be ruined and would hold to the end what nobody holds: its row is NaN.
    """
    import pandas as pd

    traces = {f"costs x {multiple:g}": (simulator.run(multiple), multiple) for multiple in costs if multiple != 1.0}
    traces |= {"costs x 1": (trace, 1.0)} if 1.0 in costs else {}
    rows = {}
    for name, (each, multiple) in sorted(traces.items(), key=lambda item: item[1][1]):
        rows[name] = _figures(each, track, days, config, multiple)
    late = replay(np.concatenate([[NOTHING], trace.action[:-1]]), track, config)
    rows[LATE] = _figures(late, track, days, config, 1.0)
    if np.any(trace.action == NOTHING):
        rows[LATE] |= dict.fromkeys(_FIGURES, float("nan"))
    return pd.DataFrame.from_dict(rows, orient="index")


def _figures(trace: Trace, track: Track, days: Days, config: EnvConfig, costs: float) -> dict[str, float]:
    all_figures = metrics.evaluate_ledger(book(trace.fills, track.close, config.initial_capital), days)
    hold = baselines.hold(1.0, track, config, costs).equity
    return {name: all_figures[name] for name in _FIGURES} | {"buy_and_hold": float(hold[-1] / hold[0] - 1.0)}


def rewards(trace: Trace, config: EnvConfig | AgentConfig) -> np.ndarray | None:
    """The reward of each step `[n - 1]`, reward units, without the bonus of curiosity, whose model is the training's.

    With an EnvConfig, which has no scales, it is the base alone; None where the reward is a function of the user's own.
    """
    if isinstance(config, EnvConfig):
        return trace.base
    if config.reward_fn is not None:
        return None
    scales: RewardScales = config.hypers.reward
    no_bonus: Any = np.zeros_like(trace.base)
    penalty: Any = _penalties(trace.action, config.env) if scales.diversity_scale else no_bonus
    total = reward.total(trace.base, trace.barrier_label, penalty, no_bonus, trace.drawdown, scales)
    return np.where(trace.action == NOTHING, 0.0, np.asarray(total, np.float64))


def correlation(rewards: np.ndarray | None, equity: np.ndarray) -> float:
    """Pearson's, of the rewards `[n - 1]` and the relative changes of the equity `[n]`, of the steps that begin above 0.

    NaN where there are no rewards, or one of the two does not vary.
    """
    solvent = equity[:-1] > 0
    if rewards is None or solvent.sum() < 2:
        return float("nan")
    reward, change = rewards[solvent], np.diff(equity)[solvent] / equity[:-1][solvent]
    if not (np.ptp(reward) > 0 and np.ptp(change) > 0):
        return float("nan")
    return float(np.corrcoef(reward, change)[0, 1])


def _penalties(actions: np.ndarray, config: EnvConfig) -> np.ndarray:
    steps = np.arange(len(actions), dtype=np.int32) % config.episode_length
    with jax.default_device(cpu()):
        return np.asarray(
            _penalty(np.maximum(actions, 0), steps, config.diversity_window, config.n_actions), np.float64
        )


@functools.partial(jax.jit, static_argnums=(2, 3))
def _penalty(actions: Any, steps: Any, window: int, n_actions: int) -> Any:
    empty = jnp.full((1, window), diversity.EMPTY, jnp.int32)
    actions, steps = actions.astype(jnp.int32)[:, None], steps[:, None]
    return diversity.penalties(actions, steps, empty, n_actions, jnp.dtype(jnp.float32), backend="xla")[:, 0]
