"""A run's folder: what it holds, how it begins, and the policy that comes out of it.

config.json (every setting), run.json (data, features, seed, versions, commit, device, command), metrics.jsonl, tensorboard/,
checkpoints/, and weights/: the chosen policy as safetensors, with chosen.json saying which it is.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_trade.agents import Policy
from jaxrl_trade.config import AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.networks import load_weights, save_weights
from jaxrl_trade.train.agent import AGENTS, agent_of
from jaxrl_trade.train.config_json import config_from_dict, config_to_dict, differences
from jaxrl_trade.train.provenance import market_digest, provenance

CONFIG, FACTS, WEIGHTS, CHOSEN = "config.json", "run.json", "weights", "chosen.json"
CHECKPOINTS = "checkpoints"


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which weights are a run's policy: the best on validation after costs, else the last."""

    update: int  # updates behind these weights
    updates: int  # of the run, so far
    score: float | None  # total return on the validation bars after costs, fraction; None without validation
    validations: int = 0  # how many weights were compared

    def __str__(self) -> str:
        if self.score is None:
            return f"the last weights, after update {self.update} (not chosen on validation bars)"
        return (
            f"the weights after update {self.update} of {self.updates}, "
            f"the best of {self.validations} on validation after costs ({self.score:+.2%})"
        )


def holds_run(folder: Path) -> bool:
    """Whether a run has begun in this folder."""
    return any((folder / name).exists() for name in (CONFIG, FACTS, CHECKPOINTS))


def create_run(folder: Path, market: Market, config: AgentConfig, key: jax.Array, facts: dict[str, Any]) -> None:
    """Writes config.json and run.json of a new run.

    Args:
      folder: of the run, made if need be.
      market, config, key: as trained on.
      facts: added to run.json: where the bars came from, say.
    Raises:
      FileExistsError: the folder holds a run already.
    """
    if holds_run(folder):
        raise FileExistsError(
            f"{folder} already holds a run; resume it (--resume {folder}), choose another folder, or remove it"
        )
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; a run needs a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / CONFIG, config_to_dict(config))
    known = {"format": 1, "agent": agent_of(config).name, **_features(market), **provenance(market, key)}
    _write_json(folder / FACTS, {**known, **facts})


def check_same_run(folder: Path, market: Market, config: AgentConfig) -> None:
    """Refuses to resume with other settings or bars than the run has; only `updates` may change.

    Raises:
      OSError: the folder holds no run.
      ValueError: names the settings that differ, or says that the bars or the width of the floats do.
    """
    facts, saved = read_facts(folder), _read_json(folder / CONFIG)
    given = json.loads(json.dumps(config_to_dict(config)))
    if changed := differences({**saved, "updates": None}, {**given, "updates": None}):
        raise ValueError(
            f"{folder} was trained with other settings ({'; '.join(changed)}); resume with its own, or start a new run"
        )
    check_features(folder, facts, market.feature_names, _features(market)["feature_version"])
    is_x64 = jax.numpy.result_type(float) == np.float64
    if facts.get("x64", is_x64) != is_x64:
        raise ValueError(
            f"{folder} was trained with jax_enable_x64 = {facts['x64']}, here it is {is_x64}; set it alike"
        )
    if facts["market"].get("sha256") != market_digest(market):
        raise ValueError(
            f"the market is not the one {folder} was trained on: its prices, its split or its features differ"
        )
    if config.updates != saved["updates"]:
        _write_json(folder / CONFIG, given)


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
    facts = _read_json(folder / FACTS)
    wanted: dict[str, Any] = {
        "agent": str,
        "feature_names": list,
        "feature_version": (int, type(None)),
        "n_features": int,
        "market": dict,
    }
    if missing := sorted(set(wanted) - set(facts)):
        raise ValueError(f"{folder / FACTS} lacks {', '.join(missing)}; it was not written by this version")
    if wrong := sorted(name for name, kind in wanted.items() if not isinstance(facts[name], kind)):
        raise ValueError(f"{folder / FACTS} is damaged: {wrong[0]} is {facts[wrong[0]]!r}")
    return facts


def load_config(run_folder: str | Path) -> AgentConfig:
    """The config of a run; a reward_fn is not in it.

    Raises:
      OSError: the folder holds no run.
      ValueError: config.json or run.json is damaged, has a field too many or too few, or names an unknown agent.
    """
    path, agent = Path(run_folder) / CONFIG, read_facts(Path(run_folder))["agent"]
    if agent not in AGENTS:
        raise ValueError(f"{path.parent / FACTS}: agent {agent!r} is none of {', '.join(AGENTS)}")
    try:
        return config_from_dict(AGENTS[agent].config, _read_json(path))
    except ValueError as error:
        message = str(error)
        raise ValueError(message if str(path) in message else f"{path}: {message}") from None


def load_policy(run_folder: str | Path, feature_names: Sequence[str] | None = None) -> Policy:
    """The policy of a run: the weights that were best on validation after costs, else the last saved.

    Args:
      run_folder: of a run.
      feature_names: of the observations it will see; None are the 51 that jaxrl_trade computes.
    Raises:
      OSError: no run, or no weights yet.
      ValueError: it was trained on another feature list; the message names the difference.
    """
    from jaxrl_trade.bars import FEATURE_NAMES, FEATURE_VERSION

    folder = Path(run_folder)
    facts, config = read_facts(folder), load_config(folder)
    is_own = feature_names is None
    check_features(folder, facts, FEATURE_NAMES if is_own else feature_names or (), FEATURE_VERSION if is_own else None)
    load_choice(folder)
    params = load_weights(folder / WEIGHTS, _shapes(config, facts["n_features"]))
    return agent_of(config).policy(params, config)


def load_choice(run_folder: str | Path) -> Choice:
    """Which weights `load_policy` gives.

    Raises:
      OSError: none were written yet.
      ValueError: the file that says it is damaged.
    """
    path = Path(run_folder) / WEIGHTS / CHOSEN
    if not path.exists():
        raise FileNotFoundError(f"{run_folder} has no weights yet: its training ended before the first checkpoint")
    data = _read_json(path)
    kinds: dict[str, Any] = {"update": int, "updates": int, "score": (int, float, type(None)), "validations": int}
    if set(data) != set(kinds) or not all(isinstance(data[name], kind) for name, kind in kinds.items()):
        raise ValueError(f"{path} is damaged: it holds {data!r}; resuming the run writes it anew")
    return Choice(**data)


def save_choice(folder: Path, params: Any, choice: Choice) -> None:
    """Writes weights/ anew, in whole."""
    partial, old, final = folder / ".weights_partial", folder / ".weights_old", folder / WEIGHTS
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    save_weights(partial, params)
    _write_json(partial / CHOSEN, dataclasses.asdict(choice))
    if final.exists():
        final.rename(old)
    partial.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def _shapes(config: AgentConfig, n_features: int) -> Any:
    shapes = jax.eval_shape(lambda: agent_of(config).init_params(jax.random.key(0), config, n_features))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def _features(market: Market) -> dict[str, Any]:
    from jaxrl_trade.bars import FEATURE_NAMES, FEATURE_VERSION

    names = tuple(market.feature_names)
    version = FEATURE_VERSION if names == FEATURE_NAMES else None  # another list has its own versions
    return {"n_features": market.n_features, "feature_names": list(names), "feature_version": version}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"{path.parent} is no run folder: it has no {path.name}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return data


def _write_json(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)
