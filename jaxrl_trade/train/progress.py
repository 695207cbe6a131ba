"""What a person sees while a run trains: a live bar on a terminal, plain lines elsewhere. Everything goes to stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

PLAIN_INTERVAL = 10.0  # seconds between plain lines
# what is shown where an agent has it, beside the episodes' return
_NUMBERS = {
    "equity": "equity {equity:.3f}",
    "entropy": "entropy {entropy:.2f}",
    "kl": "KL {kl:.4f}",
    "clip_fraction": "clip {clip_fraction:.1%}",
    "epsilon": "epsilon {epsilon:.2f}",
    "q": "Q {q:+.2f}",
    "td_error": "TD {td_error:.2g}",
    "explained_variance": "EV {explained_variance:+.2f}",
    "actor_grad_norm": "grad {actor_grad_norm:.2g}/{critic_grad_norm:.2g}",
    "grad_norm": "grad {grad_norm:.2g}",
}


class Progress:
    """A context in which the run reports its updates.

    Args:
      total, done: updates of the run, and those of an earlier session.
      steps_per_update: environment steps.
      quiet: nothing is printed.
    """

    def __init__(self, total: int, done: int, steps_per_update: int, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._total, self._done, self._steps_per_update, self._quiet = total, done, steps_per_update, quiet
        self._console = Console(stderr=True, highlight=False, quiet=quiet)
        self._bar: Any = None
        self._task: Any = None
        self._seconds_per_update: float | None = None
        self._last_line = 0.0
        self._finished: Mapping[str, Any] | None = None  # the last row in which an episode ended

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._bar = _bar(self._console)
            self._task = self._bar.add_task("", total=self._total, completed=self._done, rate="compiling")
            self._bar.start()
        elif self._done < self._total:
            self.say("compiling, which takes up to a minute or two on a CPU the first time")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        """Prints a line, above the bar."""
        self._console.print(line, markup=False, soft_wrap=True)

    def advance(self, rows: Sequence[Mapping[str, Any]], seconds: float, *, is_first: bool) -> None:
        """Reports the rows of one chunk.

        Args:
          rows: of the log, one an update.
          seconds: that the chunk took.
          is_first: the time holds compilation, so it says nothing about speed unless there is no other.
        """
        self._done += len(rows)
        pace = seconds / len(rows)
        if not is_first:
            old = self._seconds_per_update
            self._seconds_per_update = pace if old is None else 0.7 * old + 0.3 * pace
        self._finished = next((row for row in reversed(rows) if row["episodes"]), self._finished)
        numbers = describe(rows[-1], self._finished)
        if self._bar is not None:
            self._bar.numbers = numbers
            self._bar.update(self._task, completed=self._done, rate=self._rate())
        elif time.monotonic() - self._last_line >= PLAIN_INTERVAL or self._done >= self._total or is_first:
            self._last_line = time.monotonic()
            self.say(f"update {self._done}/{self._total}  {self._rate()}  {numbers}")

    def _rate(self) -> str:
        if self._seconds_per_update is None:
            return "compiled"
        left = self._seconds_per_update * (self._total - self._done)
        return f"{self._steps_per_update / self._seconds_per_update:,.0f} steps/s  {clock(left)} left"


def describe(row: Mapping[str, Any], finished: Mapping[str, Any] | None) -> str:
    """The numbers that tell a person how training goes, as far as the agent has them.

    Args:
      row: of the log, the newest.
      finished: the newest in which an episode ended, for the return; None before the first.
    """
    return_ = "-" if finished is None else f"{finished['episode_return']:+.2%}"
    return "  ".join([f"return {return_}"] + [text.format(**row) for name, text in _NUMBERS.items() if name in row])


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _bar(console: Any) -> Any:
    from rich import progress
    from rich.text import Text

    class Bar(progress.Progress):
        """The bar, and below it the numbers, which wrap where the terminal is narrow."""

        numbers = ""

        def get_renderables(self) -> Iterator[Any]:
            yield from super().get_renderables()
            yield Text(self.numbers)

    return Bar(
        progress.TextColumn("update"),
        progress.MofNCompleteColumn(),
        progress.BarColumn(bar_width=20),
        progress.TextColumn("{task.fields[rate]}"),
        console=console,
        refresh_per_second=4,
    )
