"""The sequential part of a collection: a network, the choice of an action and the account, nothing else."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

import pallas_kernels as pk
from jaxrl_trade import networks
from jaxrl_trade.config import AgentConfig, Backend, EnvConfig, Execution, PPOConfig
from jaxrl_trade.env.account import Account
from jaxrl_trade.market import Market
from jaxrl_trade.rollout import lanes

Array = jax.Array
Policy = Callable[[Array, Array], Array]  # bar [N], account values [N, 3] -> logits [N, A]
_log = logging.getLogger(__name__)


class SplitNetwork(Protocol):
    """A network whose first layer splits into a part of the bar and a part of the account; see `networks.mlp`."""

    def project(self, params: Any, features: Array) -> Array:
        """The features' part of the first layer."""

    def from_projection(self, params: Any, projected: Array, account_values: Array) -> Array:
        """The outputs, from that part and the account values."""

    def split(self, params: Any, features: Array, constants: Array) -> pk.SplitPolicy | None:
        """The network as the fused rollout takes it, or None where it cannot."""


def rollout(
    policy: Policy,
    choice: pk.Choice,
    market: Market,
    account: Account,
    draws: Array,
    restart_bars: Array,
    config: EnvConfig,
) -> tuple[Account, pk.Steps]:
    """Trades L steps of N episodes, as a `lax.scan`.

    Args:
      policy: logits of a bar and the account values.
      choice: what the logits mean and what the draws do, see `pk.rollout`.
      market: the bars.
      account: where the episodes stand.
      draws: `[L, N]`.
      restart_bars: `[L, N]` int32, where an episode that ends at that step starts afresh.
      config: the account's rules.

    Returns:
      The account after L steps, and the steps; their record is a `lanes.Record`.
    """
    constants = lanes.constants(config)

    def logits(bar: Array, values: tuple[Array, ...]) -> Array:
        rest = jnp.broadcast_to(constants.astype(values[0].dtype), (len(bar), len(constants)))
        return policy(bar, jnp.concatenate([jnp.stack(values, axis=-1), rest], axis=-1))

    return pk.scan_rollout(
        lanes.environment(config),
        logits,
        choice,
        *_tables(market, config),
        account,
        draws,
        _inside(restart_bars, market),
    )


def rollout_actor(
    params: Any,
    market: Market,
    account: Account,
    draws: Array,
    restart_bars: Array,
    config: PPOConfig,
    backend: Backend,
) -> tuple[Account, pk.Steps]:
    """`rollout_network` of PPO's actor; draws are `[L, N]` uniforms to sample with, or int32 actions."""
    actor = networks.actor(config)
    return rollout_network(actor, "softmax", params, market, account, draws, restart_bars, config, backend)


def rollout_network(
    network: SplitNetwork,
    choice: pk.Choice,
    params: Any,
    market: Market,
    account: Account,
    draws: Array,
    restart_bars: Array,
    config: AgentConfig,
    backend: Backend,
) -> tuple[Account, pk.Steps]:
    """`rollout` under a network: one launch of the fused kernel where there is a GPU, else the scan.

    Args:
      network: from observations to what `choice` chooses by.
      choice: as of `pk.rollout`.
      params: the network's weights.
      market: the bars.
      account: where the episodes stand.
      draws: `[L, N]`, as of `pk.rollout`.
      restart_bars: `[L, N]` int32.
      config: of the run.
      backend: "xla" is the scan; a network that the kernel cannot take goes there too, and the log says so.
    """
    mode = pk.resolve(backend, faster=True)
    if mode != "xla":
        split = network.split(params, market.features, lanes.constants(config.env))
        obstacle = _obstacle(split, config.env)
        if split is not None and obstacle is None:
            return pk.rollout(
                lanes.environment(config.env),
                split,
                *_tables(market, config.env),
                account,
                draws,
                _inside(restart_bars, market),
                negative_slope=config.negative_slope,
                choice=choice,
                products=config.compute_dtype,
                backend=mode,
            )
        _log_once(f"episodes are collected by a scan, not by the fused kernel: {obstacle}")
    policy = network_policy(network, params, market, draws.size)
    return rollout(policy, choice, market, account, draws, restart_bars, config.env)


def _obstacle(split: pk.SplitPolicy | None, config: EnvConfig) -> str | None:
    """Why the fused kernel cannot take a rollout, if it cannot."""
    if split is None:
        return "the network is the user's own"
    if config.mask is not None:
        return "the mask is the user's own"
    return pk.rollout_obstacle(split)


def network_policy(network: SplitNetwork, params: Any, market: Market, n_rows: int) -> Policy:
    """A network, with the features' part of its first layer taken out of the loop where that is less work.

    Args:
      network: from observations to logits.
      params: its weights.
      market: the bars.
      n_rows: observations that will be asked for; with more bars than that, the rows visited are projected one by one.
    """
    if market.n_bars <= n_rows:
        table = network.project(params, market.features)
        return lambda bar, values: network.from_projection(params, table[bar], values)
    return lambda bar, values: network.from_projection(params, network.project(params, market.features_at(bar)), values)


def _tables(market: Market, config: EnvConfig) -> tuple[lanes.Prices, Execution]:
    return lanes.tables(market), config.execution.arrays(market.close.dtype)


def _inside(bars: Array, market: Market) -> Array:
    return jnp.clip(jnp.asarray(bars, jnp.int32), 0, market.n_bars - 1)


@functools.cache
def _log_once(message: str) -> None:
    _log.info(message)
