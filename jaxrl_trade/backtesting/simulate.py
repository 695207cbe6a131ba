"""A policy's way through a track: one account in float64 on the host's CPU, traded by the environment's own arithmetic.

Every `episode_length` bars the account is renewed: units and cash are rescaled so that its equity is `initial_capital` again, and
max_position is sized afresh. That trades nothing (the rescaled account is the same account in another currency) and keeps the
observations where training had them. Figures for people are the ledger's business; the reward has no part here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_trade.backtesting.tracks import Track
from jaxrl_trade.config import EnvConfig, Execution
from jaxrl_trade.env import account as accounts
from jaxrl_trade.env.trading import look_up, observation
from jaxrl_trade.market import BarPrices
from pallas_kernels import sample

Array = Any  # a NumPy or a JAX array
Apply = Callable[[Any, Any], Any]  # (params, obs [N, F + 3]) -> logits [N, A]

NOTHING = -1  # the action of an account that was ruined and is closed


class Trace(NamedTuple):
    """What each of n - 1 steps did, `[n - 1]` each, in real units and currency (the renewals' rescaling undone)."""

    action: Array  # int, NOTHING after ruin
    units: Array  # bought, negative when sold
    price: Array  # currency per unit, of the fill
    fee: Array  # currency
    cost: Array  # currency: fee and distance from the reference price
    position: Array  # units, after the trade
    max_position: Array  # units
    equity: Array  # currency, at the next close, before a ruined account is closed
    closing_units: Array  # traded at the next close by ruin, else 0
    closing_price: Array  # currency per unit, the next close
    closing_fee: Array  # currency, else 0
    is_ruined: Array  # bool: in this step
    is_nan: Array  # bool: the policy's logits were


_ROW_TYPES = tuple(
    {"action": np.int32, "is_ruined": bool, "is_nan": bool}.get(name, np.float64) for name in Trace._fields
)


class _State(NamedTuple):
    account: accounts.Account  # in renewed currency
    scale: Array  # real units of one renewed unit
    is_open: Array  # bool: not ruined


class _Bar(NamedTuple):
    """What a step needs from the track; each `[n - 1]`, one row a step inside the loop."""

    step: Array  # int32, from 0
    features: Array  # [n - 1, F] float32
    prices: BarPrices
    uniform: Array  # float32 in [0, 1)


def simulate(policy: Any, track: Track, config: EnvConfig, *, greedy: bool = True, key: Any = None) -> Trace:
    """Trades the track.

    Args:
      policy: `obs [N, F + 3] -> logits [N, A]`. An object with `.apply(params, obs)` and `.params` compiles once for all its
        weights; any other function that JAX can trace compiles once a call; one that works in NumPy is called bar by bar.
      track: the bars.
      config: the account's rules.
      greedy: the first largest logit; else sampled as in training.
      key: of the sampling, used only there.
    Raises:
      ValueError: no key to sample with, no function, one that was made for other observations, logits of another shape than
        `[N, A]`, or logits that are NaN.
    """
    if not greedy and not isinstance(key, jax.Array):
        raise ValueError(f"greedy = False samples the actions and needs key=jax.random.key(seed), not {key!r}")
    if not callable(policy):
        raise ValueError(
            f"policy is a {type(policy).__name__}; give a function of observations [N, F + 3] to logits [N, A]"
        )
    shape = (track.n_steps,)
    uniforms = np.zeros(shape, np.float32) if greedy else np.asarray(jax.random.uniform(key, shape, jnp.float32))
    with jax.enable_x64(True), jax.default_device(_cpu()):
        bars = _bars_of(track, uniforms)
        try:
            trace = _run(policy, bars, jnp.asarray(track.close[0]), config, greedy)
        except flax.errors.ScopeParamShapeError as error:
            n_features = track.features.shape[1]
            raise ValueError(
                f"the policy was not trained on observations of {n_features + 3} values, which {n_features} features and the "
                f"account make here ({error.args[0].split(' (http')[0]})"
            ) from None
    trace = jax.tree.map(np.asarray, trace)
    for t in np.flatnonzero(trace.is_nan)[:1]:
        raise ValueError(
            f"the policy's logits are NaN at bar {t} of the range; check its weights and the features it was given"
        )
    return trace


def first_fill(exposure: float, track: Track, config: EnvConfig) -> tuple[float, float, float, float]:
    """Units, price, fee and cost of trading to exposure x max_position on the track's first bar, in full, as the dearest taker."""
    head = Track(*(x[:2] for x in track))
    with jax.enable_x64(True), jax.default_device(_cpu()):
        out = _first_trade(exposure, _bars_of(head, np.zeros(1)), config)
    return float(out.trade), float(out.price), float(out.fee), float(out.cost)


@functools.partial(jax.jit, static_argnums=2)
def _first_trade(exposure: Array, bars: _Bar, config: EnvConfig) -> accounts.StepOutcome:
    bar, (fee_rate, offset) = _bar_at(bars, 0), dearest_taker(config)
    numbers = {"exposure": exposure, "fee_rate": fee_rate, "fill_ratio": 1.0, "price_offset": offset}
    columns = {name: jnp.asarray(value, jnp.float64) for name, value in numbers.items()}
    order = Execution(**columns, is_maker=jnp.asarray(False))
    return accounts.advance(_begin(bar.prices.close, config).account, order, bar.prices, config)[1]


def dearest_taker(config: EnvConfig) -> tuple[float, float]:
    """Fee rate and price offset (spreads) of the taker action with the highest fee; of all actions where none is a taker."""
    table = config.execution
    rows = list(zip(table.fee_rate, table.price_offset, table.is_maker, strict=True))
    takers = [(fee, offset) for fee, offset, is_maker in rows if not is_maker]
    return max(takers or [(fee, offset) for fee, offset, _ in rows])


def _bars_of(track: Track, uniforms: np.ndarray) -> _Bar:
    """The n - 1 steps of a track on the device, prices in float64 under x64."""
    now, then = slice(None, -1), slice(1, None)
    columns = (track.close[now], track.open[then], track.high[then], track.low[then], track.close[then])
    return _Bar(
        step=jnp.asarray(np.arange(track.n_steps, dtype=np.int32)),
        features=jnp.asarray(track.features[now]),
        prices=BarPrices(*(jnp.asarray(column) for column in columns)),
        uniform=jnp.asarray(uniforms, jnp.float32),
    )


def _cpu() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return jax.local_devices()[0]


def _run(policy: Any, bars: _Bar, close: Array, config: EnvConfig, greedy: bool) -> Trace:
    """The compiled loop where JAX can trace the policy, else the one in Python."""
    if hasattr(policy, "apply") and hasattr(policy, "params"):
        return _loop(policy.apply, jax.device_put(policy.params, _cpu()), bars, close, config, greedy)
    _, obs = _look(_begin(close, config), bars, 0, config)
    obs = jnp.asarray(np.asarray(obs)[None])
    try:
        logits = policy(obs)
    except Exception:  # it may only know NumPy; a mistake of its own comes again in the loop
        logits = None
    if isinstance(logits, jax.Array) and _is_traceable(policy, obs):
        # a fresh jit, traced anew: what a plain function closes over may have changed since the last call
        return jax.jit(functools.partial(_scan, lambda _, obs: policy(obs), None), static_argnums=(2, 3))(
            bars, close, config, greedy
        )
    return _loop_in_python(policy, logits, bars, close, config, greedy)


def _is_traceable(policy: Callable[[Any], Any], obs: Array) -> bool:
    try:
        jax.eval_shape(policy, obs)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        return False
    return True


def _check_logits(shape: tuple[int, ...], n_actions: int) -> None:
    if shape != (1, n_actions):
        raise ValueError(
            f"the policy gives logits of shape {tuple(shape)} for one observation; the execution table has {n_actions} actions, "
            f"so it must be (1, {n_actions})"
        )


def _scan(apply: Apply, params: Any, bars: _Bar, close: Array, config: EnvConfig, greedy: bool) -> Trace:
    def step(state: _State, bar: _Bar) -> tuple[_State, Trace]:
        state, obs = _observe(state, bar, config)
        logits = jnp.asarray(apply(params, obs[None]), jnp.float32)
        _check_logits(logits.shape, config.n_actions)
        action = _act(logits, bar.uniform[None], greedy)[0]
        return _trade(state, action, jnp.isnan(logits).any(), bar, config)

    return jax.lax.scan(step, _begin(close, config), bars)[1]


_loop = jax.jit(_scan, static_argnums=(0, 4, 5))


def _loop_in_python(
    policy: Callable[[np.ndarray], Any], logits: Any, bars: _Bar, close: Array, config: EnvConfig, greedy: bool
) -> Trace:
    """The same steps, one call of the policy a bar, in order; `logits` are those of the first bar if they are known.

    No callback out of the scan: a policy that itself uses JAX may hang there.
    """
    rows = []
    state, obs = _look(_begin(close, config), bars, 0, config)
    for t in range(len(bars.step)):
        logits = _numbers(policy(np.array(obs)[None]) if logits is None else logits)
        _check_logits(logits.shape, config.n_actions)
        state, row, obs = _trade_and_look(state, logits, bars, t, config, greedy)
        rows.append(np.asarray(row))
        logits = None
    columns = zip(np.stack(rows).T, _ROW_TYPES, strict=True)
    return Trace(*(column.astype(dtype) for column, dtype in columns))


def _numbers(logits: Any) -> np.ndarray:
    try:
        return np.asarray(logits, np.float32)
    except (ValueError, TypeError):
        raise ValueError(f"the policy gives {logits!r:.80}, not an array of logits") from None


@functools.partial(jax.jit, static_argnums=3)
def _look(state: _State, bars: _Bar, t: Array, config: EnvConfig) -> tuple[_State, Array]:
    return _observe(state, _bar_at(bars, t), config)


@functools.partial(jax.jit, static_argnums=(4, 5))
def _trade_and_look(
    state: _State, logits: Array, bars: _Bar, t: Array, config: EnvConfig, greedy: bool
) -> tuple[_State, Array, Array]:
    """One step of the Python loop in one call: the trade at bar t, its row of the trace as one array, the observation of t + 1."""
    bar = _bar_at(bars, t)
    action = _act(logits, bar.uniform[None], greedy)[0]
    state, row = _trade(state, action, jnp.isnan(logits).any(), bar, config)
    state, obs = _observe(state, _bar_at(bars, t + 1), config)  # of the last step, nobody looks at it
    return state, jnp.stack([value.astype(jnp.float64) for value in row]), obs


def _bar_at(bars: _Bar, t: Array) -> _Bar:
    return jax.tree.map(lambda x: x[jnp.minimum(t, len(x) - 1)], bars)


def _begin(close: Array, config: EnvConfig) -> _State:
    account = accounts.fresh(jnp.zeros((), jnp.int32), close, config)
    return _State(account=account, scale=jnp.ones_like(account.cash), is_open=jnp.asarray(True))


def _observe(state: _State, bar: _Bar, config: EnvConfig) -> tuple[_State, Array]:
    """The state, renewed where its time has come, and what the policy sees of it, `[F + 3]` float32."""
    close = bar.prices.close
    is_due = (bar.step % config.episode_length == 0) & state.is_open  # at step 0 it changes nothing
    state = jax.tree.map(functools.partial(jnp.where, is_due), _renew(state, close, config), state)
    account = state.account
    equity = account.cash + account.position * close
    equity, position = accounts.portfolio(equity, account.position, account.max_position, config)
    # a renewal may leave a short larger than the new max_position: an episode never showed the policy more than all of it
    return state, observation(bar.features, equity, jnp.clip(position, -1.0, 1.0), config).astype(jnp.float32)


def _renew(state: _State, close: Array, config: EnvConfig) -> _State:
    account = state.account
    ratio = (account.cash + account.position * close) / config.initial_capital
    scale = state.scale * ratio
    sized = accounts.fresh(account.bar, close, config).max_position
    renewed = account._replace(
        step=jnp.zeros_like(account.step),
        cash=account.cash / ratio,
        position=account.position / ratio,
        cumulative_costs=jnp.zeros_like(account.cumulative_costs),
        max_position=sized / scale if config.sizing == "units" else sized,
    )
    return state._replace(account=renewed, scale=scale)


def _act(logits: Array, uniform: Array, greedy: bool) -> Array:
    """Of logits `[N, A]` the first largest, or the inverse of the cumulative distribution at `uniform` `[N]`."""
    if greedy:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return sample(logits, uniform)


def _trade(state: _State, action: Array, is_nan: Array, bar: _Bar, config: EnvConfig) -> tuple[_State, Trace]:
    """One step of the account; ruin closes it at the next close, and a closed one does nothing any more."""
    order = look_up(config.execution.arrays(jnp.float64), action)
    order = order._replace(fill_ratio=jnp.where(state.is_open, order.fill_ratio, 0.0))
    account, out = accounts.advance(state.account, order, bar.prices, config)
    is_ruined = out.terminated & state.is_open
    closing = jnp.where(is_ruined, -account.position, 0.0)
    closing_fee = jnp.abs(closing) * bar.prices.next_close * dearest_taker(config)[0]
    cash = account.cash - (closing * bar.prices.next_close + closing_fee)
    scale, before = state.scale, state.account
    trace = Trace(
        action=jnp.where(state.is_open, action, NOTHING),
        units=out.trade * scale,
        price=out.price,
        fee=out.fee * scale,
        cost=out.cost * scale,
        position=out.position * scale,
        max_position=before.max_position * scale,
        equity=out.equity_after * scale,
        closing_units=closing * scale,
        closing_price=bar.prices.next_close,
        closing_fee=closing_fee * scale,
        is_ruined=is_ruined,
        is_nan=jnp.asarray(is_nan),
    )
    account = account._replace(cash=cash, position=account.position + closing)
    return _State(account=account, scale=scale, is_open=state.is_open & jnp.logical_not(is_ruined)), trace
