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
    """L steps of N episodes, every leaf `[L, N]`; what a `reward_fn` sees."""

    bar: Array  # int32, t: the observation and the trade are at its close
    step: Array  # int32, steps since the episode began, before this one
    action: Array  # int32
    log_prob: Array
    equity_before: Array  # currency, at close[t], before the trade
    equity_after: Array  # currency, at close[t+1], before any restart
    position_before: Array  # units
    position: Array  # units, after the trade
    max_position: Array  # units
    trade: Array  # units
    cost: Array  # currency
    slippage: Array  # currency
    base: Array  # reward units: 1000 is one unit of log return
    barrier_label: Array  # -1, 0 or 1
    diversity_penalty: Array  # in [-1, 0]
    curiosity_bonus: Array  # in [0, curiosity_max_reward]
    drawdown: Array  # fraction of initial_capital, at the observation
    terminated: Array  # bool
    truncated: Array  # bool


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
    """What PPO learns from."""

    values: Array  # V(obs_t), reward units
    next_values: Array  # V(next_obs_t) before any restart; meaningless where terminated
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
