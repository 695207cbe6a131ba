"""A sweep's folder: plan.json (what shall be trained on which bars), groups/ (the runs, a group for each program), chosen/.

groups/000 holds the newest checkpoint of a group's runs side by side, in the end their weights, and validation.json. chosen/seed-0
and so on are the chosen setting's runs, as `load_policy` reads them. One process works in it at a time (.lock).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_trade.config import AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.networks import load_weights
from jaxrl_trade.train import run as runs
from jaxrl_trade.train.agent import AGENTS, agent_of
from jaxrl_trade.train.checkpoints import Checkpoints
from jaxrl_trade.train.choice import WEIGHTS, Choice, load_choice, save_choice
from jaxrl_trade.train.config_json import config_from_dict, config_to_dict, differences
from jaxrl_trade.train.files import LOCK, read_json, write_json
from jaxrl_trade.train.provenance import key_words, market_digest, surroundings

PLAN, GROUPS, CHOSEN, VALIDATION = "plan.json", "groups", "chosen", "validation.json"
_SETTINGS = ("agent", "config", "grid", "runs_at_once", "x64")
_BARS = ("market", "validation", "feature_names")


def plan_of(
    market: Market,
    validation: Market,
    config: AgentConfig,
    grid: Mapping[str, Sequence[float]],
    keys: jax.Array,
    runs_at_once: int,
    devices: int,
) -> dict[str, Any]:
    """What a sweep is a function of, and where it runs, as JSON values."""
    plan = {
        "format": 1,
        "agent": agent_of(config).name,
        "config": config_to_dict(config),
        "grid": {name: [float(value) for value in values] for name, values in grid.items()},
        "keys": [key_words(key) for key in keys],
        "runs_at_once": runs_at_once,
        "x64": bool(jax.numpy.result_type(float) == np.float64),
        "market": market_digest(market),
        "validation": market_digest(validation),
        **runs.features_of(market),
        **surroundings(devices),
    }
    return dict(json.loads(json.dumps(plan)))


def read_plan(folder: Path) -> dict[str, Any]:
    """The content of plan.json.

    Raises:
      OSError: the folder holds no sweep.
      ValueError: it is damaged.
    """
    plan = read_json(folder / PLAN)
    kinds = {"agent": str, "config": dict, "grid": dict, "keys": list, "runs_at_once": int, "devices": int}
    if wrong := sorted(name for name, kind in kinds.items() if not isinstance(plan.get(name), kind)):
        raise ValueError(f"{folder / PLAN} is damaged: {wrong[0]} is {plan.get(wrong[0])!r}")
    if plan["agent"] not in AGENTS:
        raise ValueError(f"{folder / PLAN}: agent {plan['agent']!r} is none of {', '.join(AGENTS)}")
    return plan


def config_of(plan: Mapping[str, Any]) -> AgentConfig:
    """The config of a plan's runs, without the grid.

    Raises:
      ValueError: it was written by another version, or a file of the user's own parts has changed.
    """
    config: AgentConfig = config_from_dict(AGENTS[plan["agent"]].config, plan["config"])
    runs.check_parts(config)
    return config


def begin(folder: Path, plan: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Writes plan.json, or compares it with the one that is there.

    Args:
      folder: of the sweep, which nobody else is in.
      plan: of `plan_of`.
      facts: added to a new plan: where the bars came from, say.
    Returns:
      The facts that the sweep began with.
    Raises:
      FileExistsError: the folder holds something else.
      ValueError: the sweep in it is of other settings, keys or bars; the message names what differs.
    """
    if not (folder / PLAN).exists():
        if other := sorted(path.name for path in folder.iterdir() if path.name != LOCK):
            raise FileExistsError(f"{folder} holds something else than a sweep ({other[0]}); choose another folder")
        write_json(folder / PLAN, {**facts, **plan, "command": facts.get("command", plan["command"])})
        return dict(facts)
    saved = read_plan(folder)
    other_way = "go on with its own, or start a new sweep in another folder"
    if changed := differences({name: saved.get(name) for name in _SETTINGS}, {name: plan[name] for name in _SETTINGS}):
        raise ValueError(f"{folder} holds a sweep of other settings ({'; '.join(changed)}); {other_way}")
    if saved["keys"] != plan["keys"]:
        counts = len(saved["keys"]), len(plan["keys"])
        how = "other keys" if counts[0] == counts[1] else f"{counts[0]} seeds, this one has {counts[1]}"
        raise ValueError(f"{folder} holds a sweep of {how}; {other_way}")
    if any(saved.get(name) != plan[name] for name in _BARS) or _is_other_file(saved, facts):
        raise ValueError(
            f"{folder} holds a sweep of other bars: prices, split or features differ from those it began with; {other_way}"
        )
    return {name: value for name, value in saved.items() if name not in plan or name == "command"}


def _is_other_file(saved: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether both say where their bars came from, and other bars are there now: those of the test count, too."""
    hashes = [each["data"].get("sha256") for each in (saved, facts) if isinstance(each.get("data"), Mapping)]
    return len(hashes) == 2 and hashes[0] != hashes[1]


def group_folder(folder: Path, group: int) -> Path:
    """Where a group of runs is kept."""
    return folder / GROUPS / f"{group:03d}"


def checkpoints_of(folder: Path, group: int) -> Checkpoints:
    """A group's checkpoints: of its runs' state, and after the last update of their weights alone."""
    return Checkpoints(group_folder(folder, group))


def read_validation(folder: Path, group: int) -> list[dict[str, Any]] | None:
    """The figures of a group's runs on the validation bars; None before they are there, or where their file is damaged."""
    try:
        rows = read_json(group_folder(folder, group) / VALIDATION).get("runs")
    except (OSError, ValueError):
        return None
    return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else None


def save_validation(folder: Path, group: int, figures: Sequence[Mapping[str, Any]]) -> None:
    """Writes them."""
    write_json(group_folder(folder, group) / VALIDATION, {"runs": [dict(row) for row in figures]})


def save_chosen(
    folder: Path, market: Market, config: AgentConfig, keys: jax.Array, params: Sequence[Any], facts: dict[str, Any]
) -> None:
    """Writes chosen/, whole or not at all, if it is not there or something in it is damaged: a run folder for each seed.

    Args:
      folder: of the sweep.
      market: trained on.
      config: of the chosen setting.
      keys, params: of each seed.
      facts: JSON values added to every run.json.
    """
    partial, old, final = (folder / name for name in (f".{CHOSEN}_partial", f".{CHOSEN}_old", CHOSEN))
    places = [f"seed-{seed}" for seed in range(len(params))]
    if all(_holds(final / place, config, weights, facts) for place, weights in zip(places, params, strict=True)):
        return
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    for place, key, weights in zip(places, keys, params, strict=True):
        runs.create_run(partial / place, market, config, key, 1, facts)
        save_choice(partial / place, weights, Choice(config.updates, config.updates, None))
    if final.exists():
        final.rename(old)
    partial.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def _holds(place: Path, config: AgentConfig, weights: Any, facts: Mapping[str, Any]) -> bool:
    """Whether a run folder is whole, with this config, these weights and these facts."""
    try:
        saved, settings = runs.read_facts(place), read_json(place / runs.CONFIG)
        load_choice(place)
        found = load_weights(place / WEIGHTS, weights)
    except (OSError, ValueError):
        return False
    wanted = json.loads(json.dumps({**facts, "config": config_to_dict(config)}))
    is_same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b, equal_nan=True)), found, weights)
    return settings == wanted["config"] and {**saved, **wanted} == saved and all(jax.tree.leaves(is_same))
