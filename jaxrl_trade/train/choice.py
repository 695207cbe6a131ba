"""Which of a run's weights are its policy, and the folder weights/ that holds them with chosen.json."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from jaxrl_trade.networks import save_weights
from jaxrl_trade.train.files import read_json, write_json

WEIGHTS, CHOSEN = "weights", "chosen.json"


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


def load_choice(run_folder: str | Path) -> Choice:
    """Which weights `load_policy` gives.

    Raises:
      OSError: none were written yet.
      ValueError: the file that says it is damaged.
    """
    path = Path(run_folder) / WEIGHTS / CHOSEN
    if not path.exists():
        raise FileNotFoundError(f"{run_folder} has no weights yet: its training ended before the first checkpoint")
    data = read_json(path)
    kinds: dict[str, Any] = {"update": int, "updates": int, "score": (int, float, type(None)), "validations": int}
    if set(data) != set(kinds) or not all(isinstance(data[name], kind) for name, kind in kinds.items()):
        raise ValueError(f"{path} is damaged: it holds {data!r}; resuming the run writes it anew")
    return Choice(**data)


def save_choice(folder: Path, params: Any, choice: Choice) -> None:
    """Writes weights/ anew, in whole.

    Raises:
      OSError: they cannot be written; those before stay.
    """
    partial, old, final = folder / ".weights_partial", folder / ".weights_old", folder / WEIGHTS
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        save_weights(partial, params)
        write_json(partial / CHOSEN, dataclasses.asdict(choice))
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if final.exists():
        final.rename(old)
    partial.rename(final)
    shutil.rmtree(old, ignore_errors=True)
