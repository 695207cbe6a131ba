"""A walk-forward's folder: walk.json (which bars and folds), and a run for each seed and fold, seed-0/fold-1 and so on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_trade.backtesting.folds import Fold
from jaxrl_trade.train.files import read_json, write_json
from jaxrl_trade.train.run import make_folder

if TYPE_CHECKING:
    from jaxrl_trade.bars import Bars

WALK = "walk.json"


def begin(folder: Path, bars: Bars, folds: Sequence[Fold]) -> None:
    """Writes walk.json, or compares it with the one that is there.

    Args:
      folder: of the walk-forward, made if need be.
      bars: of the whole file: those of validation and test count as those of training do.
      folds: where they lie in it.
    Raises:
      OSError: it is a file, or holds something else.
      ValueError: the walk-forward in it is of other bars or folds.
    """
    make_folder(folder)
    walk: dict[str, Any] = {"format": 1, "bars": bars.sha256, "folds": [_positions(fold) for fold in folds]}
    if not (folder / WALK).exists():
        if other := sorted(path.name for path in folder.iterdir()):
            raise FileExistsError(
                f"{folder} holds something else than a walk-forward ({other[0]}); choose another folder"
            )
        write_json(folder / WALK, walk)
        return
    saved = read_json(folder / WALK)
    for name, what in (("bars", "other bars: the file has changed since"), ("folds", "other folds")):
        if saved.get(name) != walk[name]:
            raise ValueError(
                f"{folder} holds a walk-forward of {what}; go on with its own, or start a new one in another folder"
            )


def _positions(fold: Fold) -> dict[str, list[int]]:
    return {name: list(stretch) for name, stretch in vars(fold).items()}
