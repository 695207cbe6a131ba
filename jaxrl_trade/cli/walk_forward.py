"""`jaxrl-trade walk-forward FILE`: trains anew for each of several folds and tests all of them in a row."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxrl_trade.cli.backtest import key_of, reproduction
from jaxrl_trade.cli.data import OneReadFlags, load
from jaxrl_trade.cli.flags import AccountFlags, DQNFlags, DQNRunFlags, PPOFlags, PPORunFlags, RewardFlags
from jaxrl_trade.cli.own import OwnFlags
from jaxrl_trade.cli.prepared import check_features
from jaxrl_trade.cli.reports import whole_as_json
from jaxrl_trade.cli.train import Preset, TrainDQN, TrainPPO, fresh_folder
from jaxrl_trade.cli.trials import check_trials, count_trials
from jaxrl_trade.config import AgentConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WalkForward:
    """What the walk-forward of both agents takes."""

    data: tyro.conf.Positional[
        Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: the bundled sample)")]
    ] = None
    """Price file: CSV (also compressed), Parquet, Arrow or JSON."""
    read: OneReadFlags = dataclasses.field(default_factory=OneReadFlags)
    agent: Literal["ppo", "dqn"] = "ppo"
    """Which agent to train; it decides the flags below."""
    folds: int = 4
    """Stretches of test bars, each with an agent trained on the bars before it."""
    seeds: int = 1
    """Repetitions of all of it with other random numbers, for their mean and spread."""
    out_of_sample: float = 0.5
    """Fraction of the bars that the folds are tested on together."""
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: a fresh one in runs/)")
    ] = None
    """Folder of all runs; folds that are complete in it are kept."""
    seed: int = 0
    """The runs are a function of it, of the bars and of the flags."""
    checkpoint_every: Annotated[
        int | None, tyro.conf.arg(metavar="UPDATES", help_behavior_hint="(default: a twentieth of a run)")
    ] = None
    """Updates between checkpoints, and between validations."""
    devices: Annotated[
        int | Literal["all"] | None,
        tyro.conf.arg(metavar="N|all", help_behavior_hint="(default: 1, or as the runs had)"),
    ] = None
    """Devices of this host to divide the episodes over."""
    trials: Annotated[
        int | None,
        tyro.conf.arg(
            metavar="N", help_behavior_hint="(default: the seeds, and the runs beside this one on the same bars)"
        ),
    ] = None
    """Settings and seeds tried on these bars, this one's seeds included: the more, the more of its Sharpe ratio is luck."""
    json: bool = False
    """Print JSON."""
    own: OwnFlags = dataclasses.field(default_factory=OwnFlags)
    preset: Preset = "net"
    """The defaults of all flags below: costs count, or the figures of the original plan."""
    training: Any
    hypers: Any
    reward: RewardFlags[float]
    account: AccountFlags

    @classmethod
    def choose(cls, words: list[str]) -> tuple[type, Any]:
        """The class that these words fill, with the defaults of agent and preset."""
        given = dict(itertools.pairwise([part for word in words for part in word.split("=", 1)] + [""]))
        is_dqn = given.get("--agent") == "dqn"  # tyro refuses another word itself
        trainer: Any = TrainDQN if is_dqn else TrainPPO
        _, default = trainer.choose([word for word in words if not word.startswith("--resume")])
        groups = {name: getattr(default, name) for name in ("preset", "training", "hypers", "reward", "account")}
        kind = _WalkForwardDQN if is_dqn else WalkForward
        return kind, kind(agent="dqn" if is_dqn else "ppo", **groups)

    def config(self) -> AgentConfig:
        """The preset with the flags."""
        trainer: Any = TrainDQN if self.agent == "dqn" else TrainPPO
        groups = {name: getattr(self, name) for name in ("own", "preset", "training", "hypers", "reward", "account")}
        return trainer(**groups).config()

    def run(self, command_line: str) -> int:
        """Trains and tests every fold; the exit code."""
        from jaxrl_trade.train.result import StoppedError
        from jaxrl_trade.train.run import read_facts
        from jaxrl_trade.train.walk_forward import walk_forward

        config, options, key = self.config(), self.read.options(), key_of(self.seed)
        check_trials(self.trials)
        bars, features = load(self.data, options), self.own.features_by()
        if features is not None:
            check_features(bars, features)
        if not self.json:
            print("\n".join(bars.report.lines()), flush=True)
        folder = self.out or fresh_folder(f"walk-{self.agent}-{bars.symbol}-{self.preset}")
        path = None if self.data is None else str(self.data.absolute())
        data = {"path": path, "options": options, "symbol": bars.symbol, "sha256": bars.sha256}
        facts = {"command": command_line, "seed": self.seed, "data": data}
        try:
            report = walk_forward(
                bars,
                config,
                key,
                folds=self.folds,
                seeds=self.seeds,
                out_of_sample=self.out_of_sample,
                features=features,
                folder=folder,
                checkpoint_every=self.checkpoint_every,
                devices=self.devices,
                trials=self.trials or count_trials(folder, bars.sha256, self.seeds),
                facts=facts,
            )
        except StoppedError as stop:
            again = "" if self.out else f" --out {shlex.quote(str(folder))}"
            print(f"go on with: {command_line}{again}", file=sys.stderr)
            return 130 if stop.signal == "SIGINT" else 0
        finally:
            if self.out is None and not (folder / "seed-0").exists():  # no run has begun
                shutil.rmtree(folder, ignore_errors=True)
        report.save(folder)
        page = _page(report, folder, reproduction(read_facts(folder / "seed-0" / "fold-1"), command_line))
        print(json.dumps(whole_as_json(report, folder, page), indent=2) if self.json else report.summary())
        print(page, file=sys.stderr if self.json else sys.stdout)
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class WalkForward(_WalkForward):
    """Trains an agent anew for every fold of the bars and tests it on the bars after, with one account over all folds.

    A fold trains on a window of equal length, chooses its weights on the validation bars behind it, and trades the test bars behind
    those; 320 bars between them are left out. The folds' test bars follow one another: together they are the record of somebody who
    retrains on a schedule. Begin it again with --out FOLDER to go on where it was stopped.
    """

    training: PPORunFlags
    hypers: PPOFlags[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WalkForwardDQN(_WalkForward):
    __doc__ = WalkForward.__doc__

    training: DQNRunFlags
    hypers: DQNFlags[float]


def _page(report: Any, folder: Path, provenance: dict[str, Any]) -> Path:
    try:
        return report.to_html(folder / "report.html", provenance=provenance)
    except ImportError as error:
        print(f"no report.html: {error}", file=sys.stderr)
        return folder
