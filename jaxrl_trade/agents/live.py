"""From the newest bars to an order, in a live loop: `Policy.act`. Trades nothing itself; `history` reads and checks the bars."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_trade.agents.history import bars_of, check_age, check_steps, history_of, moment_of
from jaxrl_trade.agents.origin import Origin
from jaxrl_trade.config import EnvConfig
from jaxrl_trade.env.account import NO_TRADE, equity_floor, fresh

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.agents.policy import Policy
    from jaxrl_trade.bars import Bars


@dataclasses.dataclass(frozen=True, eq=False)
class Decision:
    """What a policy wants after the newest bar.

    Attributes:
      action: index in the execution table.
      exposure: the target, fraction of max_position.
      target: the target, units.
      trade: units to buy, negative to sell: target - position, or 0 where that is below a millionth of max_position.
      fill_ratio: fraction of the trade that training filled at such an action.
      limit_price: currency, of an order to rest until the next bar's close; None is an order to execute now.
      time: of the newest bar, UTC.
      obs: `[F + 3]` float32, what the policy saw.
      logits: `[A]` float32.
    """

    action: int
    exposure: float
    target: float
    trade: float
    fill_ratio: float
    limit_price: float | None
    time: pd.Timestamp
    obs: np.ndarray
    logits: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holding:
    """The account as its owner states it; see `Policy.act`."""

    position: float
    equity: float | None
    capital: float | None
    max_position: float | None

    def completed(self, close: float, env: EnvConfig) -> tuple[float, float, float, float]:
        """Position, equity, capital and max_position, with the defaults filled in at the newest close.

        Raises:
          ValueError: something else than finite numbers, or a capital, equity or max_position not above 0.
        """
        capital = _number("capital", env.initial_capital if self.capital is None else self.capital, above=0.0)
        equity = _number("equity", capital if self.equity is None else self.equity, above=0.0)
        basis = {"leverage": capital, "equity": max(equity, equity_floor(env) * capital / env.initial_capital)}
        full = env.max_position if env.sizing == "units" else env.leverage * basis[env.sizing] / close
        return (
            _number("position", self.position),
            equity,
            capital,
            _number("max_position", full if self.max_position is None else self.max_position, above=0.0),
        )


def _number(name: str, value: Any, above: float = -math.inf) -> float:
    if not isinstance(value, (int, float, np.number)) or not above < value < math.inf:
        raise ValueError(
            f"{name} = {value!r} must be a finite number" + (f" above {above:g}" if above > -math.inf else "")
        )
    return float(value)


def decide(
    policy: Policy,
    bars: Bars | pd.DataFrame,
    holding: Holding,
    *,
    now: Any,
    max_age: Any,
    allow_gaps: bool,
) -> Decision:
    """`Policy.act`, whose arguments these are."""
    import pandas as pd

    from jaxrl_trade.bars.features import HISTORY, features_by, last_features

    origin = _own_features(policy.origin)
    history = history_of(bars, HISTORY)
    check_steps(history.ns, origin, allow_gaps)
    if now is not None:
        check_age(history.ns, moment_of(now), max_age)
    env, close = origin.env, float(history.prices["close"][-1])
    position, equity, capital, size = holding.completed(close, env)
    if origin.features_by is None:
        features = last_features(history.prices, history.ns.astype("datetime64[ns]"))
    else:
        features = features_by(origin.features_by, bars_of(bars, HISTORY)).values[-1]
    share = position / size if env.sizing == "equity" else min(max(position / size, -1.0), 1.0)
    account = [equity / capital, share, env.spread]
    obs = np.append(features, account).astype(np.float32)
    logits = np.asarray(_logits(policy.apply, policy.params, obs[None]))[0]
    if np.isnan(logits).any():
        raise ValueError("the policy's logits are NaN; check its weights")
    table, action = env.execution, int(np.argmax(logits))
    target = table.exposure[action] * size
    trade = 0.0 if abs(target - position) < NO_TRADE * size else target - position
    if env.mask is not None and not _is_allowed(env, action, (position, equity, size), close):
        trade = 0.0
    limit = close * (1.0 + float(np.sign(trade)) * table.price_offset[action] * env.spread)
    return Decision(
        action=action,
        exposure=table.exposure[action],
        target=target,
        trade=trade,
        fill_ratio=table.fill_ratio[action],
        limit_price=limit if table.is_maker[action] and trade else None,
        time=pd.Timestamp(int(history.ns[-1]), tz="UTC"),
        obs=obs,
        logits=logits,
    )


def _is_allowed(env: EnvConfig, action: int, holding: tuple[float, float, float], close: float) -> bool:
    """What the run's own mask says; of the account it knows cash, position and max_position alone, the rest as of a fresh one."""
    position, equity, size = holding
    now = np.float64(close)
    account = fresh(jnp.zeros((), jnp.int32), jnp.asarray(close), env)._replace(
        cash=jnp.asarray(equity - position * now), position=jnp.asarray(position), max_position=jnp.asarray(size)
    )
    execution = jax.tree.map(lambda column: column[action], env.execution.arrays())
    assert env.mask is not None
    return bool(env.mask(account, execution, jnp.asarray(close)))


@functools.partial(jax.jit, static_argnums=0)
def _logits(apply: Callable[[Any, Any], Any], params: Any, obs: Any) -> Any:
    return apply(params, obs)


def _own_features(origin: Origin | None) -> Origin:
    from jaxrl_trade.bars import FEATURE_NAMES

    if origin is None:
        raise ValueError(
            "this policy does not know what it was trained on; take it from jt.load_policy(run) or from a training's result"
        )
    if origin.features_by is None and origin.feature_names != FEATURE_NAMES:
        raise ValueError(
            f"the policy was trained on {origin.n_features} features of its own, which act cannot compute; call "
            "policy(obs) with observations of them"
        )
    return origin
