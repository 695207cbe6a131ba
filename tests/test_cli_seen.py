"""Where a backtest of other files begins when a run has seen part of them."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_trade.cli.seen import unseen_ranges
from tests.backtesting.tracks import bars_of

BARS = 60  # hourly, from 2024-01-01 00:00
TIMES = {
    "train": {"first": 0, "end": 20, "start_time": "2024-01-01 00:00", "last_time": "2024-01-01 19:00"},
    "validation": {"first": 20, "end": 30, "start_time": "2024-01-01 20:00", "last_time": "2024-01-02 05:00"},
    "test": {"first": 35, "end": 60, "start_time": "2024-01-02 11:00", "last_time": "2024-01-03 11:00"},
}
ONE = {"sha256": "0", "splits": TIMES}
FACTS = {
    "data": {
        "paths": ["gone.csv"],
        "options": {},
        "sha256": "0",
        "embargo": 5,
        "splits": TIMES,
        "instruments": {"AAA": ONE, "BBB": ONE},
    }
}


def bars(symbol: str, n: int = BARS):
    return bars_of(np.linspace(100.0, 110.0, n), symbol=symbol)


def test_each_instrument_begins_behind_what_was_seen_of_it(capsys: pytest.CaptureFixture) -> None:
    known, other, short = bars("AAA"), bars("CCC"), bars("BBB", 33)
    assert unseen_ranges(FACTS, [known, other, short], None) == [(known, 35, None), (other, None, None)]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(
        "the backtest begins on 2024-01-02 11:00: the run has seen AAA from 2024-01-01 to 2024-01-02"
    )
    assert lines[1].startswith("note: CCC shares time with the bars that the agent was trained and chosen on")
    assert "has no unseen bars: the run has seen BBB" in lines[2]
    assert len(lines) == 3


def test_with_nothing_unseen_there_is_no_backtest() -> None:
    with pytest.raises(ValueError, match="no file has unseen bars; bring newer ones"):
        unseen_ranges(FACTS, [bars("AAA", 30), bars("BBB", 36)], None)
    with pytest.raises(ValueError, match="no unseen bars before 2024-01-02 12:00: the run has seen AAA"):
        unseen_ranges(FACTS, [bars("AAA")], "2024-01-02 12:00")  # one bar is none to trade


def test_a_run_that_says_nothing_of_its_data_has_seen_nothing() -> None:
    known = bars("AAA")
    assert unseen_ranges({}, [known], "2024-01-02") == [(known, None, "2024-01-02")]
