"""Parameters of an agent's networks, plain pytrees in a frozen dataclass, and how they begin."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_trade.config import N_PORTFOLIO, AgentConfig, DQNConfig, PPOConfig
from jaxrl_trade.networks import factory

Array = jax.Array
N_FEATURES = 51  # as shipped; see bars/features.py


@struct.dataclass
class PPOParams:
    """Weights of the three networks, `{layer: {kernel [in, out], bias [out]}}` each."""

    actor: Any
    critic: Any
    curiosity: Any


@struct.dataclass
class DQNParams:
    """Weights of the two networks, `{layer: {kernel [in, out], bias [out]}}` each."""

    dueling: Any
    curiosity: Any


def init_ppo(key: Array, config: PPOConfig, n_features: int = N_FEATURES) -> PPOParams:
    """Fresh weights of PPO for a market of `n_features` features."""
    key_actor, key_critic, key_curiosity = jax.random.split(key, 3)
    obs = jnp.zeros(n_features + N_PORTFOLIO)
    return PPOParams(
        actor=factory.actor(config).init(key_actor, obs)["params"],
        critic=factory.critic(config).init(key_critic, obs)["params"],
        curiosity=_init_curiosity(key_curiosity, config, n_features),
    )


def init_dqn(key: Array, config: DQNConfig, n_features: int = N_FEATURES) -> DQNParams:
    """Fresh weights of DQN for a market of `n_features` features."""
    key_dueling, key_curiosity = jax.random.split(key, 2)
    obs = jnp.zeros(n_features + N_PORTFOLIO)
    return DQNParams(
        dueling=factory.dueling(config).init(key_dueling, obs)["params"],
        curiosity=_init_curiosity(key_curiosity, config, n_features),
    )


def _init_curiosity(key: Array, config: AgentConfig, n_features: int) -> Any:
    forward = factory.curiosity(config, n_features)
    return forward.init(key, jnp.zeros(forward.outputs + factory.DIRECTIONS))["params"]
