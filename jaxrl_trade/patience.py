"""A word on stderr for whatever takes longer than two seconds: what it is, and for how long already."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

AFTER = 2.0  # seconds of silence
PLAIN_INTERVAL = 30.0  # seconds between lines where there is no terminal


@contextlib.contextmanager
def working(what: str, after: float = AFTER) -> Iterator[None]:
    """Says `what` is going on if it takes longer than `after` seconds: a clock on a terminal, a line now and then elsewhere.

    The word goes again on a terminal, so that nothing is left of it among the results.
    """
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, after, done, sys.stderr), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(what: str, after: float, done: threading.Event, stream: TextIO) -> None:
    began = time.monotonic()
    if done.wait(after):
        return
    is_terminal = stream.isatty()
    with contextlib.suppress(OSError, ValueError):  # a stream that was closed is no reason to fail
        if not is_terminal:
            print(f"{what} ...", file=stream, flush=True)
        while not done.wait(1.0 if is_terminal else PLAIN_INTERVAL):
            seconds = round(time.monotonic() - began)
            if is_terminal:
                print(f"\r{what} ... {seconds} s", end="", file=stream, flush=True)
            else:
                print(f"{what} ... {seconds} s", file=stream, flush=True)
        if is_terminal:
            print("\r\x1b[K", end="", file=stream, flush=True)
