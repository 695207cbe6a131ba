"""`jaxrl-trade train ppo` and `train dqn`: bars, features, splits, training with validation, and a backtest on bars never seen."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from jaxrl_trade import hosts
from jaxrl_trade.cli.backtest import key_of, reproduction
from jaxrl_trade.cli.data import ReadFlags, load_all
from jaxrl_trade.cli.flags import AccountFlags, DQNFlags, DQNRunFlags, PPOFlags, PPORunFlags, RewardFlags, flags_of
from jaxrl_trade.cli.own import OwnFlags, try_parts
from jaxrl_trade.cli.prepared import Prepared, prepare
from jaxrl_trade.cli.recorded import load_again
from jaxrl_trade.cli.reports import as_json as as_json_of
from jaxrl_trade.cli.reports import backtest_each, folder_name, save_all, shown
from jaxrl_trade.cli.scaling import ScalingFlags
from jaxrl_trade.cli.trials import check_trials, count_trials
from jaxrl_trade.config import AgentConfig, DQNConfig, PPOConfig
from jaxrl_trade.train.agent import agent_of
from jaxrl_trade.train.loop import TrainResult, train_agent
from jaxrl_trade.train.run import check_parts, holds_run, load_config, own_features, read_facts, read_plan

Preset = Literal["net", "plan"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Train:
    """What the training of both agents takes. The bars are split by time: 70 % to train, 15 % to validate, 15 % to test."""

    agent: ClassVar[str]
    presets: ClassVar[dict[str, Callable[..., Any]]]
    # for a laptop's CPU and a demo of a few minutes, and a learning rate for so short a run; a GPU takes many more episodes
    sizes: ClassVar[dict[str, int]]
    pace: ClassVar[dict[str, float]]
    run_flags: ClassVar[type]
    hyper_flags: ClassVar[type]

    data: Annotated[
        tuple[Path, ...], tyro.conf.arg(metavar="FILE ...", help_behavior_hint="(default: the bundled sample)")
    ] = ()
    """Price files: CSV (also compressed), Parquet, Arrow or JSON; or folders of them. Of several instruments, all are learnt."""
    read: ReadFlags = dataclasses.field(default_factory=ReadFlags)
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: a fresh one in runs/)")
    ] = None
    """Folder of the run."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="(default: a new run begins)")] = (
        None
    )
    """Go on with this run and its settings; beside it go only --updates, --data, --checkpoint-every and the scaling options."""
    seed: int = 0
    """The run is a function of it, of the bars and of the flags."""
    checkpoint_every: Annotated[
        int | None, tyro.conf.arg(metavar="UPDATES", help_behavior_hint="(default: a twentieth of the run)")
    ] = None
    """Updates between checkpoints, and between validations."""
    trials: Annotated[
        int | None,
        tyro.conf.arg(metavar="N", help_behavior_hint="(default: the runs beside this one on the same bars)"),
    ] = None
    """Settings and seeds tried on these test bars, this one included: the more, the more of its Sharpe ratio is luck."""
    json: bool = False
    """Print the result as JSON."""
    own: OwnFlags = dataclasses.field(default_factory=OwnFlags)
    scaling: ScalingFlags = dataclasses.field(default_factory=ScalingFlags)
    preset: Preset = "net"
    """The defaults of all flags below: costs count, or the figures of the original plan."""
    training: Any
    hypers: Any
    reward: RewardFlags[float]
    account: AccountFlags

    @classmethod
    def choose(cls, words: list[str]) -> tuple[type, Any]:
        """The class that these words fill, and its defaults: those of the preset, or none for a run to resume."""
        given = dict(itertools.pairwise([part for word in words for part in word.split("=", 1)] + [""]))
        if "--resume" in given:
            return (Resume if cls.agent == "ppo" else _ResumeDQN), None
        preset: Preset = "plan" if given.get("--preset") == "plan" else "net"  # tyro refuses another word itself
        config = cls.short_run(preset)
        return cls, cls(
            preset=preset,
            training=flags_of(cls.run_flags, config),
            hypers=flags_of(cls.hyper_flags, config.hypers),
            reward=flags_of(RewardFlags, config.hypers.reward),
            account=flags_of(AccountFlags, config.env),
        )

    @classmethod
    def short_run(cls, preset: Preset) -> AgentConfig:
        """The command's defaults."""
        config = cls.presets[preset](**cls.sizes)
        return dataclasses.replace(config, hypers=dataclasses.replace(config.hypers, **cls.pace))

    def config(self) -> AgentConfig:
        """The preset with the flags."""
        preset = self.presets[self.preset]()
        reward = dataclasses.replace(preset.hypers.reward, **vars(self.reward))
        hypers = dataclasses.replace(preset.hypers, **vars(self.hypers), reward=reward)
        env = dataclasses.replace(preset.env, **vars(self.account))
        return self.own.applied(dataclasses.replace(preset, **vars(self.training), env=env, hypers=hypers))

    def run(self, command_line: str) -> int:
        """Trains and backtests; the exit code."""
        self.scaling.join()
        with hosts.together():
            config, options, key = self.config(), self.read.options(), key_of(self.seed)
            check_trials(self.trials)
            prepared = prepare(load_all(self.data, options, self.read.all_symbols), self.own.features_by())
            if hosts.is_first():
                print("\n".join(prepared.lines()), file=sys.stderr if self.json else sys.stdout, flush=True)
            prepared.markets["train"].valid_starts(config.env.episode_length)  # before there is a folder
            try_parts(config, prepared.markets["train"])
        facts = {"command": command_line, "seed": self.seed, "data": prepared.facts(self.data, options)}
        with _run_folder(self.out, f"{self.agent}-{prepared.name}-{self.preset}") as folder:
            facts["trials"] = self.trials or hosts.from_first(lambda: count_trials(folder, prepared.sha256))
            result = train_agent(
                prepared.markets["train"],
                config,
                key,
                prepared.markets["validation"],
                folder=folder,
                checkpoint_every=self.checkpoint_every,
                devices=self.scaling.devices,
                facts=facts,
            )
        return hosts.from_first(lambda: _finish(result, prepared, config, folder, self.json))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainPPO(_Train):
    """Trains a PPO agent, chooses the weights that do best on validation bars after costs, and backtests them on test bars.

    The bars are split by time: 70 % to train, 15 % to validate, 15 % to test. Ctrl-C ends training with a checkpoint;
    `--resume RUN [--updates N] [--data FILE]` goes on from it.
    """

    agent = "ppo"
    presets: ClassVar = {"net": PPOConfig.net, "plan": PPOConfig}
    sizes: ClassVar = {"updates": 100, "n_episodes": 32, "timesteps_per_episode": 250}
    pace: ClassVar = {"learning_rate": 1e-3}  # chosen in docs/results.md
    run_flags, hyper_flags = PPORunFlags, PPOFlags

    training: PPORunFlags
    hypers: PPOFlags[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainDQN(_Train):
    """Trains a dueling DQN, chooses the weights that do best on validation bars after costs, and backtests them on test bars.

    The bars are split by time: 70 % to train, 15 % to validate, 15 % to test. Ctrl-C ends training with a checkpoint;
    `--resume RUN [--updates N] [--data FILE]` goes on from it.
    """

    agent = "dqn"
    presets: ClassVar = {"net": DQNConfig.net, "plan": DQNConfig}
    sizes: ClassVar = {"updates": 200}
    pace: ClassVar = {}
    run_flags, hyper_flags = DQNRunFlags, DQNFlags

    training: DQNRunFlags
    hypers: DQNFlags[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resume:
    """Goes on with a run from its last checkpoint, with its own settings, and backtests it as training does."""

    agent: ClassVar[str] = "ppo"

    resume: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    updates: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: as planned)")] = None
    """Updates in all, to go further than planned; the schedules keep the length that the run began with."""
    data: Annotated[
        tuple[Path, ...], tyro.conf.arg(metavar="FILE ...", help_behavior_hint="(default: as the run began)")
    ] = ()
    """Where the run's price files are now, if they were moved."""
    checkpoint_every: Annotated[
        int | None, tyro.conf.arg(metavar="UPDATES", help_behavior_hint="(default: as before)")
    ] = None
    """Updates between checkpoints, and between validations."""
    json: bool = False
    """Print the result as JSON."""
    scaling: ScalingFlags = dataclasses.field(default_factory=ScalingFlags)

    def run(self, command_line: str) -> int:
        """Trains and backtests; the exit code."""
        del command_line
        self.scaling.join()
        with hosts.together():
            facts, plan = read_facts(self.resume), read_plan(self.resume)
            _refuse_fold(self.resume, facts)
            check_agent("train", self.resume, facts["agent"], self.agent)
            updates = plan.updates if self.updates is None else self.updates
            config = dataclasses.replace(load_config(self.resume), updates=updates)
            check_parts(config)
            prepared = prepare(load_again(facts, self.data), own_features(facts))
            key = key_of(facts.get("seed"))
        result = train_agent(
            prepared.markets["train"],
            config,
            key,
            prepared.markets["validation"],
            folder=self.resume,
            resume=True,
            checkpoint_every=self.checkpoint_every,
            devices=self.scaling.devices,
        )
        return hosts.from_first(lambda: _finish(result, prepared, config, self.resume, self.json))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ResumeDQN(Resume):
    __doc__ = Resume.__doc__
    agent = "dqn"


def check_agent(command: str, folder: Path, found: str, asked: str) -> None:
    """Refuses to go on with another agent's folder.

    Raises:
      ValueError: it says by which command.
    """
    if found != asked:
        raise ValueError(
            f"{folder} is of {found.upper()}, not of {asked.upper()}; go on with: jaxrl-trade {command} {found} --resume "
            f"{shlex.quote(str(folder))}"
        )


def _refuse_fold(folder: Path, facts: Mapping[str, Any]) -> None:
    if "fold" in facts:
        raise ValueError(
            f"{folder} is fold {facts['fold']} of a walk-forward, which goes on as a whole: give the command that began it "
            f"({facts.get('command')}) with --out {shlex.quote(str(folder.parent.parent))}"
        )


def _finish(result: TrainResult, prepared: Prepared, config: AgentConfig, folder: Path, as_json: bool) -> int:
    """The backtest on the test bars and its report; or how to resume, when somebody stopped the training."""
    found: dict[str, Any] = {"run": str(folder), "updates": result.choice.updates, "stopped_by": result.stopped_by}
    if result.stopped_by is not None:
        print(
            f"resume with: jaxrl-trade train {agent_of(config).name} --resume {shlex.quote(str(folder))}",
            file=sys.stderr,
        )
        if as_json:
            print(json.dumps(found, indent=2))
        return 130 if result.stopped_by == "SIGINT" else 0
    facts = read_facts(folder)
    tests = [(each.bars, each.ranges["test"]) for each in prepared.instruments]
    reports = backtest_each(
        result.policy,
        config,
        [(bars, test.first, test.end) for bars, test in tests if test is not None],
        checkpoint=str(result.choice),
        seed=facts["seed"],
        trials=facts.get("trials", 1),
    )
    source = reproduction(facts, str(facts.get("command", "")))
    pages = save_all(reports, folder / "test", folder, result.history, source)
    if as_json:
        names = [str(page) for page in pages]
        print(
            json.dumps(
                {**found, "report": names[0] if len(names) == 1 else names, "test": as_json_of(reports)}, indent=2
            )
        )
    else:
        print(shown(reports))
        print("\n".join(map(str, pages)))
    return 0


@contextlib.contextmanager
def _run_folder(given: Path | None, name: str) -> Iterator[Path]:
    """The folder that was asked for, or a fresh one, which goes again if the run did not begin."""
    folder = given or Path(hosts.from_first(lambda: str(fresh_folder(name))))
    try:
        yield folder
    finally:
        if given is None and hosts.is_first() and not holds_run(folder):
            shutil.rmtree(folder, ignore_errors=True)


def fresh_folder(name: str) -> Path:
    """runs/NAME, or the first of runs/NAME-2, runs/NAME-3, ... that does not exist; made, so that nobody else takes it."""
    name = folder_name(name)
    for i in itertools.count(1):
        folder = Path("runs") / (name if i == 1 else f"{name}-{i}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("itertools.count ends never")
