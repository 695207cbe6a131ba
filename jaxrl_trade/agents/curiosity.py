"""Training of the curiosity model: the mean squared error of its forecasts, one pass over a collection."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_trade import collectives
from jaxrl_trade.config import AgentConfig, Scalar
from jaxrl_trade.market import Market
from jaxrl_trade.rollout.hoisted import prediction_errors

Array = jax.Array


def optimiser(learning_rate: Scalar) -> optax.GradientTransformation:
    """Adam; built under jit, so that the learning rate may be traced."""
    return optax.adam(learning_rate)


def update(
    params: Any,
    opt_state: Any,
    market: Market,
    bars: Array,
    directions: Array,
    order: Array,
    learning_rate: Scalar,
    config: AgentConfig,
    axis: str | None = None,
) -> tuple[Any, Any, Array]:
    """One pass of minibatches over M collected transitions.

    Args:
      params: of the curiosity model.
      opt_state: of `optimiser`.
      market: the bars.
      bars, directions: `[M]` int32, the bar of each transition and 0, 1 or 2 for short, flat or long.
      order: `[minibatches, M / minibatches]` int32, a permutation of the transitions.
      learning_rate: of Adam.
      config: of the run.
      axis: that the transitions are divided over, see `collectives`; None: they are all here.

    Returns:
      params, opt_state, and the mean loss before each step.
    """

    def loss(params: Any, rows: Array) -> Array:
        return jnp.mean(prediction_errors(params, market, bars[rows], directions[rows], config))

    def step(carry: tuple[Any, Any], rows: Array) -> tuple[tuple[Any, Any], Array]:
        params, opt_state = carry
        value, gradient = jax.value_and_grad(loss)(params, rows)
        gradient = collectives.mean(gradient, axis)
        updates, opt_state = optimiser(learning_rate).update(gradient, opt_state)
        return (optax.apply_updates(params, updates), opt_state), value

    (params, opt_state), losses = jax.lax.scan(step, (params, opt_state), order)
    return params, opt_state, collectives.mean(losses.mean(), axis)
