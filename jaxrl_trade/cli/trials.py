"""How often somebody has already looked at the test bars of a run: what deflates its Sharpe ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxrl_trade.train.files import read_json
from jaxrl_trade.train.run import FACTS
from jaxrl_trade.train.sweep_folder import PLAN
from jaxrl_trade.train.walk_folder import WALK


def count_trials(folder: Path, sha256: str, own: int = 1) -> int:
    """Settings and seeds tried on the test bars of some bars.

    Args:
      folder: of a result; those in the same parent folder count if they were tested on a split of the same bars: a run as one, a
        sweep with all its runs, a walk-forward with its seeds.
      sha256: of the bars.
      own: trials of the result in `folder`.
    """
    place = folder.absolute()
    beside = place.parent.iterdir() if place.parent.is_dir() else ()
    return own + sum(_tried(path, sha256) for path in beside if path.name != place.name)


def check_trials(trials: Any) -> None:
    """Refuses what is no number of trials, before anything is trained.

    Raises:
      ValueError: it is below 1, or beyond what can be judged.
    """
    from jaxrl_trade.backtesting.inference import MOST_TRIALS

    if trials is None:
        return
    if trials < 1:
        raise ValueError(f"trials = {trials} must be at least 1: this run is one of them")
    if trials > MOST_TRIALS:
        raise ValueError(f"trials = {trials} must be at most {MOST_TRIALS:,}")


def _tried(folder: Path, sha256: str) -> int:
    """Trials of what lies in a folder; 0 where it was not tested yet, is of other bars, or damaged."""
    try:
        if (folder / "sweep.json").is_file():
            runs, data = read_json(folder / "sweep.json").get("runs"), read_json(folder / PLAN).get("data")
            return len(runs) if _is_of(data, sha256) and isinstance(runs, list) else 0
        if (folder / "walk_forward.json").is_file():
            seeds, bars = read_json(folder / "walk_forward.json").get("seeds"), read_json(folder / WALK).get("bars")
            return len(seeds) if bars == sha256 and isinstance(seeds, list) else 0
        is_tested = (folder / "test" / "metrics.json").is_file() or any(folder.glob("test/*/metrics.json"))
        return int(is_tested and _is_of(read_json(folder / FACTS).get("data"), sha256))
    except (OSError, ValueError):  # nothing that can be read
        return 0


def _is_of(data: Any, sha256: str) -> bool:
    return isinstance(data, dict) and data.get("sha256") == sha256
