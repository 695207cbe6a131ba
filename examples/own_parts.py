"""A reward, features, actions, a mask and a network of one's own, without editing the package.

jaxrl-trade train ppo --reward examples/own_parts.py:reward --features examples/own_parts.py:features \
    --actions examples/own_parts.py:actions --mask examples/own_parts.py:mask --network examples/own_parts.py:Network

trains with all of them on the bundled bars and writes a run to runs/; any of the flags does alone, too. The run remembers this
file by its hash: `jaxrl-trade backtest RUN` and `--resume RUN` find it again, and refuse it once it has changed.
"""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pandas as pd

import jaxrl_trade as jt


def reward(transitions, scales, market, env):
    """The log return of the equity in units of 1/1000, and a little less for every trade; `[L, N]`."""
    turnover = jnp.abs(transitions.trade) / transitions.max_position
    return transitions.base - 0.05 * turnover - scales.risk_weight * transitions.drawdown


def features(bars: jt.Bars) -> pd.DataFrame:
    """Momentum over four spans in units of its usual size, and the time of day: a row for each bar, none of the future."""
    log_close = np.log(bars.frame["close"])
    size = log_close.diff().rolling(64).std() + 1e-9
    columns = {f"momentum_{k}": (log_close - log_close.shift(k)) / (size * k**0.5) for k in (1, 4, 16, 64)}
    day = 2 * np.pi * (bars.index.hour + bars.index.minute / 60) / 24
    return pd.DataFrame({**columns, "day_sin": np.sin(day), "day_cos": np.cos(day)}).clip(-5, 5)


def actions(preset: jt.ExecutionTable) -> jt.ExecutionTable:
    """The preset's market orders alone, and no short positions."""
    return preset.where(
        [not maker and fill == 1.0 for maker, fill in zip(preset.is_maker, preset.fill_ratio, strict=True)]
    ).long_only()


def mask(account, execution, close):
    """No new position once a tenth of the capital is lost; leaving one is always allowed. True where an order may be placed."""
    equity = account.cash + account.position * close
    return (execution.exposure == 0.0) | (equity > 0.9 * 10_000.0)


class Network(nn.Module):
    """Two layers with normalisation; the agent makes one for the logits and one for the value."""

    outputs: int

    @nn.compact
    def __call__(self, obs):
        """`[..., F + 3]` to `[..., outputs]`."""
        x = nn.tanh(nn.LayerNorm()(nn.Dense(64)(obs)))
        x = nn.tanh(nn.Dense(32)(x))
        return nn.Dense(self.outputs, kernel_init=nn.initializers.orthogonal(0.01))(x)
