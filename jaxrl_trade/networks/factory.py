"""The networks of a config: actor, critic, curiosity model, dueling Q.

Modules are cached, so equal configs share compiled functions.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from jaxrl_trade.config import AgentConfig, DQNConfig, PPOConfig
from jaxrl_trade.networks.mlp import MLP
from jaxrl_trade.networks.own import Own
from jaxrl_trade.networks.q_network import Dueling

CURIOSITY_FEATURES = 32  # the forward model sees and predicts at most this many market features
DIRECTIONS = 3  # short, flat, long


def actor(config: PPOConfig) -> MLP | Own:
    """Observation `[..., F + 3]` to logits `[..., A]`."""
    if config.network is not None:
        return _cached(Own, config.network, config.n_actions)
    return _mlp("policy", config.actor_hidden, config.n_actions, 0.01, config, _float())


def critic(config: PPOConfig) -> MLP | Own:
    """Observation `[..., F + 3]` to value `[..., 1]`, reward units."""
    if config.network is not None:
        return _cached(Own, config.network, 1)
    return _mlp("value", config.critic_hidden, 1, 1.0, config, _float())


def dueling(config: DQNConfig) -> Dueling | Own:
    """Observation `[..., F + 3]` to Q `[..., A]`, reward units."""
    if config.network is not None:
        return _cached(Own, config.network, config.n_actions)
    return _cached(
        Dueling,
        config.shared_hidden,
        config.head_hidden,
        config.n_actions,
        config.negative_slope,
        config.compute_dtype,
        config.backend,
        _float(),
    )


def curiosity(config: AgentConfig, n_features: int) -> MLP:
    """The forward model: min(32, F) features and a one-hot direction `[..., 35]` to the next bar's features `[..., 32]`."""
    return _mlp("forward", config.curiosity_hidden, min(CURIOSITY_FEATURES, n_features), 1.0, config, _float())


def _mlp(
    prefix: str, hidden: tuple[int, ...], outputs: int, output_scale: float, config: AgentConfig, param_dtype: Any
) -> MLP:
    return _cached(MLP, prefix, hidden, outputs, output_scale, config.negative_slope, config.compute_dtype, param_dtype)


@functools.cache
def _cached(module: type, *fields: Any) -> Any:
    return module(*fields)


def _float() -> Any:
    return jnp.result_type(float)  # float32, or float64 under jax_enable_x64
