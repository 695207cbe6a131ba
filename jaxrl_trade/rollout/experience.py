"""What a collection hands over: bars and account values per step, `[L, N]`; market features are gathered when they are needed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_trade.config import EnvConfig
from jaxrl_trade.env.trading import observation
from jaxrl_trade.market import Market

Array = jax.Array


@struct.dataclass
class Transitions:
    """L steps of N episodes, every leaf `[L, N]`; what a `reward_fn` sees.

    Attributes:
      bar: int32, t; the observation and the trade are at its close.
      step: int32, steps since the episode began, before this one.
      action: int32, the column of the policy's outputs.
      log_prob: of the action under the policy that took it.
      equity_before: currency, at close[t], before the trade.
      equity_after: currency, at close[t+1], before any restart.
      position_before: units, negative when short.
      position: units, after the trade.
      max_position: units that full exposure is.
      trade: units bought, negative when sold.
      cost: currency; fee and the distance from the reference price, negative for a price improvement.
      slippage: currency; from the close to the reference price.
      base: reward units, of which 1000 are one unit of log return.
      barrier_label: -1, 0 or 1, of the triple barrier.
      diversity_penalty: in [-1, 0].
      curiosity_bonus: in [0, curiosity_max_reward].
      drawdown: fraction of initial_capital, at the observation.
      terminated: bool; the account is ruined.
      truncated: bool; the episode's time is over, without ruin.
    """

    bar: Array
    step: Array
    action: Array
    log_prob: Array
    equity_before: Array
    equity_after: Array
    position_before: Array
    position: Array
    max_position: Array
    trade: Array
    cost: Array
    slippage: Array
    base: Array
    barrier_label: Array
    diversity_penalty: Array
    curiosity_bonus: Array
    drawdown: Array
    terminated: Array
    truncated: Array


class Batch(NamedTuple):
    """The plan's flat batch, `[N x L, ...]`, episode after episode."""

    states: Array  # [N L, F + 3]
    actions: Array
    log_probs: Array
    advantages: Array
    returns: Array
    dones: Array


@struct.dataclass
class Collection:
    """One collection, every leaf `[L, N]`: the transitions and their rewards, to which each agent adds its own."""

    transitions: Transitions
    rewards: Array
    env: EnvConfig = struct.field(pytree_node=False)

    def __getattr__(self, name: str) -> Array:
        """Every part of the transitions by its own name."""
        if name in Transitions.__dataclass_fields__:
            return getattr(self.transitions, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def actions(self) -> Array:
        """`[L, N]` int32."""
        return self.transitions.action

    @property
    def log_probs(self) -> Array:
        """`[L, N]`, of the actions under the policy that took them."""
        return self.transitions.log_prob

    @property
    def portfolio(self) -> Array:
        """`[L, N, 3]`: equity / initial_capital, position / max_position, spread, at the observation."""
        return account_values(self.transitions, self.env)

    def observations(self, market: Market) -> Array:
        """`[L, N, F + 3]`."""
        return observations(self.transitions, market, self.env)


@struct.dataclass
class Experience(Collection):
    """What PPO learns from, every leaf `[L, N]`.

    Attributes:
      transitions: what happened, see `Transitions`; each of its parts is also here by its own name.
      rewards: what the agent is trained on, reward units.
      values: V(obs_t), reward units.
      next_values: V(next_obs_t) before any restart; meaningless where terminated.
      advantages: of the actions, generalised advantage estimates (GAE), reward units.
      returns: advantages + values, what the critic learns.
    """

    values: Array
    next_values: Array
    advantages: Array
    returns: Array

    def flatten(self, market: Market) -> Batch:
        """The plan's batch, `[N x L, ...]`, episode after episode."""

        def flat(x: Array) -> Array:
            return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])

        t = self.transitions
        return Batch(
            states=flat(self.observations(market)),
            actions=flat(t.action),
            log_probs=flat(t.log_prob),
            advantages=flat(self.advantages),
            returns=flat(self.returns),
            dones=flat(t.terminated | t.truncated),
        )


def account_values(t: Transitions, config: EnvConfig) -> Array:
    """The observations' account values, `[L, N, 3]`."""
    spread = jnp.full_like(t.equity_before, config.spread)
    return jnp.stack([t.equity_before / config.initial_capital, t.position_before / t.max_position, spread], axis=-1)


def observations(t: Transitions, market: Market, config: EnvConfig) -> Array:
    """The observations acted on, `[L, N, F + 3]`."""
    equity, position = t.equity_before / config.initial_capital, t.position_before / t.max_position
    return observation(market.features_at(t.bar), equity, position, config)
