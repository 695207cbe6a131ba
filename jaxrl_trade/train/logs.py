"""The run's log: one JSON object an update in `metrics.jsonl`, the same numbers for TensorBoard where tensorboardX is installed."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_trade.train.files import reason, write_whole

Row = dict[str, Any]
METRICS = "metrics.jsonl"
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
        self._folder = folder
        self._file: Any = None
        self._board: _Board | None = None
        if folder is None:
            return
        path = folder / METRICS
        self.rows = [row for row in read_metrics(path) if row["update"] <= keep]
        write_whole(path, "".join(map(_line, self.rows)))
        self._file = path.open("a", encoding="utf-8")
        self._board = _open_board(folder / "tensorboard", keep)
        if self._board is None:
            say(NO_TENSORBOARD)

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows, each with `update` and `env_steps`; they are in the files when it returns.

        Raises:
          OSError: they cannot be written: a full disk, say.
        """
        self.rows += rows
        try:
            if self._file is not None:
                self._file.writelines(map(_line, rows))
                self._file.flush()
            if self._board is not None:
                self._board.write(rows)
        except OSError as error:
            raise OSError(
                f"the log in {self._folder} cannot be written ({reason(error)}); the checkpoints stay, resume from them"
            ) from None

    def close(self) -> None:
        """Closes the files."""
        for writer in (self._file, self._board):
            if writer is not None:
                with contextlib.suppress(OSError):  # `write` has told it
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


class _Board:
    """An event file for TensorBoard, written at once: SummaryWriter loses rows in a kill and waits forever on a full disk."""

    def __init__(self, folder: Path, keep: int) -> None:
        from tensorboardX import record_writer
        from tensorboardX.proto import event_pb2

        folder.mkdir(exist_ok=True)
        self._event, session = event_pb2.Event, event_pb2.SessionLog
        # TensorBoard reads the files of a folder by name; `keep` tells apart two sessions of one second
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{keep}"
        self._records = record_writer.RecordWriter(str(folder / name))
        self._add(file_version="brain.Event:2")
        # TensorBoard drops what it has from this step on
        self._add(step=keep + 1, session_log=session(status=session.START))
        self._records.flush()

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows."""
        for row in rows:
            numbers = {name: value for name, value in row.items() if name != "update" and value is not None}
            values = [{"tag": name, "simple_value": value} for name, value in numbers.items()]
            self._add(step=row["update"], summary={"value": values})
        self._records.flush()

    def close(self) -> None:
        """Closes the file."""
        self._records.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())


def _open_board(folder: Path, keep: int) -> _Board | None:
    try:
        return _Board(folder, keep)
    except ImportError:
        return None
