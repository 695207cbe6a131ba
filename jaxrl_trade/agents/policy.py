"""A policy is a function from observations to logits, with the weights beside it so that new ones do not recompile."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
from flax import struct

from jaxrl_trade import networks
from jaxrl_trade.agents.origin import Origin
from jaxrl_trade.config import DQNConfig, PPOConfig

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.agents.live import Decision
    from jaxrl_trade.bars import Bars

Array = jax.Array


@struct.dataclass
class Policy:
    """`policy(obs [N, F + 3]) -> logits [N, A]`; a pytree whose leaves are the weights.

    `origin` is what it was trained on; `load_policy` and training set it, and `act` and `export` need it.
    """

    params: Any
    apply: Callable[[Any, Array], Array] = struct.field(pytree_node=False)
    origin: Origin | None = struct.field(pytree_node=False, default=None)

    def __call__(self, obs: Array) -> Array:
        """Logits `[N, A]` of observations `[N, F + 3]`."""
        return self.apply(self.params, obs)

    def act(
        self,
        bars: Bars | pd.DataFrame,
        position: float = 0.0,
        equity: float | None = None,
        *,
        capital: float | None = None,
        max_position: float | None = None,
        now: datetime.datetime | str | None = None,
        max_age: datetime.timedelta | str | None = None,
        allow_gaps: bool = False,
    ) -> Decision:
        """What to do after the newest bar: the greedy action, as the backtest takes it, in a live loop.

        Args:
          bars: clean bars up to the newest closed one, at least `bars.HISTORY` (1,024) of them, of which the last count; a frame
            with open, high, low, close and volume under an ascending index of times (UTC where it names no zone) is read as it
            is, any other by `Bars.from_frame`. A bar that is still forming must not be among them.
          position: units held now, negative when short.
          equity: currency, cash + position x newest close; None is `capital`.
          capital: currency that the account began with, which the policy sees as an equity of 1; None is the run's initial_capital.
            The backtest renews it every `episode_length` bars from the equity: so should a long session.
          max_position: units of a full position; None sizes it at the newest close, by the config's rule.
          now: the present, UTC where it names no zone, to refuse a stale history; None does not check.
          max_age: how much older than `now` the newest bar may be; None is just below two bars. Longer where the market was closed.
          allow_gaps: takes steps between bars that the bars trained on never made.
        Raises:
          ValueError: a history that is short, gapped, unordered, unclean, stale, or of other bars than the policy was trained on; a
            policy whose origin is not known, or that sees features of its own.
        """
        from jaxrl_trade.agents import live

        return live.decide(
            self,
            bars,
            live.Holding(position=position, equity=equity, capital=capital, max_position=max_position),
            now=now,
            max_age=max_age,
            allow_gaps=allow_gaps,
        )

    def export(self, folder: str | Path) -> list[Path]:
        """Writes the policy for use without this package; see `agents.export` for the files.

        Raises:
          OSError: they cannot be written.
          ValueError: a policy whose origin is not known.
        """
        from jaxrl_trade.agents import export

        return export.export(self, folder)


def actor_policy(actor_params: Any, config: PPOConfig) -> Policy:
    """The policy of PPO's actor."""
    return Policy(params=actor_params, apply=_Apply(networks.actor(config)))


def q_policy(dueling_params: Any, config: DQNConfig) -> Policy:
    """The policy of DQN: its logits are Q, reward units, so the first largest is the greedy action."""
    return Policy(params=dueling_params, apply=_Apply(networks.dueling(config)))


@struct.dataclass
class _Apply:
    """Flax's `apply` as a value: equal for equal modules, so that a jitted caller does not trace again."""

    module: networks.MLP | networks.Dueling | networks.Own

    def __call__(self, params: Any, obs: Array) -> Array:
        return self.module.evaluate(params, obs)

    def plain(self, params: Any, obs: Array) -> Array:
        """The same by Flax alone: without kernels, which only some devices have."""
        return cast(Array, self.module.apply({"params": params}, obs))
