"""Walk-forward: an agent trained anew before each stretch of bars it is tested on, and one account over all of those stretches.

`backtesting/folds.py` says where the stretches lie, `backtesting/walk_forward.py` judges what comes out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrl_trade.backtesting.folds import Fold, Stretch, plan_folds
from jaxrl_trade.backtesting.inference import MOST_TRIALS
from jaxrl_trade.config import AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.patience import working
from jaxrl_trade.train import run as runs
from jaxrl_trade.train.arguments import check_key, check_network
from jaxrl_trade.train.choice import WEIGHTS, load_choice
from jaxrl_trade.train.loop import train_agent
from jaxrl_trade.train.placement import Devices
from jaxrl_trade.train.result import StoppedError
from jaxrl_trade.train.walk_folder import begin

if TYPE_CHECKING:
    from jaxrl_trade.agents import Policy
    from jaxrl_trade.backtesting import WalkForwardReport
    from jaxrl_trade.bars import Bars, FeatureFunction


def walk_forward(
    bars: Bars,
    config: AgentConfig,
    key: jax.Array,
    *,
    folds: int = 4,
    seeds: int = 1,
    out_of_sample: float = 0.5,
    embargo: int | None = None,
    features: FeatureFunction | None = None,
    folder: str | Path | None = None,
    checkpoint_every: int | None = None,
    devices: Devices = None,
    trials: int | None = None,
    facts: dict[str, Any] | None = None,
    quiet: bool = False,
) -> WalkForwardReport:
    """Trains anew for every fold and trades the folds' test bars in turn with one account.

    Each fold's policy is the best on its validation bars after costs. Nothing is traded when the next fold's policy takes over.

    Args:
      bars: one instrument.
      config: of every run.
      key: typed key; each run's is a function of it, of its seed's number and of its fold's.
      folds: test stretches.
      seeds: how often all of it is repeated with other keys.
      out_of_sample: fraction of the bars with features that the test stretches take together.
      embargo: bars left out before validation and test; None is the features' look-back.
      features: the user's own, see `bars.FeatureFunction`; None are the 51.
      folder: holds a run for each fold and seed, seed-0/fold-1 and so on; one that is complete is kept, one that was begun goes
        on. None writes none.
      checkpoint_every, devices: of each run, as for `train_ppo`.
      trials: settings and seeds tried on these bars, the seeds of this one included; None are its seeds.
      facts: JSON values added to every run.json.
      quiet: prints nothing.
    Raises:
      ValueError: too few bars, arguments out of range, or a folder with runs of other settings, bars or folds.
      OSError: the folder holds something else than a walk-forward.
      StoppedError: Ctrl-C or SIGTERM ended the training of a fold.
    """
    from jaxrl_trade.backtesting.walk_forward import walk_forward_report
    from jaxrl_trade.bars import WARMUP, Bars, features_by

    if not isinstance(bars, Bars):
        raise ValueError(f"bars is a {type(bars).__name__}; give Bars, as load_bars and sample_bars make them")
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise ValueError(f"seeds = {seeds!r} must be a whole number of at least 1")
    trials = seeds if trials is None else trials
    if not isinstance(trials, int) or isinstance(trials, bool) or not seeds <= trials <= MOST_TRIALS:
        raise ValueError(
            f"trials = {trials!r} must be a whole number from {seeds}, the seeds of this one, to {MOST_TRIALS:,}"
        )
    check_key(key)
    look_back = WARMUP if features is None else max(WARMUP, len(bars) - len(features_by(features, bars)))
    plan = plan_folds(len(bars), look_back, folds, out_of_sample, look_back if embargo is None else embargo)
    whole = Market.from_bars(bars, features)
    check_network(whole, config)
    if folder is not None:
        begin(Path(folder), bars, plan)
    skipped = len(bars) - whole.n_bars
    policies: list[list[Policy]] = []
    for seed in range(seeds):
        policies.append([])
        for number, fold in enumerate(plan, 1):
            place = None if folder is None else Path(folder) / f"seed-{seed}" / f"fold-{number}"
            train, test = (_dates(bars, stretch) for stretch in (fold.train, fold.test))
            which = f"seed {seed} ({seed + 1} of {seeds}), fold {number} of {folds}: train {train}, test {test}"
            policies[-1].append(
                _policy(
                    window(whole, fold.train.moved(-skipped)),
                    window(whole, fold.validation.moved(-skipped)),
                    config,
                    jax.random.fold_in(jax.random.fold_in(key, seed), number),
                    place,
                    checkpoint_every,
                    devices,
                    {**_facts(facts, bars, fold), "fold": number, "trials": trials},
                    None if quiet else which,
                )
            )
    with contextlib.nullcontext() if quiet else working("backtesting all folds"):
        return walk_forward_report(policies, plan, bars, config, trials)


def window(market: Market, stretch: Stretch) -> Market:
    """The bars of a stretch of a Market of one instrument as a Market of their own: equal lengths give equal shapes."""
    first, end = stretch
    rows = {name: getattr(market, name)[first:end] for name in ("features", "open", "high", "low", "close", "time")}
    last = end - first - 1
    return dataclasses.replace(
        market,
        **rows,
        last_bar=jnp.full(end - first, last, jnp.int32),
        segments=jnp.array([[0, last]], jnp.int32),
    )


def _policy(
    train: Market,
    validation: Market,
    config: AgentConfig,
    key: jax.Array,
    folder: Path | None,
    checkpoint_every: int | None,
    devices: Devices,
    facts: dict[str, Any],
    which: str | None,
) -> Policy:
    """The policy of one fold: of the run that is complete in its folder, or of one that is trained now.

    `which` says what fold it is, for people; None prints nothing.
    """
    is_begun = folder is not None and runs.holds_run(folder)
    if is_begun and folder is not None and (folder / WEIGHTS).exists():
        runs.check_same_run(folder, train, config, key)
        if load_choice(folder).updates == config.updates:
            if which is not None:
                print(f"{which}, kept", file=sys.stderr)
            return runs.load_policy(folder, train.feature_names)
    if which is not None:
        print(which, file=sys.stderr)
    result = train_agent(
        train,
        config,
        key,
        validation,
        folder=folder,
        resume=is_begun,
        checkpoint_every=checkpoint_every,
        devices=devices,
        facts=facts,
        quiet=which is None,
    )
    if result.stopped_by is not None:
        raise StoppedError(result.stopped_by, None if folder is None else folder.parents[1])
    return result.policy


def _facts(facts: dict[str, Any] | None, bars: Bars, fold: Fold) -> dict[str, Any]:
    """What run.json says of one fold; the splits are spelled as those of a run of its own."""
    facts = facts or {}
    if "data" not in facts:
        return facts
    splits = {
        name: {
            "first": stretch.first,
            "end": stretch.end,
            "start_time": f"{bars.index[stretch.first]:%Y-%m-%d %H:%M}",
            "last_time": f"{bars.index[stretch.end - 1]:%Y-%m-%d %H:%M}",
        }
        for name, stretch in vars(fold).items()
    }
    return {**facts, "data": {**facts["data"], "splits": splits}}


def _dates(bars: Bars, stretch: Stretch) -> str:
    return f"{bars.index[stretch.first]:%Y-%m-%d} to {bars.index[stretch.end - 1]:%Y-%m-%d}"
