"""Parameters of an agent's networks, plain pytrees in a frozen dataclass, and how they begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_trade.config import N_PORTFOLIO, AgentConfig, DQNConfig, PPOConfig
from jaxrl_trade.networks import factory

Array = jax.Array
T = TypeVar("T")
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

    def init(key: Array) -> PPOParams:
        obs = jnp.zeros(n_features + N_PORTFOLIO)
        key_actor, key_critic, key_curiosity = jax.random.split(key, 3)
        return PPOParams(
            actor=factory.actor(config).init(key_actor, obs)["params"],
            critic=factory.critic(config).init(key_critic, obs)["params"],
            curiosity=_init_curiosity(key_curiosity, config, n_features),
        )

    return _one_after_the_other(init, key)


def init_dqn(key: Array, config: DQNConfig, n_features: int = N_FEATURES) -> DQNParams:
    """Fresh weights of DQN for a market of `n_features` features."""

    def init(key: Array) -> DQNParams:
        obs = jnp.zeros(n_features + N_PORTFOLIO)
        key_dueling, key_curiosity = jax.random.split(key, 2)
        return DQNParams(
            dueling=factory.dueling(config).init(key_dueling, obs)["params"],
            curiosity=_init_curiosity(key_curiosity, config, n_features),
        )

    return _one_after_the_other(init, key)


def _one_after_the_other(init: Callable[[Array], T], key: Array) -> T:
    """`init(key)`, also under vmap one key at a time.

    A batch of QR decompositions, of which orthogonal weights are made, divides itself over XLA's threads on a CPU and waits for
    them in one of them. Two layers' batches on two cores wait for each other for ever (JAX 0.10.2, 0.11.2).
    """
    return jax.custom_batching.sequential_vmap(init)(key)


def _init_curiosity(key: Array, config: AgentConfig, n_features: int) -> Any:
    forward = factory.curiosity(config, n_features)
    return forward.init(key, jnp.zeros(forward.outputs + factory.DIRECTIONS))["params"]
