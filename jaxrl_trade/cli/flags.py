"""The flags of training, a dataclass for each group in `--help`. Names and meaning are the config's; so are the defaults.

What a sweep may vary without another compilation has the type `Value`: a number for a run, several for a sweep.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Generic, TypeVar

import tyro

from jaxrl_trade.config import ComputeDtype, Fill, RewardBase, Schedule, Sizing, TimeLimit

Flags = TypeVar("Flags")
Value = TypeVar("Value", float, tuple[float, ...])


def flags_of(kind: type[Flags], source: Any) -> Flags:
    """A group of flags with the values that a config has."""
    return kind(**{field.name: getattr(source, field.name) for field in dataclasses.fields(kind)})  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPORunFlags:
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
class PPOFlags(Generic[Value]):
    """PPO."""

    learning_rate: Value
    """Of actor and critic (Adam)."""
    curiosity_learning_rate: Value
    """Of the curiosity model (Adam)."""
    clip: Value
    """Of the probability ratio."""
    entropy_coef: Value
    """Weight of the entropy bonus."""
    value_coef: Value
    """Weight of the value loss."""
    max_grad_norm: Value
    """Global norm, for actor and critic each."""
    gamma: Value
    """Discount per bar."""
    gae_lambda: Value
    """Of the advantages, per bar."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DQNRunFlags:
    """Size and pace of training."""

    updates: int
    """Collections, each followed by gradient steps on the replay."""
    n_episodes: int
    """Episodes side by side."""
    timesteps_per_episode: int
    """Bars per collection."""
    train_every: int
    """Environment steps (of all episodes) per gradient step."""
    batch_size: int
    """Experiences per gradient step."""
    replay_capacity: int
    """Experiences."""
    learning_starts: int
    """Experiences in the replay before the first gradient step."""
    n_step: int
    """Rewards bundled into one target."""
    double: bool
    """The online network chooses the action that the target network values."""
    compute_dtype: ComputeDtype
    """Precision of the matrix products."""
    shared_hidden: tuple[int, ...]
    """Widths of the layers that both streams share."""
    head_hidden: int
    """Width of each stream's own layer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DQNFlags(Generic[Value]):
    """DQN."""

    learning_rate: Value
    """Of the dueling network (Adam)."""
    curiosity_learning_rate: Value
    """Of the curiosity model (Adam)."""
    max_grad_norm: Value
    """Global norm."""
    gamma: Value
    """Discount per bar."""
    tau: Value
    """How far the target network goes towards the online one, per gradient step."""
    priority_exponent: Value
    """0 replays uniformly, 1 in proportion to the TD error."""
    importance_start: Value
    """Exponent of the importance weights, at the beginning."""
    importance_end: Value
    """And at the end."""
    epsilon_start: Value
    """Probability of a random action, at the beginning."""
    epsilon_end: Value
    """And once it has fallen."""
    epsilon_fraction: Value
    """Of the updates, over which it falls."""
    huber_delta: float
    """Reward units beyond which the loss is linear."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardFlags(Generic[Value]):
    """Weights of the reward's parts; 1000 is one unit of log return."""

    barrier_scale: Value
    """Of the triple barrier."""
    diversity_scale: Value
    """Of the penalty for always doing the same."""
    curiosity_scale: Value
    """Of the curiosity bonus."""
    curiosity_max_reward: Value
    """Cap of the curiosity bonus."""
    risk_weight: Value
    """Of the drawdown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountFlags:
    """Rules of the account."""

    initial_capital: float
    """Currency."""
    sizing: Sizing
    """Largest position: in units, a multiple of the initial capital, or of the equity at each close."""
    max_position: float
    """Units, with sizing units."""
    leverage: float
    """Multiple of the capital with sizing leverage, of the equity with equity."""
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
