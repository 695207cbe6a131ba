"""A policy's way through a track: one account in float64 on the host's CPU, by the steps of `steps`.

Figures for people are the ledger's business.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_trade.backtesting.orders import Orders, orders_of, without_table
from jaxrl_trade.backtesting.steps import (
    NOTHING,
    ROW_TYPES,
    Bar,
    State,
    Trace,
    bar_at,
    bars_of,
    begin,
    cpu,
    observe,
    trade,
)
from jaxrl_trade.backtesting.tracks import Track
from jaxrl_trade.config import EnvConfig
from pallas_kernels import sample

Array = Any  # a NumPy or a JAX array
Apply = Callable[[Any, Any], Any]  # (params, obs [N, F + 3]) -> logits [N, A]

__all__ = ["NOTHING", "Relay", "Simulator", "Trace", "replay", "simulate"]


@dataclasses.dataclass(frozen=True)
class Relay:
    """Policies that take turns with one account: the first for `steps[0]` bars, the second for the next `steps[1]`, ...

    Nothing is traded when one follows the other. On tracks of another length than all steps together it is refused.
    """

    policies: Sequence[Any]
    steps: Sequence[int]


class Simulator:
    """Trades a track with a policy, as often as somebody asks: at other costs, say.

    Args:
      policy: `obs [N, F + 3] -> logits [N, A]`. An object with `.apply(params, obs)` and `.params` compiles once for all its
        weights; any other function that JAX can trace compiles once here; one that works in NumPy is called bar by bar. Or a
        `Relay` of such.
      track: the bars.
      config: the account's rules.
      greedy: the first largest logit; else sampled as in training.
      key: of the sampling, used only there.
    Raises:
      ValueError: no key to sample with, no function, or a relay of another length than the track.
    """

    def __init__(self, policy: Any, track: Track, config: EnvConfig, *, greedy: bool = True, key: Any = None) -> None:
        if not greedy and not isinstance(key, jax.Array):
            raise ValueError(f"greedy = False samples the actions and needs key=jax.random.key(seed), not {key!r}")
        relay = policy if isinstance(policy, Relay) else Relay([policy], [track.n_steps])
        for each in relay.policies:
            if not callable(each):
                raise ValueError(
                    f"policy is a {type(each).__name__}; give a function of observations [N, F + 3] to logits [N, A]"
                )
        if sum(relay.steps) != track.n_steps or len(relay.steps) != len(relay.policies):
            raise ValueError(
                f"{len(relay.policies)} policies take turns of {list(relay.steps)} bars, but the range has {track.n_steps} steps"
            )
        shape = (track.n_steps,)
        uniforms = np.zeros(shape, np.float32) if greedy else np.asarray(jax.random.uniform(key, shape, jnp.float32))
        self._config, self._rules, self._greedy = config, without_table(config), greedy
        self._n_features = track.features.shape[1]
        ends = np.cumsum([0, *relay.steps])
        with jax.enable_x64(True), jax.default_device(cpu()):
            whole = bars_of(track, uniforms)
            self._close = jnp.asarray(track.close[0])
            self._bars = [jax.tree.map(lambda x, a=a, b=b: x[a:b], whole) for a, b in itertools.pairwise(ends)]
            self._walkers = [_Walker(each) for each in relay.policies]

    def run(self, costs: float = 1.0) -> Trace:
        """What each step did, where every fee and every taker's distance from the price is `costs` times the table's.

        Raises:
          ValueError: a policy that was made for other observations, logits of another shape than `[N, A]`, or NaN.
        """
        parts = []
        with jax.enable_x64(True), jax.default_device(cpu()):
            state, orders = begin(self._close, self._rules), orders_of(self._config, costs)
            for walk, bars in zip(self._walkers, self._bars, strict=True):
                try:
                    state, part = walk(bars, state, orders, self._rules, self._greedy)
                except flax.errors.ScopeParamShapeError as error:
                    raise ValueError(
                        f"the policy was not trained on observations of {self._n_features + 3} values, which "
                        f"{self._n_features} features and the account make here ({error.args[0].split(' (http')[0]})"
                    ) from None
                parts.append(part)
        trace = jax.tree.map(lambda *columns: np.concatenate([np.asarray(x) for x in columns]), *parts)
        for t in np.flatnonzero(trace.is_nan)[:1]:
            raise ValueError(
                f"the policy's logits are NaN at bar {t} of the range; check its weights and the features it was given"
            )
        return trace


def simulate(policy: Any, track: Track, config: EnvConfig, *, greedy: bool = True, key: Any = None) -> Trace:
    """Trades the track once; arguments and errors are `Simulator`'s."""
    return Simulator(policy, track, config, greedy=greedy, key=key).run()


def replay(actions: np.ndarray, track: Track, config: EnvConfig) -> Trace:
    """Takes these actions `[n - 1]`, whatever the account sees; NOTHING leaves the position as it is."""
    with jax.enable_x64(True), jax.default_device(cpu()):
        bars, rules = bars_of(track, np.zeros(track.n_steps)), without_table(config)
        state = begin(jnp.asarray(track.close[0]), rules)
        trace = _replay(jnp.asarray(actions, jnp.int32), bars, state, orders_of(config), rules)
    return jax.tree.map(np.asarray, trace)


