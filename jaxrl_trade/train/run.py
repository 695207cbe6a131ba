"""A run's folder: what it holds, how it begins and goes on, and the policy that comes out of it.

config.json (every setting, as the run began; an edited one is refused, for a run has one set of settings from its first update
to its last), run.json (the same settings again, data, features, seed, versions, commit, device, command, and how far and where
the run went on each time it was resumed), metrics.jsonl, tensorboard/, checkpoints/, and weights/: the chosen policy as
safetensors, with chosen.json saying which it is. One process works in it at a time (.lock).
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_trade.agents import Origin, Policy
from jaxrl_trade.agents.origin import steps_of
from jaxrl_trade.config import AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.networks import load_weights
from jaxrl_trade.parts import Part, record
from jaxrl_trade.train.agent import AGENTS, agent_of
from jaxrl_trade.train.choice import WEIGHTS, load_choice
from jaxrl_trade.train.config_json import config_from_dict, config_to_dict, differences
from jaxrl_trade.train.files import read_json, write_json
from jaxrl_trade.train.provenance import key_words, market_digest, provenance, surroundings

CONFIG, FACTS, CHECKPOINTS = "config.json", "run.json", "checkpoints"
SHARED_SECONDS = 30.0  # until what one host has written shows on the others


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a run goes on where nothing else is asked for, and where it ran last."""

    schedule: int  # updates that the schedules are made for: those the run began with
    updates: int  # in all
    devices: int
    checkpoint_every: int | None  # updates; None where the run does not say
    device: str
    versions: Mapping[str, str]


def holds_run(folder: Path) -> bool:
    """Whether a run has begun in this folder."""
    return any((folder / name).exists() for name in (CONFIG, FACTS, CHECKPOINTS))


