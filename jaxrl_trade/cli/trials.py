"""How often somebody has already looked at the test bars of a run: what deflates its Sharpe ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxrl_trade.train.files import read_json


def count_trials(folder: Path, sha256: str) -> int:
    """A run in `folder` and those beside it that were tested on a split of the same bars."""
    own = folder.absolute()
    beside = own.parent.iterdir() if own.parent.is_dir() else ()
    return 1 + sum(_was_tested_on(path, sha256) for path in beside if path.name != own.name)


def check_trials(trials: Any) -> None:
    """Refuses what is no number of trials.

    Raises:
      ValueError: it is below 1.
    """
    if trials is not None and trials < 1:
        raise ValueError(f"trials = {trials} must be at least 1: this run is one of them")


def _was_tested_on(folder: Path, sha256: str) -> bool:
    if not (folder / "test" / "metrics.json").is_file():
        return False
    try:
        data = read_json(folder / "run.json").get("data")
    except (OSError, ValueError):  # no run, or a damaged one
        return False
    return isinstance(data, dict) and data.get("sha256") == sha256
