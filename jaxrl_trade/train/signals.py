"""A polite end: Ctrl-C and SIGTERM ask the loop to stop, the loop stops where its state is whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """Whether somebody asked the run to end, and how: `.signal` is "SIGINT", "SIGTERM" or None."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """While inside, the first SIGINT or SIGTERM is noted only; a second one acts as it did before.

    Outside the main thread, where Python allows no handlers, nothing is caught.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        request.signal = signal.Signals(number).name
        restore()

    try:
        for number in before:
            signal.signal(number, note)
        yield request
    finally:
        restore()
