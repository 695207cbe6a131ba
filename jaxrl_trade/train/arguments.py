"""What a caller may get wrong in the first arguments of training, told before anything is computed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_trade import hosts, networks
from jaxrl_trade.config import N_PORTFOLIO, AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.train.config_json import differences


def check_config(config: Any, kind: type) -> None:
    """Refuses a config of something else.

    Raises:
      ValueError: names its class and the one that was wanted.
    """
    if not isinstance(config, kind):
        raise ValueError(f"config is {_described(config)}; give a {kind.__name__}")


def check_market(name: str, market: Any) -> None:
    """Refuses bars, arrays and whatever else is not a Market.

    Raises:
      ValueError: names what came.
    """
    if not isinstance(market, Market):
        raise ValueError(f"{name} is {_described(market)}; give a Market, such as Market.from_bars(bars)")


def check_key(key: Any) -> None:
    """Refuses what is not one typed key; `key` may be traced.

    Raises:
      ValueError: names what came.
    """
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ValueError(f"key is {_described(key)}; give a typed key, such as jax.random.key(0)")
    if key.shape:
        raise ValueError(f"key holds keys of shape {key.shape}, a run takes one; jax.vmap trains several at once")


def check_hypers(hypers: Any, config: AgentConfig) -> None:
    """Refuses hyperparameters of another agent, a dict, or several values where a run takes one; they may be traced.

    Raises:
      ValueError: names what came.
    """
    check_hypers_kind(hypers, config)
    for path, value in jax.tree.leaves_with_path(hypers):
        if jnp.shape(value):
            raise ValueError(
                f"hypers{jax.tree_util.keystr(path)} has shape {jnp.shape(value)}, a run takes a number; jax.vmap trains "
                "with several at once"
            )


def check_hypers_kind(hypers: Any, config: AgentConfig) -> None:
    """Refuses hyperparameters of another agent, or a dict.

    Raises:
      ValueError: names what came and the class that was wanted.
    """
    if not isinstance(hypers, type(config.hypers)):
        raise ValueError(
            f"hypers is {_described(hypers)}; give a {type(config.hypers).__name__}, such as "
            "dataclasses.replace(config.hypers, learning_rate=1e-4)"
        )


def check_network(market: Market, config: AgentConfig) -> None:
    """Refuses a network of the user's own that mixes the observations of a batch.

    Raises:
      ValueError: as `Own.check_rows`.
    """
    if config.network is not None:
        networks.Own(config.network, config.n_actions).check_rows(market.n_features + N_PORTFOLIO)


def check_alike(given: dict[str, Any]) -> None:
    """Refuses processes that were told to train one run, but not the same.

    Raises:
      ValueError: names what differs from process 0.
    """
    first, *others = hosts.exchange(given)
    for process, other in enumerate(others, start=1):
        if changed := differences(first, other):
            raise ValueError(
                f"process {process} was given something else than process 0 ({'; '.join(changed)}); start all of them alike"
            )


def _described(value: Any) -> str:
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    if isinstance(value, jax.Array):
        return f"an array of {value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"
