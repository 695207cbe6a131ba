"""A policy is a function from observations to logits, with the weights beside it so that new ones do not recompile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import struct

from jaxrl_trade import networks
from jaxrl_trade.config import DQNConfig, PPOConfig

Array = jax.Array


@struct.dataclass
class Policy:
    """`policy(obs [N, F + 3]) -> logits [N, A]`; a pytree whose leaves are the weights."""

    params: Any
    apply: Callable[[Any, Array], Array] = struct.field(pytree_node=False)

    def __call__(self, obs: Array) -> Array:
        """Logits `[N, A]` of observations `[N, F + 3]`."""
        return self.apply(self.params, obs)


def actor_policy(actor_params: Any, config: PPOConfig) -> Policy:
    """The policy of PPO's actor."""
    return Policy(params=actor_params, apply=_Apply(networks.actor(config)))


def q_policy(dueling_params: Any, config: DQNConfig) -> Policy:
    """The policy of DQN: its logits are Q, reward units, so the first largest is the greedy action."""
    return Policy(params=dueling_params, apply=_Apply(networks.dueling(config)))


@struct.dataclass
class _Apply:
    """Flax's `apply` as a value: equal for equal modules, so that a jitted caller does not trace again."""

    module: networks.MLP | networks.Dueling

    def __call__(self, params: Any, obs: Array) -> Array:
        return self.module.evaluate(params, obs)