@functools.partial(jax.jit, static_argnums=4)
def _replay(actions: Array, bars: Bar, state: State, orders: Orders, config: EnvConfig) -> Trace:
    def step(state: State, row: tuple[Array, Bar]) -> tuple[State, Trace]:
        action, bar = row
        state, _ = observe(state, bar, config)
        return trade(state, action, jnp.asarray(False), bar, orders, config)

    return jax.lax.scan(step, state, (actions, bars))[1]


class _Walker:
    """One policy's way over some bars, compiled where JAX can trace it."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._compiled: Callable[..., tuple[State, Trace]] | None = None
        self._is_known = hasattr(policy, "apply") and hasattr(policy, "params")
        if self._is_known:
            self._compiled = functools.partial(_loop, policy.apply, jax.device_put(policy.params, cpu()))

    def __call__(self, bars: Bar, state: State, orders: Orders, config: EnvConfig, greedy: bool) -> tuple[State, Trace]:
        """The account after the bars, and what it did on each."""
        logits = None if self._is_known else self._find_out(bars, state, config)
        if self._compiled is not None:
            return self._compiled(bars, state, orders, config, greedy)
        return _loop_in_python(self._policy, logits, bars, state, orders, config, greedy)

    def _find_out(self, bars: Bar, state: State, config: EnvConfig) -> Any:
        """Whether JAX can trace the policy; its logits on the first bar, if it gives some."""
        policy, self._is_known = self._policy, True
        _, obs = _look(state, bars, 0, config)
        obs = jnp.asarray(np.asarray(obs)[None])
        try:
            logits = policy(obs)
        except Exception:  # it may only know NumPy; a mistake of its own comes again in the loop
            return None
        if isinstance(logits, jax.Array) and _is_traceable(policy, obs):
            # a fresh jit, traced anew: what a plain function closes over may have changed since the last backtest
            scan = functools.partial(_scan, lambda _, obs: policy(obs), None)
            self._compiled = jax.jit(scan, static_argnums=(3, 4))
        return logits


def _is_traceable(policy: Callable[[Any], Any], obs: Array) -> bool:
    try:
        jax.eval_shape(policy, obs)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        return False
    return True


def _check_logits(shape: tuple[int, ...], orders: Orders) -> None:
    n_actions = len(orders.table.exposure)
    if shape != (1, n_actions):
        raise ValueError(
            f"the policy gives logits of shape {tuple(shape)} for one observation; the execution table has {n_actions} actions, "
            f"so it must be (1, {n_actions})"
        )


def _scan(
    apply: Apply, params: Any, bars: Bar, state: State, orders: Orders, config: EnvConfig, greedy: bool
) -> tuple[State, Trace]:
    def step(state: State, bar: Bar) -> tuple[State, Trace]:
        state, obs = observe(state, bar, config)
        logits = jnp.asarray(apply(params, obs[None]), jnp.float32)
        _check_logits(logits.shape, orders)
        action = _act(logits, bar.uniform[None], greedy)[0]
        return trade(state, action, jnp.isnan(logits).any(), bar, orders, config)

    return jax.lax.scan(step, state, bars)


_loop = jax.jit(_scan, static_argnums=(0, 5, 6))


def _loop_in_python(
    policy: Callable[[np.ndarray], Any],
    logits: Any,
    bars: Bar,
    state: State,
    orders: Orders,
    config: EnvConfig,
    greedy: bool,
) -> tuple[State, Trace]:
    """The same steps, one call of the policy a bar, in order; `logits` are those of the first bar if they are known.

    No callback out of the scan: a policy that itself uses JAX may hang there.
    """
    rows = []
    state, obs = _look(state, bars, 0, config)
    for t in range(len(bars.step)):
        logits = _numbers(policy(np.array(obs)[None]) if logits is None else logits)
        _check_logits(logits.shape, orders)
        after, state, row, obs = _trade_and_look(state, logits, bars, t, orders, config, greedy)
        rows.append(np.asarray(row))
        logits = None
    columns = zip(np.stack(rows).T, ROW_TYPES, strict=True)
    return after, Trace(*(column.astype(dtype) for column, dtype in columns))


def _numbers(logits: Any) -> np.ndarray:
    try:
        return np.asarray(logits, np.float32)
    except (ValueError, TypeError):
        raise ValueError(f"the policy gives {logits!r:.80}, not an array of logits") from None


@functools.partial(jax.jit, static_argnums=3)
def _look(state: State, bars: Bar, t: Array, config: EnvConfig) -> tuple[State, Array]:
    return observe(state, bar_at(bars, t), config)


@functools.partial(jax.jit, static_argnums=(5, 6))
def _trade_and_look(
    state: State, logits: Array, bars: Bar, t: Array, orders: Orders, config: EnvConfig, greedy: bool
) -> tuple[State, State, Array, Array]:
    """One step of the Python loop in one call.

    Returns:
      The account after the trade at bar t and as it is observed at t + 1, the row of the trace as one array, the observation.
    """
    bar = bar_at(bars, t)
    action = _act(logits, bar.uniform[None], greedy)[0]
    after, row = trade(state, action, jnp.isnan(logits).any(), bar, orders, config)
    observed, obs = observe(after, bar_at(bars, t + 1), config)  # after the last step nobody looks at them
    return after, observed, jnp.stack([value.astype(jnp.float64) for value in row]), obs


def _act(logits: Array, uniform: Array, greedy: bool) -> Array:
    """Of logits `[N, A]` the first largest, or the inverse of the cumulative distribution at `uniform` `[N]`."""
    if greedy:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return sample(logits, uniform)
