"""A sweep: settings x seeds, trained side by side in one program, and the setting that does best on validation bars.

`grid.py` makes the settings of the hyperparameters, `scale.seeds` trains them, `sweep_folder.py` keeps them. Test bars are no
argument: whoever has the result backtests the chosen setting on them, and no other.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_trade.agents import Origin, Policy
from jaxrl_trade.config import AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.train import run as runs
from jaxrl_trade.train import sweep_folder as kept
from jaxrl_trade.train.agent import agent_of
from jaxrl_trade.train.arguments import check_market, check_network
from jaxrl_trade.train.files import locked
from jaxrl_trade.train.grid import Setting, settings_of, with_setting
from jaxrl_trade.train.placement import Devices, check_devices
from jaxrl_trade.train.sweep_groups import Groups, group_size

if TYPE_CHECKING:
    from jaxrl_trade.backtesting.sweep import SweepReport
    from jaxrl_trade.bars import Bars

Array = jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class SweepResult:
    """What a sweep gives.

    Attributes:
      settings: the grid's combinations.
      runs: a row for each run, those of a setting in a row: setting (its place in `settings`), seed, diverged (the update that
        brought a NaN, or None), and on the validation bars after costs total_return, sharpe and trades, None where it diverged.
      chosen: place of the setting whose mean total_return on the validation bars is the largest.
      config: of the chosen setting.
      policies: of its seeds, with the weights after the last update.
      folder: of the sweep, or None.
    """

    settings: tuple[Setting, ...]
    runs: list[dict[str, Any]]
    chosen: int
    config: AgentConfig
    policies: tuple[Policy, ...]
    folder: Path | None

    def backtest(
        self, bars: Bars, start: Any = None, end: Any = None, *, seed: int = 0, trials: int | None = None
    ) -> SweepReport:
        """The chosen setting's seeds on bars that the sweep has not seen; every run counts as a trial.

        Args:
          bars, start, end: as for `backtest`.
          seed: of the bootstrap and of random timing.
          trials: settings and seeds tried on these bars, the sweep's runs included; None are its runs.
        """
        from jaxrl_trade.backtesting.sweep import sweep_report

        return sweep_report(
            self.settings,
            self.runs,
            self.chosen,
            self.policies,
            self.config,
            bars,
            start,
            end,
            seed=seed,
            trials=trials,
        )


def sweep(
    market: Market,
    config: AgentConfig,
    grid: Mapping[str, Sequence[float]],
    keys: Array,
    validation: Market,
    *,
    folder: str | Path | None = None,
    at_once: int | None = None,
    devices: Devices = None,
    facts: dict[str, Any] | None = None,
    quiet: bool = False,
) -> SweepResult:
    """Trains every setting of a grid with every key, and chooses the setting with the best mean on the validation bars.

    Run (setting, key) is the one that `make_train_ppo` or `make_train_dqn` gives for them, whatever trains beside it. A run that
    meets a NaN has diverged, and its setting is not chosen.

    Args:
      market: the bars to train on, a split say.
      config: of every run; the grid replaces some of its hyperparameters.
      grid: values by the name of a hyperparameter, see `grid.sweepable`; every combination is a setting.
      keys: typed keys `[S]`, one for each seed, the same for every setting: `jax.random.split(jax.random.key(0), 4)`.
      validation: the bars to choose the setting on, after costs.
      folder: of the sweep's files; one that holds this sweep already goes on where it was stopped. None writes none.
      at_once: most runs in one program, where memory is short; all when left out. A group that is begun keeps its size.
      devices: of this host, to divide the runs over, or "all"; None is 1, or as before.
      facts: JSON values added to plan.json and to run.json of the chosen runs; a sweep that goes on keeps those it began with.
      quiet: prints nothing.
    Raises:
      ValueError: an argument of another kind, a grid without a choice, a name or value that does not fit; in the folder a sweep of
        other settings, keys or bars.
      OSError: the folder holds something else, another process is at it, the disk is full.
      StoppedError: Ctrl-C or SIGTERM ended it; with a folder it goes on from there.
      FloatingPointError: every setting has diverged.
    """
    agent, place = agent_of(config), None if folder is None else Path(folder)
    settings = settings_of(grid, config)
    check_market("market", market)
    check_market("validation", validation)
    _check_keys(keys)
    market.valid_starts(config.env.episode_length)
    check_network(market, config)
    with contextlib.ExitStack() as stack:
        saved = None
        if place is not None:
            runs.make_folder(place)
            stack.enter_context(locked(place))
            saved = kept.read_plan(place) if (place / kept.PLAN).exists() else None
        count = check_devices(saved["devices"] if saved and devices is None else devices)
        total = len(settings) * len(keys)
        size = saved["runs_at_once"] if saved and at_once is None else group_size(total, at_once, count)
        if place is not None:
            plan = kept.plan_of(market, validation, config, grid, keys, size, count)
            facts = kept.begin(place, plan, facts or {})
        groups = Groups(market, validation, config, settings, keys, size, count, place)
        found = groups.run(quiet)
        chosen = best(
            [[row["total_return"] for row in found.rows if row["setting"] == s] for s in range(len(settings))]
        )
        config = with_setting(config, settings[chosen])
        weights = found.params[chosen * len(keys) : (chosen + 1) * len(keys)]
        if place is not None:
            about = {"trials": total, "setting": settings[chosen], **(facts or {})}
            kept.save_chosen(place, market, config, keys, weights, about)
    origin = Origin.of_market(market, config.env)
    policies = tuple(
        dataclasses.replace(agent.policy(jax.tree.map(jnp.asarray, each), config), origin=origin) for each in weights
    )
    return SweepResult(settings, found.rows, chosen, config, policies, place)


def best(scores: Sequence[Sequence[float | None]]) -> int:
    """The setting with the largest mean score, the first of equals; one with a run that has none is left out.

    Args:
      scores: of each setting, of each seed.
    Raises:
      FloatingPointError: there is no other.
    """
    means = [-np.inf if None in each else float(np.mean(np.array(each, float))) for each in scores]
    if max(means) == -np.inf:
        raise FloatingPointError(
            "every setting has met a NaN or an infinity with one seed or another; a lower learning_rate, or features without "
            "extremes, usually helps"
        )
    return int(np.argmax(means))


def _check_keys(keys: Any) -> None:
    is_keys = isinstance(keys, jax.Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    if not is_keys or keys.ndim != 1 or not len(keys):
        raise ValueError(
            f"keys has {getattr(keys, 'dtype', type(keys).__name__)} of shape {np.shape(keys)}; give one typed key for each seed, "
            "such as jax.random.split(jax.random.key(0), 4)"
        )
