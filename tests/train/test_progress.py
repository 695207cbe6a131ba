"""Progress on a terminal and off it."""

from __future__ import annotations

import pytest

from jaxrl_trade.train.progress import Progress, clock, describe

ROW = {
    "episode_return": 0.0123,
    "episodes": 3,
    "equity": 1.0071,
    "entropy": 3.806,
    "kl": 0.00421,
    "clip_fraction": 0.031,
    "explained_variance": -0.25,
    "actor_grad_norm": 0.47,
    "critic_grad_norm": 12.0,
}
TEXT = "return +1.23%  equity 1.007  entropy 3.81  KL 0.0042  clip 3.1%  EV -0.25  grad 0.47/12"


def test_a_row_is_described_in_one_line() -> None:
    assert describe(ROW, ROW) == TEXT
    assert describe(ROW, None).startswith("return -  equity")  # no episode ended yet


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03")])
def test_time_left_reads_as_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_plain_lines_give_speed_and_time_left(capsys: pytest.CaptureFixture) -> None:
    with Progress(10, 0, steps_per_update=640) as progress:
        progress.advance([ROW], 60.0, is_first=True)  # compilation: no speed yet
        progress.advance([ROW] * 4, 2.0, is_first=False)  # too soon after the line before
        progress.advance([ROW] * 5, 2.5, is_first=False)  # the last: always shown; half a second an update throughout
    assert capsys.readouterr().err.splitlines() == [
        "compiling, which takes up to a minute or two on a CPU the first time",
        f"update 1/10  compiled  {TEXT}",
        f"update 10/10  1,280 steps/s  0:00 left  {TEXT}",
    ]


def test_the_return_shown_is_of_the_last_update_in_which_an_episode_ended(capsys: pytest.CaptureFixture) -> None:
    running = {**ROW, "episode_return": float("nan"), "episodes": 0}
    with Progress(3, 0, steps_per_update=640) as progress:
        progress.advance([running], 60.0, is_first=True)
        progress.advance([ROW, running], 2.0, is_first=False)
    assert [line.split("return ")[1].split()[0] for line in capsys.readouterr().err.splitlines()[1:]] == ["-", "+1.23%"]


def test_a_terminal_gets_a_bar_and_lines_above_it(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with Progress(10, 4, steps_per_update=640) as progress:
        progress.say("a line [with brackets]")
        progress.advance([ROW], 60.0, is_first=True)
        progress.advance([ROW] * 2, 1.0, is_first=False)
    err = capsys.readouterr().err
    assert "a line [with brackets]" in err
    assert "1,280 steps/s  0:02 left" in err  # 3 updates of half a second
    assert "entropy 3.81" in err


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture) -> None:
    with Progress(2, 0, 64, quiet=True) as progress:
        progress.say("unheard")
        progress.advance([ROW] * 2, 1.0, is_first=True)
    assert capsys.readouterr() == ("", "")
