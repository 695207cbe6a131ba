"""Where a run's state lies, and the program that advances it: on one device as it is, on several as shares of one program.

Several devices may be those of several processes; see `hosts`. `train/session.py` knows nothing of either.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_trade import hosts
from jaxrl_trade.config import AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.scale.modes import share_of
from jaxrl_trade.scale.team import AXIS, SHARE, WHOLE, Team, check_replicas
from jaxrl_trade.train.agent import agent_of

Array = jax.Array
Devices = int | Literal["all"] | None
MAX_CHUNK = 64  # updates whose scalars wait on the device


@dataclasses.dataclass(frozen=True)
class Placement:
    """A run's devices.

    Attributes:
      config: of the whole run.
      market: where the updates read it.
      hypers: likewise.
      team: several devices; None is one, and no collectives.
    """

    config: AgentConfig
    market: Market
    hypers: Any
    team: Team | None

    @classmethod
    def of(cls, config: AgentConfig, market: Market, devices: int) -> Placement:
        """On so many devices, as `check_devices` lets them pass.

        Raises:
          ValueError: sizes that their number does not divide.
        """
        hypers = jax.tree.map(lambda x: jnp.asarray(x, float), config.hypers)
        share_of(config, devices)
        if devices == 1 and hosts.count() == 1:
            return cls(config, market, hypers, None)
        team = Team.of("shard_map", devices)
        if hosts.count() > 1:
            _connect(team)
        return cls(config, team.replicate(market), team.replicate(hypers), team)

    @property
    def devices(self) -> int:
        """How many."""
        return 1 if self.team is None else self.team.count

    def begin(self, key: Array, market: Market) -> Any:
        """The state at the start of a run, whatever its devices: the weights and episodes of a single one.

        Args:
          key: of the run.
          market: the bars, on a device of this process.
        """
        state = init(key, market, config=self._static)
        return state if self.team is None else _alike(self.team, self.config)(self.place(state, before=1))

    def place(self, state: Any, before: int) -> Any:
        """A state that this process has, on the devices.

        Args:
          state: as so many devices hold it together.
          before: their number.
        """
        if before != self.devices:
            state = jax.jit(agent_of(self.config).regroup, static_argnums=(1, 2))(state, before, self.devices)
        return state if self.team is None else self.team.place(state, _layout(self.config))

    def like(self, key: Array, market: Market, devices: int) -> Any:
        """Shapes and dtypes of a state as so many devices hold it together."""
        agent = agent_of(self.config)
        return jax.eval_shape(lambda: agent.regroup(agent.init_state(key, market, self.config), 1, devices))

    def advance(self, state: Any, updates: int) -> tuple[Any, Any]:
        """The state after some updates, and their metrics on the host; see `run_chunk`."""
        count = np.int32(updates)
        if self.team is None:
            state, metrics = run_chunk(state, self.hypers, self.market, count, config=self._static)
        else:
            state, metrics = _shared_chunk(self.team, self._static)(state, self.hypers, self.market, count)
        return state, jax.device_get(metrics)

    def params(self, state: Any) -> Any:
        """A state's weights on one device of this process."""
        return state.params if self.team is None else jax.tree.map(lambda x: x.addressable_data(0), state.params)

    def check(self, state: Any) -> None:
        """Compares the weights of all devices, and of all processes.

        Raises:
          RuntimeError: they differ.
        """
        if self.team is None:
            return
        check_replicas(state.params)
        own = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(self.params(state))))
        if len(set(told := hosts.exchange(own.hexdigest()))) > 1:
            odd = next(process for process, other in enumerate(told) if other != told[0])
            raise RuntimeError(
                f"process {odd} has other weights than process 0 after the same steps; a device may be faulty"
            )

    @property
    def _static(self) -> AgentConfig:
        return agent_of(self.config).static(self.config)


