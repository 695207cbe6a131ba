"""Configs as JSON and back, complete and checked: a run's `config.json`. Knows no files and no agent's training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from jaxrl_trade.config import DQNHypers, ExecutionTable, PPOHypers, RewardScales
from jaxrl_trade.parts import Part, record

Config = TypeVar("Config")
FUNCTIONS = ("reward_fn", "network", "mask")  # of the user's own; the mask is in the config's env
_UNCHECKED = (PPOHypers, DQNHypers, RewardScales)  # check nothing themselves, since they also hold traced arrays


def config_to_dict(config: Any) -> dict[str, Any]:
    """Every field of a config (and of the configs in it) as JSON values; a function of the user's own as `parts.record`.

    Raises:
      ValueError: a hyperparameter that holds several values (a sweep's), which no single run has.
    """
    return {field.name: _to_json(field.name, getattr(config, field.name)) for field in dataclasses.fields(config)}


def config_from_dict(
    kind: type[Config],
    data: Mapping[str, Any],
    reward_fn: Callable[..., Any] | None = None,
    network: Callable[..., Any] | None = None,
    mask: Callable[..., Any] | None = None,
) -> Config:
    """The config of `config_to_dict`.

    Args:
      kind: its class, PPOConfig say.
      data: as read from JSON.
      reward_fn, network, mask: the functions themselves, where the config had some; None takes what JSON says of their file, a
        `Part` that reads it at its first use. Of one that was in no file JSON holds the name only: no reward_fn comes back then.
    Raises:
      ValueError: a field is missing, unknown or has a value that the config refuses; the message names it.
    """
    config = _from_json(kind, _without_functions(data), "the config")
    given = {"reward_fn": reward_fn, "network": network}
    own = {name: _part(name, data.get(name)) if value is None else value for name, value in given.items()}
    own_mask = _part("mask", data["env"].get("mask")) if mask is None else mask
    return dataclasses.replace(config, env=dataclasses.replace(config.env, mask=own_mask), **own)


def _without_functions(data: Any) -> Any:
    """The data with no function in it, nor in what is nested in it."""
    if not isinstance(data, Mapping):
        return data
    return {name: None if name in FUNCTIONS else _without_functions(value) for name, value in data.items()}


def differences(saved: Mapping[str, Any], given: Mapping[str, Any], prefix: str = "") -> list[str]:
    """`name: saved value -> given value` for each field of two nested dicts that differs."""
    found: list[str] = []
    for name in sorted(set(saved) | set(given)):
        a, b = saved.get(name), given.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{name}.")
        elif a != b:
            found.append(f"{prefix}{name}: {a} -> {b}")
    return found


def _part(name: str, value: Any) -> Part | None:
    if name in ("network", "mask") and isinstance(value, str):
        raise ValueError(f"{name} {value} is in no file that could be read again; keep it in one to use its runs")
    return Part.of_json(value, name) if isinstance(value, Mapping) else None


def _to_json(name: str, value: Any) -> Any:
    if name in FUNCTIONS and value is not None:
        return record(value)
    if dataclasses.is_dataclass(value):
        return config_to_dict(value)
    if isinstance(value, (tuple, list)):
        return [_to_json(name, item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if jax.numpy.ndim(value) != 0:
        raise ValueError(
            f"{name} holds {jax.numpy.size(value)} values; a run has one, train a sweep with make_train_ppo"
        )
    return jax.device_get(value).item()


def _from_json(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} is {data!r}; it must hold the fields of {kind.__name__}")
    names = [field.name for field in dataclasses.fields(kind)]
    if missing := [name for name in names if name not in data]:
        raise ValueError(f"{where} lacks {', '.join(missing)}: it was written by another version")
    if unknown := sorted(set(data) - set(names)):
        raise ValueError(
            f"{where} has {', '.join(unknown)}, which {kind.__name__} does not know: written by another version"
        )
    nested = _nested(kind)
    values = {
        name: _from_json(nested[name], data[name], f"{where}: {name}") if name in nested else _to_python(data[name])
        for name in names
    }
    if kind in _UNCHECKED:
        for name, value in values.items():
            if name not in nested and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise ValueError(f"{where}: {name} = {value!r} must be a number")
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from None


def _nested(kind: type) -> dict[str, type]:
    """The fields that hold another dataclass, and its class; every other is a number, a text, a list of them, or null."""
    if kind is ExecutionTable:  # no defaults to look at, and nothing nested
        return {}
    values = {field.name: getattr(kind(), field.name) for field in dataclasses.fields(kind)}
    return {name: type(value) for name, value in values.items() if dataclasses.is_dataclass(value)}


def _to_python(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