def make_folder(folder: Path) -> None:
    """Makes a folder for a run, if need be.

    Raises:
      NotADirectoryError: it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; a run needs a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)


def create_run(
    folder: Path, market: Market, config: AgentConfig, key: jax.Array, devices: int, facts: dict[str, Any]
) -> None:
    """Writes config.json and run.json of a new run.

    Args:
      folder: of the run, made if need be.
      market, config, key, devices: as trained on.
      facts: added to run.json: where the bars came from, say.
    Raises:
      OSError: the folder holds a run already, is a file, or cannot be written.
    """
    if holds_run(folder):
        raise FileExistsError(
            f"{folder} already holds a run; resume it (--resume {folder}), choose another folder, or remove it"
        )
    make_folder(folder)
    settings = config_to_dict(config)
    agent, steps = agent_of(config).name, list(steps_of(market))
    known = {"format": 1, "agent": agent, **features_of(market), "bar_steps": steps, **provenance(market, key, devices)}
    try:
        write_json(folder / CONFIG, settings)
        write_json(folder / FACTS, {**known, **facts, "config": settings})
    except OSError:
        (folder / CONFIG).unlink(missing_ok=True)  # half a run can be neither resumed nor begun
        raise


def check_shared(folder: Path) -> None:
    """Refuses a folder that only process 0, which has written config.json there, can see.

    Raises:
      OSError: it is not there, also after a while, which network file systems may take.
    """
    end = time.monotonic() + SHARED_SECONDS
    while not (folder / CONFIG).exists():
        if time.monotonic() > end:
            raise FileNotFoundError(f"{folder} is not there; all hosts must share the run's folder")
        time.sleep(0.5)


def check_same_run(folder: Path, market: Market, config: AgentConfig, key: jax.Array) -> None:
    """Refuses to resume with other settings, bars or key than the run has; only `updates` may differ.

    Raises:
      OSError: the folder holds no run.
      ValueError: names the settings that differ, or says that the bars, the key or the width of the floats do.
    """
    facts = read_facts(folder)
    saved = _settings(folder, facts)
    given = json.loads(json.dumps(config_to_dict(config)))
    if changed := differences({**saved, "updates": None}, {**given, "updates": None}):
        raise ValueError(
            f"{folder} was trained with other settings ({'; '.join(changed)}); resume with its own, or start a new run"
        )
    check_features(folder, facts, market.feature_names, features_of(market)["feature_version"])
    is_x64 = jax.numpy.result_type(float) == np.float64
    if facts.get("x64", is_x64) != is_x64:
        raise ValueError(
            f"{folder} was trained with jax_enable_x64 = {facts['x64']}, here it is {is_x64}; set it alike"
        )
    if facts["market"].get("sha256") != market_digest(market):
        raise ValueError(
            f"the market is not the one {folder} was trained on: its prices, its split or its features differ"
        )
    if facts.get("key", words := key_words(key)) != words:
        raise ValueError(f"{folder} began with another key ({facts['key']}, this is {words}); resume with its own")


def read_plan(folder: Path) -> Plan:
    """How a run goes on where nothing else is asked for.

    Raises:
      OSError: the folder holds no run.
      ValueError: config.json or run.json is damaged.
    """
    facts = read_facts(folder)
    schedule = _settings(folder, facts)["updates"]
    first = {"schedule": schedule, "updates": schedule, "checkpoint_every": None, "devices": 1, **facts}
    last = {**first, **(facts.get("resumed") or [{}])[-1]}
    kinds: dict[str, Any] = {
        "updates": int,
        "devices": int,
        "checkpoint_every": (int, type(None)),
        "device": str,
        "versions": dict,
    }
    if wrong := sorted(name for name, kind in kinds.items() if not isinstance(last.get(name), kind)):
        raise ValueError(f"{folder / FACTS} is damaged: {wrong[0]} is {last.get(wrong[0])!r}")
    return Plan(**{field.name: last[field.name] for field in dataclasses.fields(Plan)})


def record_resumption(folder: Path, after: int, updates: int, checkpoint_every: int, devices: int) -> None:
    """Adds to run.json that the run goes on after that many updates, how far it shall go, and where it runs now."""
    facts = read_facts(folder)
    now = {"after": after, "updates": updates, "checkpoint_every": checkpoint_every, **surroundings(devices)}
    write_json(folder / FACTS, {**facts, "resumed": [*facts.get("resumed", []), now]})


def check_features(
    folder: Path, facts: dict[str, Any], feature_names: Sequence[str], version: int | None = None
) -> None:
    """Refuses a run whose policy was trained on another list of features.

    Raises:
      ValueError: names the features that only one side has, or the first that is at another place.
    """
    saved, given = list(facts["feature_names"]), list(feature_names)
    if saved != given:
        lost, new = [n for n in saved if n not in given], [n for n in given if n not in saved]
        moved = next((a for a, b in zip(saved, given, strict=False) if a != b), None)
        parts = [f"it also has {', '.join(lost)}"] * bool(lost) + [f"it lacks {', '.join(new)}"] * bool(new)
        raise ValueError(
            f"{folder} was trained on another feature list: {'; '.join(parts) or f'{moved} is at another place'}; train it again"
        )
    if version is not None and facts["feature_version"] not in (None, version):
        raise ValueError(
            f"{folder} was trained on version {facts['feature_version']} of the features, this is version {version}; "
            "train it again"
        )


def read_facts(folder: Path) -> dict[str, Any]:
    """The content of run.json.

    Raises:
      OSError: the folder holds no run.
      ValueError: it is damaged.
    """
    facts = read_json(folder / FACTS)
    wanted: dict[str, Any] = {
        "agent": str,
        "feature_names": list,
        "feature_version": (int, type(None)),
        "n_features": int,
        "market": dict,
    }
    # not in every run
    later: dict[str, Any] = {"config": dict, "resumed": list, "bar_steps": list, "features_by": (dict, str, type(None))}
    if missing := sorted(set(wanted) - set(facts)):
        raise ValueError(f"{folder / FACTS} lacks {', '.join(missing)}; it was not written by this version")
    kinds = {name: kind for name, kind in {**wanted, **later}.items() if name in facts}
    if wrong := sorted(name for name, kind in kinds.items() if not isinstance(facts[name], kind)):
        raise ValueError(f"{folder / FACTS} is damaged: {wrong[0]} is {facts[wrong[0]]!r}")
    return facts


def load_config(run_folder: str | Path) -> AgentConfig:
    """The config of a run as it began, with the reward_fn and network of its own that a file holds.

    Raises:
      OSError: the folder holds no run.
      ValueError: config.json or run.json is damaged, has a field too many or too few, or names an unknown agent; or
        config.json was edited since the run began: the message says where.
    """
    facts, path = read_facts(Path(run_folder)), Path(run_folder) / CONFIG
    agent = facts["agent"]
    if agent not in AGENTS:
        raise ValueError(f"{path.parent / FACTS}: agent {agent!r} is none of {', '.join(AGENTS)}")
    try:
        return config_from_dict(AGENTS[agent].config, _settings(path.parent, facts))
    except ValueError as error:
        message = str(error)
        raise ValueError(message if str(path) in message else f"{path}: {message}") from None


def load_policy(run_folder: str | Path, feature_names: Sequence[str] | None = None) -> Policy:
    """The policy of a run: the weights that were best on validation after costs, else the last saved.

    Args:
      run_folder: of a run.
      feature_names: of the observations it will see; None are those that the run's own file of features computes, or the 51.
    Raises:
      OSError: no run, or no weights yet.
      ValueError: it was trained on another feature list; the message names the difference. A file of the run's own features or
        network has changed.
    """
    from jaxrl_trade.bars import FEATURE_NAMES, FEATURE_VERSION

    folder = Path(run_folder)
    facts, config = read_facts(folder), load_config(folder)
    features_by = own_features(facts)
    if feature_names is not None:
        check_features(folder, facts, feature_names)
    elif features_by is None:
        check_features(folder, facts, FEATURE_NAMES, FEATURE_VERSION)
    else:
        features_by.load()
    load_choice(folder)
    params = load_weights(folder / WEIGHTS, _shapes(config, facts["n_features"]))
    origin = Origin(
        env=config.env,
        n_features=facts["n_features"],
        feature_names=tuple(facts["feature_names"]),
        steps=tuple(facts.get("bar_steps", ())),
        features_by=features_by,
    )
    return dataclasses.replace(agent_of(config).policy(params, config), origin=origin)


def check_parts(config: AgentConfig) -> None:
    """Refuses a config whose reward, network or mask is in a file that has changed.

    Raises:
      ValueError: names the file.
    """
    for part in (config.reward_fn, config.network, config.env.mask):
        if isinstance(part, Part):
            part.load()


def own_features(facts: Mapping[str, Any]) -> Part | None:
    """The user's own features of a run; None where it has none, or some that no file holds."""
    value = facts.get("features_by")
    return Part.of_json(value, f"{FACTS}: features_by") if isinstance(value, dict) else None


def _settings(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The content of config.json, which must be what run.json says the run began with."""
    data = read_json(folder / CONFIG)
    if changed := differences(facts.get("config", data), data):
        raise ValueError(
            f"{folder / CONFIG} was edited since the run began ({'; '.join(changed)}); undo that, or start a new run with "
            "other settings (a run is made longer by resuming it with more updates)"
        )
    return data


def _shapes(config: AgentConfig, n_features: int) -> Any:
    shapes = jax.eval_shape(lambda: agent_of(config).init_params(jax.random.key(0), config, n_features))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def features_of(market: Market) -> dict[str, Any]:
    """What run.json says of a market's features."""
    from jaxrl_trade.bars import FEATURE_NAMES, FEATURE_VERSION

    names = tuple(market.feature_names)
    version = FEATURE_VERSION if names == FEATURE_NAMES else None  # another list has its own versions
    own = None if market.features_by is None else record(market.features_by)
    return {
        "n_features": market.n_features,
        "feature_names": list(names),
        "feature_version": version,
        "features_by": own,
    }
