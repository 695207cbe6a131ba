"""Every setting and its default: the rules of the account, the reward's scales, the agents' hyperparameters.

Two presets run through all of them: `plan` (the defaults of every class here) and `net` (the classmethods of that name).
Configs are frozen, hashable and compared by value, so they are static under `jit`; what one may sweep without recompiling is
a pytree of its own (`RewardScales`, `PPOHypers`, `DQNHypers`). Knows nothing of markets, networks or devices.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Self, get_args

import jax
import jax.numpy as jnp
from flax import struct

Scalar = float | jax.Array
COUNTABLE = 2**31  # steps, rows and updates are int32 on the device
N_PORTFOLIO = 3  # account values of an observation: equity / initial_capital, position / max_position, spread
Fill = Literal["close", "next_open"]
RewardBase = Literal["directional", "equity"]
TimeLimit = Literal["terminal", "bootstrap"]
Sizing = Literal["units", "leverage", "equity"]
ComputeDtype = Literal["float32", "tf32", "bfloat16"]
Backend = Literal["auto", "pallas", "interpret", "xla"]
Schedule = Literal["constant", "linear", "cosine"]


class Execution(NamedTuple):
    """How an order of each action is executed; every field `[A]` from the table, or `[N]` once looked up by action."""

    exposure: jax.Array  # target position, fraction of max_position, -1 to 1
    fee_rate: jax.Array  # fraction of the traded value
    fill_ratio: jax.Array  # fraction of the wanted trade that is filled
    price_offset: jax.Array  # in spreads, + is worse for the trader
    is_maker: jax.Array  # bool: fills only when the market trades through the limit price


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionTable:
    """What each action means. The number of actions is the length of these tuples; nothing else knows it.

    Any sequences of one length are accepted and kept as tuples of floats (`is_maker` of bools).

    Raises:
      ValueError: columns of different length, an exposure outside [-1, 1], a negative fee or a fill ratio outside [0, 1].
    """

    exposure: Sequence[float]  # target position, fraction of max_position
    fee_rate: Sequence[float]  # fraction of the traded value
    fill_ratio: Sequence[float]  # fraction of the wanted trade
    price_offset: Sequence[float]  # in spreads, + is worse
    is_maker: Sequence[bool]  # fills only on trade-through

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            convert = bool if field.name == "is_maker" else float
            object.__setattr__(self, field.name, tuple(convert(x) for x in getattr(self, field.name)))
        lengths = {f.name: len(getattr(self, f.name)) for f in dataclasses.fields(self)}
        if len(set(lengths.values())) != 1 or not self.n_actions:
            raise ValueError(
                f"every column of an ExecutionTable needs one entry per action; their lengths are {lengths}"
            )
        _check_all("exposure", self.exposure, lambda x: -1 <= x <= 1, "in [-1, 1]")
        _check_all("fee_rate", self.fee_rate, lambda x: 0 <= x < 1, "in [0, 1)")
        _check_all("fill_ratio", self.fill_ratio, lambda x: 0 <= x <= 1, "in [0, 1]")
        _check_all("price_offset", self.price_offset, math.isfinite, "finite")

    @property
    def n_actions(self) -> int:
        """A, the number of actions."""
        return len(self.exposure)

    def where(self, keep: Sequence[bool]) -> Self:
        """The actions for which `keep` `[A]` is true, in their order: the others are forbidden."""
        rows = [i for i, kept in enumerate(keep) if kept]
        return type(self)(**{f.name: [getattr(self, f.name)[i] for i in rows] for f in dataclasses.fields(self)})

    def long_only(self) -> Self:
        """The actions that want no short position."""
        return self.where([exposure >= 0 for exposure in self.exposure])

    def arrays(self, dtype: Any = float) -> Execution:
        """The table on the device, each column `[A]`; `dtype` of the float columns is JAX's default float unless given."""
        numbers = {name: jnp.asarray(getattr(self, name), dtype) for name in Execution._fields[:4]}
        return Execution(**numbers, is_maker=jnp.asarray(self.is_maker))

    @classmethod
    def plan(cls) -> Self:
        """45 actions that trade in full at the close; only the fee depends on the order type."""
        return cls._grid(
            fee_rate=(0.0015, 0.0005, 0.0010), fill_ratio=((1.0,) * 3,) * 3, price_offset=((0.0,) * 3,) * 3, maker=False
        )

    @classmethod
    def net(cls) -> Self:
        """45 actions with half a spread for takers, resting limit orders that may not fill, and partial ioc fills."""
        return cls._grid(
            fee_rate=(0.0005, 0.0001, 0.0005),
            fill_ratio=((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (0.5, 0.75, 1.0)),
            price_offset=((0.5, 0.5, 0.5), (-1.0, -0.75, -0.5), (0.5, 0.5, 0.5)),
            maker=True,
        )

    @classmethod
    def _grid(
        cls,
        fee_rate: Sequence[float],
        fill_ratio: Sequence[Sequence[float]],
        price_offset: Sequence[Sequence[float]],
        maker: bool,
    ) -> Self:
        """5 exposures x 3 orders (market, limit_maker, ioc) x 3 urgencies (patient, normal, aggressive), in that index order."""
        cells = [(e, o, u) for e in (-1.0, -0.5, 0.0, 0.5, 1.0) for o in range(3) for u in range(3)]
        return cls(
            exposure=[e for e, _, _ in cells],
            fee_rate=[fee_rate[o] for _, o, _ in cells],
            fill_ratio=[fill_ratio[o][u] for _, o, u in cells],
            price_offset=[price_offset[o][u] for _, o, u in cells],
            is_maker=[maker and o == 1 for _, o, _ in cells],
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Rules of the account; static under jit. The defaults are the preset plan, `EnvConfig.net()` is the other one."""

    execution: ExecutionTable = dataclasses.field(default_factory=ExecutionTable.plan)
    fill: Fill = "close"  # takers trade at close[t], or at open[t+1]
    reward_base: RewardBase = (
        "directional"  # 1000 x log return x sign of the position, or 1000 x log return of the equity
    )
    time_limit: TimeLimit = "terminal"  # at truncation: no bootstrap, or V of the observation before the reset
    sizing: Sizing = (
        # max_position units throughout; leverage x initial_capital at each episode's first close, or x the equity at each close
        "units"
    )
    max_position: float = 1.0  # units of the instrument, with sizing "units"
    leverage: float = 1.0  # multiple of initial_capital with sizing "leverage", of the equity with "equity"
    initial_capital: float = 1_000_000.0  # currency
    spread: float = 1e-4  # fraction of the price: one basis point
    reserve_fraction: float | None = 0.20  # of initial_capital, kept in cash; None switches the reserve off
    ruin_fraction: float = 0.0  # of initial_capital; an episode ends when equity is at or below it
    episode_length: int = 500  # bars
    barrier_profit_mult: float = 1.02  # multiple of the entry close
    barrier_loss_mult: float = 0.98  # multiple of the entry close
    barrier_max_bars: int = 500  # bars held before a barrier expires
    diversity_window: int = 100  # actions
    mask: Callable[..., jax.Array] | None = (
        None  # (account, execution, close) -> bool, elementwise: an order for which it is false is not placed
    )

    def __post_init__(self) -> None:
        for name, literal in (
            ("fill", Fill),
            ("reward_base", RewardBase),
            ("time_limit", TimeLimit),
            ("sizing", Sizing),
        ):
            _check_choice(name, getattr(self, name), get_args(literal))
        for name in ("max_position", "leverage", "initial_capital"):
            _check(name, getattr(self, name), lambda x: 0 < x < math.inf, "above 0")
        _check("barrier_profit_mult", self.barrier_profit_mult, lambda x: 1 < x < math.inf, "above 1")
        _check("barrier_loss_mult", self.barrier_loss_mult, lambda x: 0 < x < 1, "in (0, 1)")
        for name in ("episode_length", "barrier_max_bars", "diversity_window"):
            _check_count(name, getattr(self, name))
        _check("spread", self.spread, lambda x: 0 <= x < 1, "in [0, 1)")
        _check("ruin_fraction", self.ruin_fraction, lambda x: 0 <= x < 1, "in [0, 1)")
        if self.mask is not None and not callable(self.mask):
            raise ValueError(f"mask = {self.mask!r} must be a function (account, execution, close) -> bool, or None")
        if self.reserve_fraction is not None:
            _check("reserve_fraction", self.reserve_fraction, lambda x: 0 <= x <= 1, "in [0, 1], or None")

    @property
    def n_actions(self) -> int:
        """A, the number of actions of the execution table."""
        return self.execution.n_actions

    @classmethod
    def net(cls, **changes: Any) -> Self:
        """What somebody who cares about money wants: costs in the reward, honest fills, bootstrapped time limits."""
        preset = {
            "execution": ExecutionTable.net(),
            "fill": "next_open",
            "reward_base": "equity",
            "time_limit": "bootstrap",
            "sizing": "leverage",
            "reserve_fraction": None,
            "ruin_fraction": 0.1,
            "initial_capital": 10_000.0,
        }
        return cls(**{**preset, **changes})


@struct.dataclass
class RewardScales:
    """Weights of the reward's parts; traced, so a sweep does not recompile. Reward units: 1000 is one unit of log return."""

    barrier_scale: Scalar = 0.5
    diversity_scale: Scalar = 1.0
    curiosity_scale: Scalar = 1.0
    curiosity_max_reward: Scalar = 0.1
    risk_weight: Scalar = 0.1

    @classmethod
    def net(cls) -> Self:
        """Money first: no barrier factor, exploration terms a hundredth of plan's."""
        return cls(barrier_scale=0.0, diversity_scale=0.01, curiosity_scale=0.01)


@struct.dataclass
class PPOHypers:
    """What one may sweep in PPO; traced, so a sweep does not recompile."""

    reward: RewardScales = RewardScales()
    learning_rate: Scalar = 3e-4  # Adam, actor and critic
    curiosity_learning_rate: Scalar = 1e-3  # Adam
    clip: Scalar = 0.2  # of the probability ratio
    entropy_coef: Scalar = 0.01
    value_coef: Scalar = 0.5
    max_grad_norm: Scalar = 0.5  # global norm, for the actor and the critic each
    gamma: Scalar = 0.99  # per bar
    gae_lambda: Scalar = 0.95  # per bar


@struct.dataclass
class DQNHypers:
    """What one may sweep in DQN; traced, so a sweep does not recompile."""

    reward: RewardScales = RewardScales()
    learning_rate: Scalar = 2.5e-4  # Adam
    curiosity_learning_rate: Scalar = 1e-3  # Adam
    max_grad_norm: Scalar = 10.0  # global norm
    gamma: Scalar = 0.99  # per bar
    tau: Scalar = 0.005  # of the way the target network goes towards the online one, per gradient step
    priority_exponent: Scalar = 0.6  # alpha: 0 replays uniformly, 1 in proportion to |TD error|
    importance_start: Scalar = 0.4  # beta, the exponent of the importance weights, at the run's beginning
    importance_end: Scalar = 1.0  # and at its end
    epsilon_start: Scalar = 1.0  # probability of a random action
    epsilon_end: Scalar = 0.05
    epsilon_fraction: Scalar = 0.2  # of the run's updates, until epsilon_end is reached
    # reward units; beyond it the loss is linear. Static, alone of these: it is compiled into the loss kernel
    huber_delta: float = struct.field(pytree_node=False, default=1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """A PPO run; static under jit. The defaults are the preset plan, `PPOConfig.net()` is the other one."""

    env: EnvConfig = dataclasses.field(default_factory=EnvConfig)
    hypers: PPOHypers = PPOHypers()
    n_episodes: int = 128  # N, side by side
    timesteps_per_episode: int = 500  # L, bars per collection
    updates: int = 100  # collections in the whole run; the schedule's length too
    epochs: int = 4
    minibatches: int = 4  # per epoch
    schedule: Schedule = "constant"  # of the learning rates, over `updates`
    target_kl: float | None = None  # the rest of an update is skipped once a minibatch's KL exceeds it
    value_clip: float | None = None  # clips the change of a value prediction, reward units
    compute_dtype: ComputeDtype = "float32"  # of the matrix products; losses and optimiser state stay float32
    negative_slope: float = 0.01  # of the leaky ReLU
    actor_hidden: tuple[int, ...] = (128, 64)
    critic_hidden: tuple[int, ...] = (512, 384, 256, 128, 64)
    curiosity_hidden: tuple[int, ...] = (64,)
    reward_fn: Callable[..., jax.Array] | None = (
        None  # (transitions, scales, market, env) -> [L, N]; None is SPEC's reward
    )
    network: Callable[[int], Any] | None = (
        None  # outputs -> a flax.linen.Module of observations (actor and critic each); None is the package's own
    )

    def __post_init__(self) -> None:
        for name in ("n_episodes", "timesteps_per_episode", "updates", "epochs", "minibatches"):
            _check_count(name, getattr(self, name))
        for name in ("actor_hidden", "critic_hidden", "curiosity_hidden"):
            object.__setattr__(self, name, _widths(name, getattr(self, name)))
        _check_hypers("hypers", self.hypers)
        _check_choice("compute_dtype", self.compute_dtype, get_args(ComputeDtype))
        _check_functions(self.reward_fn, self.network)
        _check_choice("schedule", self.schedule, get_args(Schedule))
        _check("negative_slope", self.negative_slope, lambda x: 0 <= x < 1, "in [0, 1)")
        for name in ("target_kl", "value_clip"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), lambda x: 0 < x < math.inf, "above 0, or None")
        _check_collection(self.n_episodes, self.timesteps_per_episode)
        if self.total_experiences % self.minibatches:
            raise ValueError(
                f"minibatches = {self.minibatches} does not divide the {self.total_experiences} experiences of a collection "
                f"(n_episodes {self.n_episodes} x timesteps_per_episode {self.timesteps_per_episode}); choose a divisor"
            )

    @property
    def total_experiences(self) -> int:
        """L x N, the experiences of one collection."""
        return self.n_episodes * self.timesteps_per_episode

    @property
    def n_actions(self) -> int:
        """A, the number of actions."""
        return self.env.n_actions

    @classmethod
    def net(cls, **changes: Any) -> Self:
        """The preset net of the account and of the reward's scales."""
        return cls(**{"env": EnvConfig.net(), "hypers": PPOHypers(reward=RewardScales.net()), **changes})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """A DQN run; static under jit. The defaults are the preset plan, `DQNConfig.net()` is the other one."""

    env: EnvConfig = dataclasses.field(default_factory=EnvConfig)
    hypers: DQNHypers = DQNHypers()
    n_episodes: int = 32  # N, side by side
    timesteps_per_episode: int = 64  # L, bars per collection
    updates: int = 500  # collections in the whole run; the schedules' length too
    train_every: int = 4  # environment steps (of all N episodes) per gradient step
    batch_size: int = 256  # experiences per gradient step
    replay_capacity: int = 2**17  # experiences
    learning_starts: int = 2**13  # experiences in the replay before the first gradient step
    n_step: int = 3  # rewards bundled into one target
    double: bool = False  # the online network chooses the action that the target network values
    compute_dtype: ComputeDtype = "float32"  # of the products; kernels of the heads are float32 in any case
    backend: Backend = "auto"  # of the collection and of the dueling heads
    negative_slope: float = 0.01  # of the leaky ReLU
    shared_hidden: tuple[int, ...] = (256, 256)
    head_hidden: int = 128  # of the value stream and of the advantage stream
    curiosity_hidden: tuple[int, ...] = (64,)
    reward_fn: Callable[..., jax.Array] | None = (
        None  # (transitions, scales, market, env) -> [L, N]; None is SPEC's reward
    )
    network: Callable[[int], Any] | None = (
        None  # outputs -> a flax.linen.Module of observations to Q; None is the package's own
    )

    def __post_init__(self) -> None:
        counts = ("n_episodes", "timesteps_per_episode", "updates", "train_every", "batch_size", "replay_capacity")
        for name in (*counts, "n_step", "head_hidden"):
            _check_count(name, getattr(self, name))
        _check("learning_starts", self.learning_starts, lambda x: x >= 0, "at least 0")
        if not self.shared_hidden:
            raise ValueError(
                "shared_hidden = () leaves the streams of the dueling network nothing to share; give a width"
            )
        for name in ("shared_hidden", "curiosity_hidden"):
            object.__setattr__(self, name, _widths(name, getattr(self, name)))
        _check_hypers("hypers", self.hypers)
        _check_collection(self.n_episodes, self.timesteps_per_episode)
        _check_choice("compute_dtype", self.compute_dtype, get_args(ComputeDtype))
        _check_functions(self.reward_fn, self.network)
        _check_choice("backend", self.backend, get_args(Backend))
        _check("negative_slope", self.negative_slope, lambda x: 0 <= x < 1, "in [0, 1)")
        if self.timesteps_per_episode % self.train_every:
            raise ValueError(
                f"train_every = {self.train_every} does not divide timesteps_per_episode = {self.timesteps_per_episode}; "
                "choose a divisor"
            )
        for name in ("total_experiences", "learning_starts"):
            if getattr(self, name) > self.replay_capacity:
                raise ValueError(
                    f"replay_capacity = {self.replay_capacity} is below {name} = {getattr(self, name)}; raise it"
                )

    @property
    def total_experiences(self) -> int:
        """L x N, the experiences of one collection."""
        return self.n_episodes * self.timesteps_per_episode

    @property
    def gradient_steps(self) -> int:
        """Gradient steps after each collection."""
        return self.timesteps_per_episode // self.train_every

    @property
    def n_actions(self) -> int:
        """A, the number of actions."""
        return self.env.n_actions

    @classmethod
    def net(cls, **changes: Any) -> Self:
        """The preset net of the account and of the reward's scales."""
        return cls(**{"env": EnvConfig.net(), "hypers": DQNHypers(reward=RewardScales.net()), **changes})


AgentConfig = PPOConfig | DQNConfig


def _check(name: str, value: Any, accept: Callable[[Any], bool], wanted: str) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not accept(value):
        raise ValueError(f"{name} = {value!r} must be a number {wanted}")


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < COUNTABLE:
        raise ValueError(f"{name} = {value!r} must be a whole number of at least 1, and below 2**31")


def _check_collection(n_episodes: int, timesteps_per_episode: int) -> None:
    if n_episodes * timesteps_per_episode >= COUNTABLE:
        raise ValueError(
            f"n_episodes = {n_episodes} x timesteps_per_episode = {timesteps_per_episode} makes a collection of 2**31 "
            "experiences or more; lower one of them"
        )


def _check_functions(reward_fn: Any, network: Any) -> None:
    if reward_fn is not None and not callable(reward_fn):
        raise ValueError(
            f"reward_fn = {reward_fn!r} must be a function (transitions, scales, market, env) -> [L, N], or None"
        )
    if network is not None and not callable(network):
        raise ValueError(
            f"network = {network!r} must be a flax.linen.Module class or a function of the number of outputs, or None"
        )


def _widths(name: str, values: Any) -> tuple[int, ...]:
    """The widths of hidden layers as a tuple of ints."""
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ValueError(f"{name} = {values!r} must hold at least one width, such as (128, 64)")
    _check_all(name, values, lambda x: isinstance(x, numbers.Integral) and int(x) >= 1, "at least 1, and whole")
    return tuple(int(x) for x in values)


_FINITE: tuple[Callable[[Any], bool], str] = math.isfinite, "that is finite"
_ABOVE_0: tuple[Callable[[Any], bool], str] = lambda x: 0 < x < math.inf, "above 0"
_FROM_0: tuple[Callable[[Any], bool], str] = lambda x: 0 <= x < math.inf, "of at least 0"
_SHARE: tuple[Callable[[Any], bool], str] = lambda x: 0 <= x <= 1, "in [0, 1]"
_HYPERS = {
    **dict.fromkeys(("barrier_scale", "diversity_scale", "curiosity_scale", "risk_weight", "entropy_coef"), _FINITE),
    **dict.fromkeys(("clip", "max_grad_norm", "huber_delta"), _ABOVE_0),
    **dict.fromkeys(("learning_rate", "curiosity_learning_rate", "curiosity_max_reward", "value_coef"), _FROM_0),
    **dict.fromkeys(("priority_exponent", "importance_start", "importance_end"), _FROM_0),
    **dict.fromkeys(("gamma", "gae_lambda", "tau", "epsilon_start", "epsilon_end", "epsilon_fraction"), _SHARE),
}


def _check_hypers(name: str, hypers: Any) -> None:
    """Checks the numbers among hyperparameters; arrays are a sweep's, and traced ones have no value yet."""
    for field in dataclasses.fields(hypers):
        value, own_name = getattr(hypers, field.name), f"{name}.{field.name}"
        if dataclasses.is_dataclass(value):
            _check_hypers(own_name, value)
        elif isinstance(value, float) or not hasattr(value, "dtype"):
            _check(own_name, value, *_HYPERS[field.name])


def _check_all(name: str, values: Sequence[float], accept: Callable[[Any], bool], wanted: str) -> None:
    for i, value in enumerate(values):
        if not accept(value):
            raise ValueError(f"{name}[{i}] = {value} must be {wanted}")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} = {value!r} must be one of {', '.join(map(repr, choices))}")
