"""`jaxrl-trade sweep ppo FILE` and `sweep dqn`: a grid of hyperparameters side by side, one setting chosen and tested."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from jaxrl_trade.cli.backtest import key_of, reproduction
from jaxrl_trade.cli.data import OneReadFlags, load
from jaxrl_trade.cli.flags import AccountFlags, DQNFlags, DQNRunFlags, PPOFlags, PPORunFlags, RewardFlags, Value
from jaxrl_trade.cli.own import OwnFlags, try_parts
from jaxrl_trade.cli.prepared import Prepared, prepare
from jaxrl_trade.cli.recorded import load_again
from jaxrl_trade.cli.reports import whole_as_json
from jaxrl_trade.cli.train import Preset, TrainDQN, TrainPPO, check_agent, fresh_folder
from jaxrl_trade.cli.trials import count_trials
from jaxrl_trade.config import AgentConfig
from jaxrl_trade.patience import working
from jaxrl_trade.train.grid import settings_of, sweepable
from jaxrl_trade.train.result import StoppedError
from jaxrl_trade.train.run import own_features
from jaxrl_trade.train.sweep import sweep
from jaxrl_trade.train.sweep_folder import PLAN, config_of, read_plan

MOST_RUNS = 10_000  # beyond it, a mistyped number is likelier than a plan
Values = tuple[float, ...]
Devices = Annotated[
    int | Literal["all"] | None,
    tyro.conf.arg(metavar="N|all", help_behavior_hint="(default: 1, or as the sweep had)"),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sweep:
    """What the sweeps of both agents take."""

    trainer: ClassVar[Any]

    data: tyro.conf.Positional[
        Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: the bundled sample)")]
    ] = None
    """Price file: CSV (also compressed), Parquet, Arrow or JSON."""
    read: OneReadFlags = dataclasses.field(default_factory=OneReadFlags)
    seeds: int = 4
    """Runs of each setting with other random numbers: as `train` gives them for --seed, --seed + 1 and so on."""
    at_once: Annotated[int | None, tyro.conf.arg(metavar="RUNS", help_behavior_hint="(default: all)")] = None
    """Most runs side by side, where memory is short."""
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: a fresh one in runs/)")
    ] = None
    """Folder of the sweep; this very sweep goes on in it where it was stopped."""
    resume: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: a new sweep begins)")
    ] = None
    """Go on with this sweep and its grid; beside it go only FILE, if it was moved, --devices and --json."""
    seed: int = 0
    """The runs are a function of it, of the bars and of the flags."""
    devices: Devices = None
    """Devices of this host to divide the runs over."""
    json: bool = False
    """Print JSON."""
    own: OwnFlags = dataclasses.field(default_factory=OwnFlags)
    preset: Preset = "net"
    """The defaults of all flags below: costs count, or the figures of the original plan."""
    training: Any
    hypers: Any
    reward: RewardFlags[Values]
    account: AccountFlags

    @classmethod
    def choose(cls, words: list[str]) -> tuple[type, Any]:
        """The class that these words fill, with the preset's defaults.

        Raises:
          ValueError: several values of a flag that takes one.
        """
        if any(word.split("=", 1)[0] == "--resume" for word in words):
            return (ResumeSweep if cls.trainer is TrainPPO else _ResumeDQNSweep), None
        _, default = cls.trainer.choose(words)
        _check_single(words, default.config())
        groups = {name: getattr(default, name) for name in ("preset", "training", "account")}
        several = {name: _each(getattr(default, name), lambda value: (value,)) for name in ("hypers", "reward")}
        return cls, cls(**groups, **several)

    def config(self) -> AgentConfig:
        """The preset with the flags, and of those that are swept the first value."""
        groups = {name: getattr(self, name) for name in ("own", "preset", "training", "account")}
        first = {name: _each(getattr(self, name), lambda values: values[0]) for name in ("hypers", "reward")}
        return self.trainer(**groups, **first).config()

    def grid(self) -> dict[str, Values]:
        """The flags with several values.

        Raises:
          ValueError: a flag without any.
        """
        given = {**vars(self.hypers), **vars(self.reward)}
        if empty := next((name for name, values in given.items() if values == ()), None):
            raise ValueError(f"--{empty.replace('_', '-')} is given no value; give it one or more, or leave it out")
        return {name: values for name, values in given.items() if isinstance(values, tuple) and len(values) > 1}

    def run(self, command_line: str) -> int:
        """Trains, chooses and tests; the exit code."""
        grid = self.grid()
        config, options = self.config(), self.read.options()
        settings = settings_of(grid, config)
        _check_seeds(self.seed, self.seeds, len(settings))
        prepared = prepare([load(self.data, options)], self.own.features_by())
        _print_data(prepared, self.json)
        prepared.markets["train"].valid_starts(config.env.episode_length)  # before there is a folder
        try_parts(config, prepared.markets["train"])
        folder = self.out or fresh_folder(f"sweep-{self.trainer.agent}-{prepared.name}-{self.preset}")
        paths = [] if self.data is None else [self.data]
        facts = {"command": command_line, "seed": self.seed, "data": prepared.facts(paths, options)}
        facts["trials"] = count_trials(folder, prepared.sha256, len(settings) * self.seeds)
        try:
            seeds = range(self.seed, self.seed + self.seeds)
            kept = {"at_once": self.at_once, "devices": self.devices, "facts": facts}
            return _finish(prepared, config, grid, seeds, folder, self.json, **kept)
        finally:
            if self.out is None and not (folder / PLAN).exists():  # it has not begun
                shutil.rmtree(folder, ignore_errors=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepPPO(_Sweep):
    """Trains PPO with every combination of hyperparameters, each with several seeds, all side by side in one program.

    Give a flag of the groups PPO and reward several values: --learning-rate 1e-4 3e-4. The bars are split by time: 70 % to train,
    15 % to choose the setting with the best mean of its seeds, 15 % to test that setting alone. Runs have the weights after their
    last update. A stopped sweep goes on with --resume FOLDER.
    """

    trainer = TrainPPO

    training: PPORunFlags
    hypers: PPOFlags[Values]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepDQN(_Sweep):
    """Trains a dueling DQN with every combination of hyperparameters, each with several seeds, all side by side in one program.

    Give a flag of the groups DQN and reward several values: --tau 0.001 0.01. The bars are split by time: 70 % to train, 15 % to
    choose the setting with the best mean of its seeds, 15 % to test that setting alone. Runs have the weights after their last
    update. A stopped sweep goes on with --resume FOLDER.
    """

    trainer = TrainDQN

    training: DQNRunFlags
    hypers: DQNFlags[Values]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumeSweep:
    """Goes on with a sweep from its last checkpoint, with its own grid, and tests the chosen setting."""

    agent: ClassVar[str] = "ppo"

    resume: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """Folder of the sweep."""
    data: tyro.conf.Positional[
        Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: as the sweep began)")]
    ] = None
    """Where the sweep's price file is now, if it was moved."""
    devices: Devices = None
    """Devices of this host to divide the runs over."""
    json: bool = False
    """Print JSON."""

    def run(self, command_line: str) -> int:
        """Trains, chooses and tests; the exit code."""
        del command_line
        plan = read_plan(self.resume)
        check_agent("sweep", self.resume, plan["agent"], self.agent)
        config = config_of(plan)
        prepared = prepare(load_again(plan, [] if self.data is None else [self.data]), own_features(plan))
        seeds = range(plan["seed"], plan["seed"] + len(plan["keys"]))
        return _finish(prepared, config, plan["grid"], seeds, self.resume, self.json, devices=self.devices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ResumeDQNSweep(ResumeSweep):
    __doc__ = ResumeSweep.__doc__
    agent = "dqn"


def _finish(
    prepared: Prepared,
    config: AgentConfig,
    grid: Mapping[str, Values],
    seeds: range,
    folder: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Trains what is left to train, and tests the chosen setting; `options` are those of `sweep`."""
    import jax
    import jax.numpy as jnp

    keys = jax.vmap(jax.random.key)(jnp.arange(seeds.start, seeds.stop, dtype=jnp.uint32))
    train, validation = (prepared.markets[name] for name in ("train", "validation"))
    try:
        result = sweep(train, config, grid, keys, validation, folder=folder, **options)
    except StoppedError as stop:
        agent = read_plan(folder)["agent"]
        print(f"go on with: jaxrl-trade sweep {agent} --resume {shlex.quote(str(folder))}", file=sys.stderr)
        return 130 if stop.signal == "SIGINT" else 0
    (instrument,) = prepared.instruments
    test = instrument.ranges["test"]
    assert test is not None  # prepare has refused so few bars
    plan = read_plan(folder)
    with working("backtesting the chosen setting"):
        report = result.backtest(instrument.bars, test.first, test.end, seed=seeds[0], trials=plan.get("trials"))
    report.save(folder)
    page = folder
    try:
        page = report.to_html(folder / "report.html", provenance=reproduction(plan, str(plan.get("command", ""))))
    except ImportError as error:
        print(f"no report.html: {error}", file=sys.stderr)
    print(json.dumps(whole_as_json(report, folder, page), indent=2) if as_json else report.summary())
    print(page, file=sys.stderr if as_json else sys.stdout)
    return 0


def _check_seeds(first: int, count: int, settings: int) -> None:
    """Refuses seeds that are none, too many runs, and what `key_of` refuses.

    Raises:
      ValueError: says which.
    """
    if count < 1:
        raise ValueError(f"seeds = {count} must be at least 1")
    if settings * count > MOST_RUNS:
        raise ValueError(
            f"{settings} settings x {count} seeds are {settings * count:,} runs, a sweep takes at most {MOST_RUNS:,}; "
            "give fewer seeds or values"
        )
    key_of(first)
    if first + count > 2**32:
        raise ValueError(f"seed = {first} and the {count - 1} after it must be below 2**32")


def _each(flags: Any, change: Callable[[Any], Any]) -> Any:
    """A group of flags with the values changed of those that may be swept."""
    swept = [field.name for field in dataclasses.fields(flags) if field.type == Value.__name__]
    return dataclasses.replace(flags, **{name: change(getattr(flags, name)) for name in swept})


def _check_single(words: list[str], config: AgentConfig) -> None:
    """Refuses several numbers for a flag that all runs share."""
    swept = sweepable(config)
    fixed = {
        field.name
        for part in (config, config.env, config.hypers)
        for field in dataclasses.fields(part)
        if isinstance(getattr(part, field.name), (int, float))
    } - set(swept)
    for i, word in enumerate(words):
        name = word.removeprefix("--").replace("-", "_")
        values = list(itertools.takewhile(_is_number, words[i + 1 :]))
        if word.startswith("--") and name in fixed and len(values) > 1:
            settings_of({name: [float(value) for value in values]}, config)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _print_data(prepared: Prepared, as_json: bool) -> None:
    print("\n".join(prepared.lines()), file=sys.stderr if as_json else sys.stdout, flush=True)
