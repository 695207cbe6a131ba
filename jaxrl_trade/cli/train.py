"""`jaxrl-trade train ppo`: bars, features, splits, training with validation, and a backtest on the bars it never saw."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import jax
import tyro

from jaxrl_trade.cli.backtest import reproduction, save
from jaxrl_trade.cli.data import Prepared, ReadFlags, load, load_again, prepare
from jaxrl_trade.config import AgentConfig, ComputeDtype, Fill, PPOConfig, RewardBase, Schedule, Sizing, TimeLimit
from jaxrl_trade.train.loop import TrainResult, train_agent, train_ppo
from jaxrl_trade.train.run import load_config, read_facts

Preset = Literal["net", "plan"]
PRESETS: dict[str, Callable[..., PPOConfig]] = {"net": PPOConfig.net, "plan": PPOConfig}
# sized for a laptop's CPU and a demo of a few minutes; a GPU takes many more episodes
SIZES = {"updates": 100, "n_episodes": 32, "timesteps_per_episode": 250}
Flags = TypeVar("Flags")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFlags:
    """Size and pace of training."""

    updates: int
    """Collections, each followed by an update of the networks."""
    n_episodes: int
    """Episodes side by side."""
    timesteps_per_episode: int
    """Bars per collection."""
    epochs: int
    """Passes over a collection."""
    minibatches: int
    """Per epoch."""
    schedule: Schedule
    """Of the learning rates."""
    target_kl: Annotated[float | None, tyro.conf.arg(metavar="NATS")]
    """Ends an update early once the policy has moved this far."""
    value_clip: Annotated[float | None, tyro.conf.arg(metavar="REWARD")]
    """Clips the change of a value prediction."""
    compute_dtype: ComputeDtype
    """Precision of the matrix products."""
    actor_hidden: tuple[int, ...]
    """Widths of the actor's hidden layers."""
    critic_hidden: tuple[int, ...]
    """Widths of the critic's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HyperFlags:
    """PPO."""

    learning_rate: float
    """Of actor and critic (Adam)."""
    curiosity_learning_rate: float
    """Of the curiosity model (Adam)."""
    clip: float
    """Of the probability ratio."""
    entropy_coef: float
    """Weight of the entropy bonus."""
    value_coef: float
    """Weight of the value loss."""
    max_grad_norm: float
    """Global norm, for actor and critic each."""
    gamma: float
    """Discount per bar."""
    gae_lambda: float
    """Of the advantages, per bar."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardFlags:
    """Weights of the reward's parts; 1000 is one unit of log return."""

    barrier_scale: float
    """Of the triple barrier."""
    diversity_scale: float
    """Of the penalty for always doing the same."""
    curiosity_scale: float
    """Of the curiosity bonus."""
    curiosity_max_reward: float
    """Cap of the curiosity bonus."""
    risk_weight: float
    """Of the drawdown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountFlags:
    """Rules of the account."""

    initial_capital: float
    """Currency."""
    sizing: Sizing
    """Largest position: in units, or a multiple of the capital."""
    max_position: float
    """Units, with sizing units."""
    leverage: float
    """Multiple of the capital, with sizing leverage."""
    spread: float
    """Fraction of the price."""
    fill: Fill
    """Takers trade at this close, or at the next open."""
    reward_base: RewardBase
    """Log return of the price in the position's direction, or of the equity after costs."""
    time_limit: TimeLimit
    """An episode's last value is 0, or the critic's."""
    reserve_fraction: Annotated[float | None, tyro.conf.arg(metavar="FRACTION")]
    """Of the capital, kept in cash."""
    ruin_fraction: float
    """Of the capital, at which an episode ends."""
    episode_length: int
    """Bars."""
    barrier_profit_mult: float
    """Multiple of the entry price."""
    barrier_loss_mult: float
    """Multiple of the entry price."""
    barrier_max_bars: int
    """Bars held before a barrier expires."""
    diversity_window: int
    """Actions looked back on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainPPO:
    """Trains a PPO agent, chooses the weights that do best on validation bars after costs, and backtests them on test bars.

    The bars are split by time: 70 % to train, 15 % to validate, 15 % to test. Ctrl-C ends training with a checkpoint;
    `--resume RUN [--updates N] [--data FILE]` goes on from it.
    """

    data: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: the bundled sample)")] = (
        None
    )
    """Price file: CSV (also compressed), Parquet or Arrow."""
    read: ReadFlags = dataclasses.field(default_factory=ReadFlags)
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: a fresh one in runs/)")
    ] = None
    """Folder of the run."""
    seed: int = 0
    """The run is a function of it, of the bars and of the flags."""
    checkpoint_every: Annotated[
        int | None, tyro.conf.arg(metavar="UPDATES", help_behavior_hint="(default: a twentieth of the run)")
    ] = None
    """Updates between checkpoints, and between validations."""
    preset: Preset = "net"
    """The defaults of all flags below: costs count, or the figures of the original plan."""
    training: RunFlags
    ppo: HyperFlags
    reward: RewardFlags
    account: AccountFlags

    @classmethod
    def choose(cls, words: list[str]) -> tuple[type, Any]:
        """The class that these words fill, and its defaults: those of the preset, or none for a run to resume."""
        given = dict(itertools.pairwise([part for word in words for part in word.split("=", 1)] + [""]))
        if "--resume" in given:
            return ResumePPO, None
        preset: Preset = "plan" if given.get("--preset") == "plan" else "net"  # tyro refuses another word itself
        config = PRESETS[preset](**SIZES)
        return cls, cls(
            preset=preset,
            training=_flags(RunFlags, config),
            ppo=_flags(HyperFlags, config.hypers),
            reward=_flags(RewardFlags, config.hypers.reward),
            account=_flags(AccountFlags, config.env),
        )

    def config(self) -> PPOConfig:
        """The preset with the flags."""
        preset = PRESETS[self.preset]()
        reward = dataclasses.replace(preset.hypers.reward, **vars(self.reward))
        hypers = dataclasses.replace(preset.hypers, **vars(self.ppo), reward=reward)
        env = dataclasses.replace(preset.env, **vars(self.account))
        return dataclasses.replace(preset, **vars(self.training), env=env, hypers=hypers)

    def run(self, command_line: str) -> int:
        """Trains and backtests; the exit code."""
        config, options = self.config(), self.read.options()
        prepared = prepare(load(self.data, options))
        print("\n".join(prepared.lines()), flush=True)
        prepared.markets["train"].valid_starts(config.env.episode_length)  # before there is a folder
        folder = self.out or _fresh_folder(f"ppo-{prepared.bars.symbol}-{self.preset}")
        facts = {"command": command_line, "seed": self.seed, "data": prepared.facts(self.data, options)}
        result = train_ppo(
            prepared.markets["train"],
            config,
            jax.random.key(self.seed),
            prepared.markets["validation"],
            folder=folder,
            checkpoint_every=self.checkpoint_every,
            facts=facts,
        )
        return _finish(result, prepared, config, folder)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumePPO:
    """Goes on with a run from its last checkpoint, with its own settings, and backtests it as `train ppo` does."""

    resume: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    updates: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: as the run began)")] = None
    """Updates in all, to go further than planned."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: as the run began)")] = None
    """Where the run's price file is now, if it was moved."""
    checkpoint_every: Annotated[
        int | None, tyro.conf.arg(metavar="UPDATES", help_behavior_hint="(default: a twentieth of the run)")
    ] = None
    """Updates between checkpoints, and between validations."""

    def run(self, command_line: str) -> int:
        """Trains and backtests; the exit code."""
        del command_line
        facts, config = read_facts(self.resume), load_config(self.resume)
        if self.updates is not None:
            config = dataclasses.replace(config, updates=self.updates)
        prepared = prepare(load_again(facts, self.data))
        result = train_agent(
            prepared.markets["train"],
            config,
            jax.random.key(facts["seed"]),
            prepared.markets["validation"],
            folder=self.resume,
            resume=True,
            checkpoint_every=self.checkpoint_every,
        )
        return _finish(result, prepared, config, self.resume)


