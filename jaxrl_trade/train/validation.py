"""Choosing the policy: its greedy actions on the validation bars, after costs, and the best weights seen so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_trade import hosts
from jaxrl_trade.config import AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.train.agent import agent_of
from jaxrl_trade.train.choice import Choice


class Chooser:
    """Compares weights by their total return on the validation bars after costs; without such bars the latest win.

    Args:
      validation: a split of the market, or None.
      config: of the run.
      choice, params: of an earlier session, whose best is still to beat.
    """

    def __init__(
        self,
        validation: Market | None,
        config: AgentConfig,
        choice: Choice | None = None,
        params: Any = None,
    ) -> None:
        self._config = config
        self._evaluate = None if validation is None else evaluator(validation, config)
        self._choice: Choice | None = choice
        self._params: Any = None if params is None else jax.tree.map(np.array, jax.device_get(params))

    def consider(self, params: Any, update: int) -> dict[str, float]:
        """Judges the weights after `update` updates; returns its figures for the log, none without validation bars."""
        if self._evaluate is None:
            return {}
        evaluate = self._evaluate
        figures = hosts.from_first(lambda: evaluate(agent_of(self._config).policy(params, self._config)))
        score, best = figures["total_return"], self._choice
        if best is None or best.score is None or score > best.score:
            self._keep(params, Choice(update, update, score, best.validations + 1 if best else 1))
        else:
            self._choice = dataclasses.replace(best, updates=update, validations=best.validations + 1)
        return {f"validation_{name}": value for name, value in figures.items()}

    def choose(self, params: Any, update: int) -> tuple[Choice, Any]:
        """The best weights so far, on the host; the given ones, of this update, where none were judged."""
        if self._choice is None or self._choice.score is None:
            self._keep(params, Choice(update, update, None))
        assert self._choice is not None
        return self._choice, self._params

    def _keep(self, params: Any, choice: Choice) -> None:
        # copies: the loop donates the state that these belong to
        self._choice, self._params = choice, jax.tree.map(np.array, jax.device_get(params))


def evaluator(validation: Market, config: AgentConfig) -> Callable[[Any], dict[str, float]]:
    """`evaluate` of policies on one split, as a function of the policy."""
    from jaxrl_trade.backtesting import evaluate, tracks_of_market

    tracks = tracks_of_market(validation)  # fetched from the device once
    return lambda policy: evaluate(policy, tracks, config.env)
