"""How training ends: with a result, with a number that is none, or because somebody stopped it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from jaxrl_trade.agents import Policy
from jaxrl_trade.train.choice import Choice
from jaxrl_trade.train.logs import Row


class NonFiniteError(FloatingPointError):
    """Training met a NaN or an infinity.

    Attributes:
      update: the update it came in, counted from 1.
      env_steps: environment steps taken by the end of it.
      term: what was not finite first.
      checkpoint: folder of the last good checkpoint, or None.
    """

    def __init__(self, update: int, env_steps: int, term: str, checkpoint: Path | None) -> None:
        self.update, self.env_steps, self.term, self.checkpoint = update, env_steps, term, checkpoint
        saved = f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint was written before it"
        super().__init__(
            f"NaN or infinity in the {term} at update {update} (environment step {env_steps:,}); {saved}. "
            "A lower learning_rate, or features without extremes, usually helps"
        )


class StoppedError(RuntimeError):
    """Somebody stopped a training of several runs; what was complete before stays.

    Attributes:
      signal: "SIGINT" or "SIGTERM".
      folder: of the runs, or None.
    """

    def __init__(self, signal: str, folder: Path | None) -> None:
        self.signal, self.folder = signal, folder
        kept = (
            f"call it again with folder={str(folder)!r} to go on"
            if folder
            else "nothing was saved: no folder was given"
        )
        super().__init__(f"stopped by {signal}; {kept}")


@dataclasses.dataclass(frozen=True, eq=False)
class TrainResult:
    """What training gives.

    Attributes:
      params: the last weights.
      policy: the chosen weights' policy: best on validation after costs, else the last.
      choice: which those are; `str(choice)` says it in words.
      state: all that a further update needs.
      history: a row of numbers by name for each update, as in metrics.jsonl.
      folder: of the run, or None.
      stopped_by: "SIGINT" or "SIGTERM" if that ended the run early.
    """

    params: Any
    policy: Policy
    choice: Choice
    state: Any
    history: list[Row]
    folder: Path | None
    stopped_by: str | None