def _finish(result: TrainResult, prepared: Prepared, config: AgentConfig, folder: Path) -> int:
    """The backtest on the test bars and its report; or how to resume, when somebody stopped the training."""
    from jaxrl_trade.backtesting import backtest

    if result.stopped_by is not None:
        print(f"resume with: jaxrl-trade train ppo --resume {folder}", file=sys.stderr)
        return 130 if result.stopped_by == "SIGINT" else 0
    test, facts = prepared.ranges["test"], read_facts(folder)
    choice = str(result.choice)
    report = backtest(result.policy, prepared.bars, config, test.first, test.end, checkpoint=choice, seed=facts["seed"])
    print(report.summary())
    print(save(report, folder / "test", folder, result.history, reproduction(facts, facts["command"])))
    return 0


def _flags(kind: type[Flags], source: Any) -> Flags:
    return kind(**{field.name: getattr(source, field.name) for field in dataclasses.fields(kind)})  # type: ignore[arg-type]


def _fresh_folder(name: str) -> Path:
    """runs/NAME, or the first of runs/NAME-2, runs/NAME-3, ... that does not exist; made, so that nobody else takes it."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lower()
    for i in itertools.count(1):
        folder = Path("runs") / (name if i == 1 else f"{name}-{i}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("itertools.count ends never")
