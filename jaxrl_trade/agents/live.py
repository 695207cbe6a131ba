"""From the newest bars to an order, in a live loop: `Policy.act`. Owns the checks of the history; trades nothing itself."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxrl_trade.agents.origin import Origin
from jaxrl_trade.config import EnvConfig
from jaxrl_trade.env.account import NO_TRADE, equity_floor, fresh

if TYPE_CHECKING:
    import pandas as pd

    from jaxrl_trade.agents.policy import Policy
    from jaxrl_trade.bars import Bars

COLUMNS = ("open", "high", "low", "close", "volume")
MINUTE = 60 * 10**9  # nanoseconds
FRESH = 2  # bars: a newest bar that old has a closed successor, whether bars are named by their beginning or their end


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
          ValueError: something else than finite numbers, or a capital or max_position not above 0.
        """
        capital = _number("capital", env.initial_capital if self.capital is None else self.capital, above=0.0)
        equity = _number("equity", capital if self.equity is None else self.equity)
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


class History(NamedTuple):
    """The last n bars given."""

    ns: NDArray[np.int64]  # [n] UTC nanoseconds
    prices: dict[str, NDArray[np.float64]]  # [n] each


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
    history = _history(bars, HISTORY)
    _check_steps(history.ns, origin, allow_gaps)
    if now is not None:
        _check_age(history.ns, _moment(now), max_age)
    env, close = origin.env, float(history.prices["close"][-1])
    position, equity, capital, size = holding.completed(close, env)
    if origin.features_by is None:
        features = last_features(history.prices, history.ns.astype("datetime64[ns]"))
    else:
        features = features_by(origin.features_by, _bars_of(bars, HISTORY)).values[-1]
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


def _bars_of(bars: Any, n: int) -> Bars:
    """The last n bars as `Bars`, for a function of features."""
    from jaxrl_trade.bars import Bars

    if isinstance(bars, Bars):
        return dataclasses.replace(bars, frame=bars.frame.iloc[-n:])
    return Bars.from_frame(bars.iloc[-n:])


def _history(bars: Any, least: int) -> History:
    """The last `least` bars, refused unless they are as many, in order and clean."""
    import pandas as pd

    from jaxrl_trade.bars import Bars

    if isinstance(bars, Bars):
        frame = bars.frame
    elif isinstance(bars, pd.DataFrame) and isinstance(bars.index, pd.DatetimeIndex) and _is_plain(bars):
        frame = bars.rename(columns=str.lower) if set(bars.columns) - set(COLUMNS) else bars
    elif isinstance(bars, (list, tuple, dict, str, np.ndarray, type(None))):
        raise ValueError(f"bars is a {type(bars).__name__}; give Bars or a frame with a time, prices and volume")
    else:
        frame = Bars.from_frame(bars).frame
    if len(frame) < least:
        raise ValueError(
            f"the history has {len(frame):,} bars; act needs the last {least:,}, since the features' averages reach that far back"
        )
    rows = frame.iloc[-least:]
    ns = cast("pd.DatetimeIndex", rows.index).as_unit("ns").asi8
    if (np.diff(ns) <= 0).any():
        raise ValueError(
            "the bars are not in ascending order of time, each time once; sort them, and keep one bar of each"
        )
    if list(rows.columns) != list(COLUMNS):
        rows = rows.reindex(columns=COLUMNS, fill_value=0.0)  # a volume of 0 is one that is not known
    values = rows.to_numpy(np.float64)
    values = values if isinstance(bars, Bars) else _clean(ns, values)
    return History(ns, dict(zip(COLUMNS, np.ascontiguousarray(values.T), strict=True)))


def _is_plain(frame: pd.DataFrame) -> bool:
    """Whether a frame says nothing that needs to be found out: prices, perhaps volume, and no other column."""
    names = [str(name).lower() for name in frame.columns]
    return len(set(names)) == len(names) and {*COLUMNS[:4]} <= {*names} <= {*COLUMNS}


def _clean(ns: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values `[n, 5]` under the rules of files, but refused where a file's rows would be dropped."""
    from jaxrl_trade.bars import quality

    open, high, low, close, volume = values.T
    is_bar = (low > 0) & (np.minimum(open, close) >= low) & (np.maximum(open, close) <= high) & (volume >= 0)
    if is_bar.all() and np.isfinite(values).all():
        return values
    cleaned = quality.clean(ns, values, {}, "the history")
    for reason, count in cleaned.dropped.items():
        raise ValueError(f"the history has bars that are none ({count:,} {reason}); repair them before acting on it")
    return cleaned.values


def _check_steps(ns: NDArray[np.int64], origin: Origin, allow_gaps: bool) -> None:
    """Refuses bars of another size, or with a step in time that the bars trained on never made."""
    steps = np.diff(ns)
    bar = _bar_size(steps)
    if origin.steps and bar != origin.steps[0] * MINUTE:
        raise ValueError(
            f"the bars are {_words(bar)} apart, but the policy was trained on bars {_words(origin.steps[0] * MINUTE)} apart"
        )
    if allow_gaps:
        return
    known = np.array(origin.steps or [bar // MINUTE], np.int64) * MINUTE if bar >= MINUTE else np.array([bar])
    unlike = "which no two bars trained on were" if origin.steps else "not " + _words(bar)
    for i in np.flatnonzero(~np.isin(steps, known))[-1:]:
        raise ValueError(
            f"the bars of {_text(ns[i])} and {_text(ns[i + 1])} are {_words(steps[i])} apart, {unlike}; fetch what is missing, "
            "or pass allow_gaps=True if the market was closed"
        )


def _check_age(ns: NDArray[np.int64], now: int, max_age: Any) -> None:
    """Refuses a newest bar that a newer one must have followed, or that lies ahead."""
    import pandas as pd

    bar, age = _bar_size(np.diff(ns)), now - int(ns[-1])
    if age < 0:
        raise ValueError(
            f"the newest bar is of {_text(ns[-1])}, after now = {_text(now)}; check the zone of both (UTC where none is said)"
        )
    limit = FRESH * bar if max_age is None else pd.Timedelta(max_age).as_unit("ns").value + 1
    if age >= limit:
        raise ValueError(
            f"the history is stale: its newest bar is of {_text(ns[-1])}, {_words(age)} before now = {_text(now)}, where bars are "
            f"{_words(bar)} apart; fetch newer ones, or raise max_age if the market was closed"
        )


def _bar_size(steps: NDArray[np.int64]) -> int:
    """The most frequent step, nanoseconds."""
    sizes, counts = np.unique(steps, return_counts=True)
    return int(sizes[np.argmax(counts)])


def _moment(when: Any) -> int:
    """UTC nanoseconds of a datetime, a timestamp or a text."""
    import pandas as pd

    try:
        moment = pd.Timestamp(when)
    except (ValueError, TypeError, OverflowError):
        moment = None
    if moment is None or moment is pd.NaT:
        raise ValueError(f"now = {when!r} is no time; give datetime.datetime.now(datetime.UTC), say")
    return int((moment.tz_localize("UTC") if moment.tzinfo is None else moment).as_unit("ns").value)


def _text(ns: int) -> str:
    import pandas as pd

    return f"{pd.Timestamp(int(ns)):%Y-%m-%d %H:%M} UTC"


def _words(ns: int) -> str:
    from jaxrl_trade.bars.quality import in_words

    return in_words(datetime.timedelta(microseconds=int(ns) // 1000))
