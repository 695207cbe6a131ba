"""Two ways to use several devices: one run whose episodes are divided over them, or many runs that know nothing of each other.

Both map the agents' own update step; `scale/team.py` knows how.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxrl_trade import hosts
from jaxrl_trade.config import AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.scale.team import AXIS, SHARE, WHOLE, Executor, Team, check_replicas
from jaxrl_trade.train.agent import Agent, agent_of
from jaxrl_trade.train.arguments import check_hypers, check_hypers_kind, check_key, check_market
from jaxrl_trade.train.pure import run_updates

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Program:
    """Training on several devices.

    Attributes:
      config: of the run, or of each.
      init: key -> state at the beginning; `seeds` takes keys `[R]`, and every leaf of its states is `[R, ...]`.
      advance: (state, hypers, updates, actions=None) -> state, metrics `[updates]`, of seeds `[R, updates]`. The state that came
        is donated: go on from the one that is returned. `actions [updates, L, N]`, of seeds `[R, updates, L, N]`, forces them
        (tests).
    """

    config: AgentConfig
    init: Callable[[Array], Any]
    advance: Callable[..., tuple[Any, Any]]

    def train(self, key: Array, hypers: Any = None) -> tuple[Any, Any]:
        """A whole run of `config.updates`, as `make_train_ppo` and `make_train_dqn` give it; `seeds` takes keys `[R]`.

        Raises:
          ValueError: not a typed key, or keys that do not fit the devices.
          RuntimeError: devices that should hold the same weights do not.
        """
        state, metrics = self.advance(self.init(key), hypers, self.config.updates)
        check_replicas(state)
        return state, metrics


def data_parallel(
    config: AgentConfig, market: Market, devices: int | None = None, executor: Executor = "shard_map"
) -> Program:
    """One run, its N episodes divided over the devices, which take every step together.

    Gradients, moments of the advantages, KL and metrics are those of all episodes, and gradients are clipped as such. So a step is
    the one that a single device would take with the same minibatches, each of which is made of an equal part from every device.
    DQN's replay is divided, too.

    Args:
      config: of the whole run: N, minibatches, batch size and replay are all devices' together.
      market: the bars.
      devices: how many; None takes all, of several processes those of each. For `vmap`, the number of shares.
      executor: see `Team.map`; all give the same numbers.
    Raises:
      ValueError: sizes that the number of devices does not divide, more devices than there are, an unknown executor, arguments of
        another kind, or a market without a valid start.
    """
    agent = _checked(config, market)
    team = Team.of(executor, devices)
    own = share_of(config, team.count)
    step = functools.partial(agent.update_step, axis=AXIS)
    state = agent.layout(WHOLE, SHARE)
    market = team.replicate(market)
    begin = team.map(lambda key, market: agent.init_state(key, market, own, axis=AXIS), (WHOLE, WHOLE), state)

    def init(key: Array) -> Any:
        check_key(key)
        return begin(team.replicate(key), market)

    @functools.cache
    def program(updates: int) -> Callable[..., Any]:
        def run(state: Any, hypers: Any, market: Market, actions: Array | None) -> tuple[Any, Any]:
            return run_updates(step, state, hypers, market, own, updates, actions)

        return team.map(run, (state, WHOLE, WHOLE, P(None, None, AXIS)), (state, WHOLE), donate=True)

    def advance(state: Any, hypers: Any, updates: int, actions: Array | None = None) -> tuple[Any, Any]:
        hypers = config.hypers if hypers is None else hypers
        check_hypers(hypers, config)
        _check_there(state)
        hypers = team.replicate(_traced(hypers))
        return program(updates)(state, hypers, market, actions)

    return Program(config, init, advance)


def seeds(config: AgentConfig, market: Market, devices: int | None = None, executor: Executor = "shard_map") -> Program:
    """R independent runs, R / devices of them side by side on each device; nothing passes between devices.

    Run r is a function of key r alone, as `make_train_ppo` and `make_train_dqn` give it. Hyperparameters are numbers, for all runs,
    or arrays `[R]`, one for each: a sweep.

    Args:
      config: of each run.
      market: the bars.
      devices: how many; None takes all. For `vmap`, the number of shares.
      executor: see `Team.map`; all give the same numbers.
    Raises:
      ValueError: more devices than there are, an unknown executor, arguments of another kind, a market without a valid start, or
        several processes; from the program, a number of keys that the number of devices does not divide.
    """
    agent = _checked(config, market)
    if hosts.count() > 1:
        raise ValueError("seeds keeps its runs apart: start each process by itself, with keys of its own")
    team = Team.of(executor, devices)
    market = team.replicate(market)
    begin = team.map(
        lambda keys, market: jax.vmap(lambda key: agent.init_state(key, market, config))(keys), (SHARE, WHOLE), SHARE
    )

    def init(keys: Array) -> Any:
        _check_keys(keys, team.count)
        return begin(keys, market)

    @functools.cache
    def program(updates: int) -> Callable[..., Any]:
        def run(states: Any, hypers: Any, market: Market, actions: Array | None) -> tuple[Any, Any]:
            def one(state: Any, hypers: Any, actions: Array | None) -> tuple[Any, Any]:
                return run_updates(agent.update_step, state, hypers, market, config, updates, actions)

            return jax.vmap(one)(states, hypers, actions)

        return team.map(run, (SHARE, SHARE, WHOLE, SHARE), (SHARE, SHARE), donate=True)

    def advance(states: Any, hypers: Any, updates: int, actions: Array | None = None) -> tuple[Any, Any]:
        hypers = config.hypers if hypers is None else hypers
        check_hypers_kind(hypers, config)
        _check_there(states)
        hypers = _for_each(_traced(hypers), len(states.update))
        return program(updates)(states, hypers, market, actions)

    return Program(config, init, advance)


def share_of(config: AgentConfig, devices: int) -> AgentConfig:
    """The config of one device's share of a run.

    Raises:
      ValueError: names the size that the number of devices does not divide.
    """
    sizes = {
        name: getattr(config, name) for name in ("n_episodes", "batch_size", "replay_capacity") if hasattr(config, name)
    }
    for name, size in sizes.items():
        if size % devices:
            raise ValueError(
                f"{name} = {size} cannot be divided over {devices} devices; take a multiple of {devices}, "
                f"such as {-(-size // devices) * devices}, or another number of devices"
            )
    share = {name: size // devices for name, size in sizes.items()}
    if hasattr(config, "minibatches") and share["n_episodes"] * config.timesteps_per_episode % config.minibatches:
        raise ValueError(
            f"minibatches = {config.minibatches} does not divide the {config.total_experiences // devices} experiences that "
            f"each of {devices} devices collects (n_episodes {config.n_episodes} / {devices} x timesteps_per_episode "
            f"{config.timesteps_per_episode}); choose a divisor"
        )
    if hasattr(config, "learning_starts"):
        share["learning_starts"] = -(-config.learning_starts // devices)
    return dataclasses.replace(config, **share)


def _checked(config: AgentConfig, market: Market) -> Agent:
    agent = agent_of(config)
    check_market("market", market)
    market.valid_starts(config.env.episode_length)
    return agent


def _check_keys(keys: Any, devices: int) -> None:
    is_keys = isinstance(keys, jax.Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    if not is_keys or keys.ndim != 1:
        raise ValueError(
            f"keys has {getattr(keys, 'dtype', type(keys).__name__)} of shape {np.shape(keys)}; give one typed key for each run, "
            "such as jax.random.split(jax.random.key(0), 8)"
        )
    if not len(keys) or len(keys) % devices:
        raise ValueError(
            f"{len(keys)} runs cannot be divided over {devices} devices; give a multiple of {devices} keys, or take another "
            "number of devices"
        )


def _check_there(state: Any) -> None:
    # JAX 0.10 refuses it where the state lies on one device, and ends the process where on several CPU devices
    arrays = [x for x in jax.tree.leaves(state) if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)]
    if any(x.is_deleted() for x in arrays):
        raise ValueError("the state was donated to an earlier call of advance; go on from the one that it returned")


def _traced(hypers: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, float), hypers)


def _for_each(hypers: Any, runs: int) -> Any:
    """Every leaf as `[runs]`."""

    def one(path: Any, x: Array) -> Array:
        if x.shape not in ((), (runs,)):
            raise ValueError(
                f"hypers{jax.tree_util.keystr(path)} has shape {x.shape}; give a number, or one for each of {runs} runs"
            )
        return jnp.broadcast_to(x, (runs,))

    return jax.tree.map_with_path(one, hypers)
