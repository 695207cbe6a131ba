"""What DQN keeps of a collection: rows that refer to the market's bars instead of copying its features."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_trade.config import EnvConfig
from jaxrl_trade.env import account as accounts
from jaxrl_trade.env.trading import observation
from jaxrl_trade.market import Market
from jaxrl_trade.rollout.experience import Collection, Transitions

Array = jax.Array


@struct.dataclass
class Reference:
    """Observations but for the market's part, every leaf `[...]`."""

    bar: Array  # int32
    equity: Array  # fraction of initial_capital
    position: Array  # fraction of max_position

    def observe(self, market: Market, config: EnvConfig) -> Array:
        """The observations `[..., F + 3]`."""
        return observation(market.features_at(self.bar), self.equity, self.position, config)


@struct.dataclass
class Memory:
    """Rows of the replay, every leaf `[...]`: what was seen and done, and the bundle of steps that followed."""

    seen: Reference
    action: Array  # int32
    reward: Array  # of the m steps bundled, discounted, reward units
    discount: Array  # gamma^m, 0 where the last of them terminated
    then: Reference  # what followed the last of them, before any restart


@struct.dataclass
class DQNExperience(Collection):
    """What DQN learns from."""

    memory: Memory  # [L, N]
    targets: Array  # y, reward units
    td_errors: Array  # Q(obs_t, a_t) - y, the rows' first priorities


def seen(t: Transitions, config: EnvConfig) -> Reference:
    """The observations acted on, `[L, N]`."""
    return Reference(
        bar=t.bar, equity=t.equity_before / config.initial_capital, position=t.position_before / t.max_position
    )


def then(t: Transitions, last: Array, market: Market, config: EnvConfig) -> Reference:
    """The observations after the steps in rows `last [L, N]` of the same lane, before any restart."""
    size = accounts.size_at(t.equity_after, market.close_at(t.bar + 1), t.max_position, config)
    following = Reference(bar=t.bar + 1, equity=t.equity_after / config.initial_capital, position=t.position / size)
    return jax.tree.map(lambda x: jnp.take_along_axis(x, last, axis=0), following)
