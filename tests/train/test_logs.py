"""The log is JSON lines, one an update, whatever happened to the process that wrote it."""

from __future__ import annotations

import json
import math
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
