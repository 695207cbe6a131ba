"""The run's log: one JSON object an update in `metrics.jsonl`, the same numbers for TensorBoard where tensorboardX is installed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NO_TENSORBOARD = "tensorboard: off, tensorboardX is not installed (pip install 'jaxrl-trade[report]')"


class MetricsLog:
    """Appends rows to a run's log.

    Args:
      folder: of the run; None keeps the rows in memory only.
      keep: updates that count: rows after it belong to a session whose end was lost, and are removed.
      say: prints a line for people.
    """

    def __init__(self, folder: Path | None, keep: int, say: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self._file: Any = None
        self._board: Any = None
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        self.rows = [row for row in read_metrics(path) if row["update"] <= keep]
        rewritten = path.with_suffix(".partial")
        rewritten.write_text("".join(map(_line, self.rows)), encoding="utf-8")
        rewritten.replace(path)
        self._file = path.open("a", encoding="utf-8")
        self._board = _summary_writer(folder / "tensorboard", keep + 1)
        if self._board is None:
            say(NO_TENSORBOARD)

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows, each with `update` and `env_steps`."""
        self.rows += rows
        if self._file is not None:
            self._file.writelines(map(_line, rows))
            self._file.flush()
        if self._board is not None:
            for row in rows:
                for name, value in row.items():
                    if name != "update" and value is not None:
                        self._board.add_scalar(name, value, row["update"])

    def close(self) -> None:
        """Closes the files."""
        for writer in (self._file, self._board):
            if writer is not None:
                writer.close()


def read_metrics(path: str | Path) -> list[Row]:
    """Rows of a `metrics.jsonl`, none if there is no file; a last line cut off by a killed process is left out.

    Raises:
      ValueError: another line is no JSON object with an update.
    """
    path = Path(path)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    rows = []
    for i, line in enumerate(lines):
        try:
            row = json.loads(line)
            if not isinstance(row, Mapping) or not isinstance(row.get("update"), int):
                raise ValueError
        except ValueError:
            if i == len(lines) - 1:
                break
            raise ValueError(
                f"{path}, line {i + 1}, is no row of a run's metrics; delete the line or the file"
            ) from None
        rows.append(dict(row))
    return rows


def _line(row: Mapping[str, Any]) -> str:
    finite = {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in row.items()}
    return json.dumps(finite, allow_nan=False) + "\n"


def _summary_writer(folder: Path, first_step: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=first_step)
