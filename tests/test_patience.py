"""Whatever takes longer than two seconds says so on stderr, and what does not is silent."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pytest

from jaxrl_trade import patience
from jaxrl_trade.cli import main
from jaxrl_trade.patience import working


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture) -> None:
    with working("reading", after=5.0):
        pass
    assert capsys.readouterr().err == ""


def test_what_is_slow_is_named_in_lines_that_stay(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PLAIN_INTERVAL", 0.05)
    with working("reading btc.csv", after=0.05):
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading btc.csv ..."
    assert re.fullmatch(r"reading btc\.csv \.\.\. \d+ s", lines[1])


def test_a_terminal_shows_a_clock_and_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with working("reading", after=0.05):
        time.sleep(1.2)
    assert re.fullmatch(r"(\rreading \.\.\. \d+ s)+\r\x1b\[K", terminal.getvalue())


def test_an_error_inside_comes_out_and_ends_the_word(capsys: pytest.CaptureFixture) -> None:
    @working("reading", after=0.05)
    def fail() -> None:
        time.sleep(0.1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert capsys.readouterr().err == "reading ...\n"


def test_a_slow_file_is_named_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    import jaxrl_trade.bars

    def slow(path: Path, **_: object) -> None:
        time.sleep(2.2)
        raise ValueError("enough")

    monkeypatch.setattr(jaxrl_trade.bars, "load_bars", slow)
    assert main(["inspect", "big.csv"]) == 2
    assert capsys.readouterr().err == "reading big.csv ...\nerror: enough\n"
