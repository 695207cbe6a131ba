"""The log is JSON lines, one an update, whatever happened to the process that wrote it."""

from __future__ import annotations

import json
import math
import os
import struct
import sys
from pathlib import Path

import pytest

from jaxrl_trade.train.logs import NO_TENSORBOARD, MetricsLog, read_metrics


def write(folder: Path, keep: int, rows: list[dict]) -> list[str]:
    said: list[str] = []
    log = MetricsLog(folder, keep, said.append)
    log.write(rows)
    log.close()
    return said


def test_rows_are_appended_after_the_last_update_that_counts(tmp_path: Path) -> None:
    write(tmp_path, 0, [{"update": u, "x": float(u)} for u in (1, 2, 3)])
    write(tmp_path, 2, [{"update": 3, "x": 33.0}])
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"update": 1, "x": 1.0},
        {"update": 2, "x": 2.0},
        {"update": 3, "x": 33.0},
    ]


def read_board(folder: Path) -> list[dict]:
    """The rows that TensorBoard shows: a later file's session starts at a step, from which on earlier ones do not count."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    rows: list[dict] = []
    for path in sorted((folder / "tensorboard").iterdir()):
        data = path.read_bytes()
        while len(data) >= 12:  # a record: length, its checksum, content, checksum
            (length,) = struct.unpack("Q", data[:8])
            event, data = event_pb2.Event.FromString(data[12 : 12 + length]), data[16 + length :]
            if event.session_log.status == event_pb2.SessionLog.START:
                rows = [row for row in rows if row["update"] < event.step]
            elif event.summary.value:
                rows.append({"update": event.step, **{v.tag: v.simple_value for v in event.summary.value}})
    return rows


def test_tensorboard_has_what_the_log_has_also_after_a_kill(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, 0, print)
    log.write([{"update": u, "env_steps": 64 * u, "x": u / 2, "y": math.nan if u == 2 else None} for u in (1, 2, 3)])
    assert len(read_board(tmp_path)) == 3  # nobody closed it: a killed process
    write(tmp_path, 2, [{"update": 3, "env_steps": 192, "x": 9.5}])
    board = read_board(tmp_path)
    assert [(row["update"], row["env_steps"], row["x"]) for row in board] == [
        (1, 64, 0.5),
        (2, 128, 1.0),
        (3, 192, 9.5),
    ]
    assert ["y" in row for row in board] == [False, True, False]
    assert [row["update"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    log.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("which", ["metrics.jsonl", "tensorboard"])
def test_a_log_that_cannot_be_written_says_so_in_one_line(which: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    log = MetricsLog(tmp_path, 0, print)
    file = log._file if which == "metrics.jsonl" else log._board._records._writer  # type: ignore[union-attr]
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), file.fileno())
    with pytest.raises(OSError, match=r"^the log in .* cannot be written \(No space left on device\); the checkpoints"):
        log.write([{"update": 1, "env_steps": 64}])
    log.close()


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    write(tmp_path, 0, [{"update": 1, "a": math.nan, "b": math.inf, "c": 0.5}])
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text) == {"update": 1, "a": None, "b": None, "c": 0.5}


def test_a_last_line_cut_off_is_left_out_and_another_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1}\n{"upd')
    assert read_metrics(path) == [{"update": 1}]
    path.write_text('{"update": 1}\nnonsense\n{"update": 3}\n')
    with pytest.raises(ValueError, match="line 2, is no row"):
        read_metrics(path)
    path.write_bytes(b'\xff\xfe\n{"update": 2}\n')
    with pytest.raises(ValueError, match="line 1, is no row"):
        read_metrics(path)
    assert read_metrics(tmp_path / "absent.jsonl") == []


def test_without_tensorboardx_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)  # import fails
    assert write(tmp_path, 0, [{"update": 1}]) == [NO_TENSORBOARD]
    assert not (tmp_path / "tensorboard").exists()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"update": 1}]


def test_without_a_folder_rows_stay_in_memory() -> None:
    log = MetricsLog(None, 0, print)
    log.write([{"update": 1}])
    log.close()
    assert log.rows == [{"update": 1}]