def check_devices(devices: Devices) -> int:
    """How many devices a run takes.

    Args:
      devices: a number, or "all"; None is 1, and all of them where several processes train together.
    Raises:
      ValueError: more than there are, fewer than those of several processes, or processes with unlike numbers.
    """
    processes, there = hosts.count(), jax.device_count()
    is_number = isinstance(devices, int) and not isinstance(devices, bool) and devices >= 1
    if not (devices is None or devices == "all" or is_number):
        raise ValueError(f"devices = {devices!r} must be a whole number of at least 1, or 'all'")
    if processes == 1:
        wanted = 1 if devices is None else there if devices == "all" else int(devices)
        if wanted > there:
            kind = jax.devices()[0].platform
            simulate = f"; XLA_FLAGS=--xla_force_host_platform_device_count={wanted} simulates so many"
            raise ValueError(f"devices = {devices}, but JAX sees {there} x {kind}{simulate if kind == 'cpu' else ''}")
        return wanted
    own = hosts.exchange(jax.local_device_count())
    if len(set(own)) > 1:
        raise ValueError(f"the processes have {own} devices; give each as many as every other")
    if devices not in (None, "all", there):
        raise ValueError(
            f"devices = {devices}, but {processes} processes train on all their devices, {there} together; leave it out "
            "(CUDA_VISIBLE_DEVICES chooses among a host's)"
        )
    return there


@functools.partial(jax.jit, static_argnames="config", donate_argnames="state")
def run_chunk(state: Any, hypers: Any, market: Market, updates: Array, *, config: AgentConfig) -> tuple[Any, Any]:
    """Some updates in one program.

    Args:
      state: donated.
      hypers: traced.
      market: the bars.
      updates: int32, at most MAX_CHUNK; traced, so that one program serves chunks of every length.
      config: of the run.
    Returns:
      The state after them, and metrics `[MAX_CHUNK]`, of which the first `updates` are filled.
    """
    return _chunk(agent_of(config).update_step, state, hypers, market, updates, config)


@functools.partial(jax.jit, static_argnames="config")
def init(key: Array, market: Market, *, config: AgentConfig) -> Any:
    """The state at the start of a run."""
    return agent_of(config).init_state(key, market, config)


@functools.cache
def _shared_chunk(team: Team, config: AgentConfig) -> Callable[..., tuple[Any, Any]]:
    """`run_chunk` of shares: (state, hypers, market, updates) -> state, metrics."""
    step, own = functools.partial(agent_of(config).update_step, axis=AXIS), share_of(config, team.count)

    def run(state: Any, hypers: Any, market: Market, updates: Array) -> tuple[Any, Any]:
        return _chunk(step, state, hypers, market, updates, own)

    layout = _layout(config)
    return team.map(run, (layout, WHOLE, WHOLE, WHOLE), (layout, WHOLE), donate=True)


def _chunk(
    step: Callable[..., Any], state: Any, hypers: Any, market: Market, updates: Array, config: AgentConfig
) -> tuple[Any, Any]:
    def body(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        state, rows = carry
        state, metrics = step(state, hypers, market, config)
        return state, jax.tree.map(lambda row, value: row.at[i].set(value), rows, metrics)

    one = jax.eval_shape(lambda s: step(s, hypers, market, config)[1], state)
    rows = jax.tree.map(lambda x: jnp.zeros((MAX_CHUNK,), x.dtype), one)
    return jax.lax.fori_loop(0, updates, body, (state, rows))


def _connect(team: Team) -> None:
    """Joins the devices of all processes while all are here: those of CPUs wait half a minute, which one may be compiling."""
    hosts.exchange(None)
    total = team.map(lambda x: jax.lax.psum(x, AXIS), (WHOLE,), WHOLE)
    jax.block_until_ready(total(team.replicate(jnp.zeros(()))))


def _alike(team: Team, config: AgentConfig) -> Callable[[Any], Any]:
    """What every device should hold alike becomes what the first one holds: hosts of other makes may round weights otherwise."""
    layout = _layout(config)

    def first(spec: Any, x: Array) -> Array:
        if spec == SHARE or jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        return jax.lax.psum(jnp.where(jax.lax.axis_index(AXIS) == 0, x, jnp.zeros_like(x)), AXIS)

    def run(state: Any) -> Any:
        return jax.tree.map(lambda spec, part: jax.tree.map(functools.partial(first, spec), part), layout, state)

    return team.map(run, (layout,), layout) if hosts.count() > 1 else lambda state: state


def _layout(config: AgentConfig) -> Any:
    return agent_of(config).layout(WHOLE, SHARE)
