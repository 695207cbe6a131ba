"""The settings of a sweep: every combination of the values that hyperparameters are given, and the configs they make.

What can be swept is what the compiled program takes as numbers: `PPOHypers`, `DQNHypers` and the `RewardScales` in them. Whatever
else a config holds decides the program itself.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_trade.config import AgentConfig
from jaxrl_trade.spelling import meant
from jaxrl_trade.train.agent import agent_of

Setting = dict[str, float]  # value by hyperparameter, of those that are swept


def sweepable(config: AgentConfig) -> tuple[str, ...]:
    """Names of the hyperparameters of an agent that a sweep may vary; the reward's scales go by their own names."""
    return (*_traced(config.hypers), *_traced(config.hypers.reward))


def settings_of(grid: Mapping[str, Sequence[float]], config: AgentConfig) -> tuple[Setting, ...]:
    """Every combination of the grid's values, the last name's varying fastest.

    Args:
      grid: values by name; a name with a single value is set to it in all.
      config: what they are put into.
    Raises:
      ValueError: a name that is unknown or cannot be swept, no value or one twice, a value that the config refuses, or no more
        than one combination.
    """
    for name in grid:
        _check_name(name, config)
        _check_values(name, grid[name])
    settings = tuple(
        dict(zip(grid, map(float, values), strict=True)) for values in itertools.product(*map(tuple, grid.values()))
    )
    for setting in settings:
        with_setting(config, setting)
    if len(settings) < 2:
        raise ValueError(
            "the grid holds a single setting, so there is nothing to choose; give a hyperparameter two values or more, "
            "such as learning_rate 1e-4 3e-4"
        )
    return settings


def with_setting(config: AgentConfig, setting: Setting) -> AgentConfig:
    """The config with these hyperparameters.

    Raises:
      ValueError: a value out of range.
    """
    reward = {name: value for name, value in setting.items() if name in _traced(config.hypers.reward)}
    own: dict[str, Any] = {name: value for name, value in setting.items() if name not in reward}
    hypers: Any = dataclasses.replace(config.hypers, **own, reward=dataclasses.replace(config.hypers.reward, **reward))
    return dataclasses.replace(config, hypers=hypers)


def stacked(config: AgentConfig, settings: Sequence[Setting]) -> Any:
    """The hyperparameters of R runs, every leaf `[R]`."""
    each = [with_setting(config, setting).hypers for setting in settings]
    return jax.tree.map(lambda *values: np.array(values, float), *each)


def _traced(hypers: Any) -> tuple[str, ...]:
    """The numbers among the fields of a pytree that are its leaves."""
    return tuple(
        field.name
        for field in dataclasses.fields(hypers)
        if field.metadata.get("pytree_node", True) and not dataclasses.is_dataclass(getattr(hypers, field.name))
    )


def _check_name(name: str, config: AgentConfig) -> None:
    known = sweepable(config)
    if name in known:
        return
    fixed = {field.name for part in (config, config.hypers, config.env) for field in dataclasses.fields(part)}
    if name in fixed:
        raise ValueError(
            f"{name} cannot be swept: it is compiled into the program, which all runs share; sweep {', '.join(known)}, and start "
            f"a sweep for each {name}"
        )
    hint = meant(name, known) or f"; it has {', '.join(known)}"
    raise ValueError(f"{agent_of(config).name.upper()} has no hyperparameter {name!r}{hint}")


def _check_values(name: str, values: Any) -> None:
    if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, np.ndarray)) or not len(values):
        raise ValueError(f"{name} = {values!r} must hold one value or more, such as (1e-4, 3e-4)")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise ValueError(f"{name} holds {value!r}, which is no number")
    for value, times in collections.Counter(map(float, values)).items():
        if times > 1:
            raise ValueError(f"{name} holds {value:g} {times} times; give each value once")
