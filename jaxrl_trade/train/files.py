"""Files of a run's folder: written whole or not at all, and by one process at a time."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxrl_trade.spelling import meant_path

LOCK = ".lock"


def write_whole(path: Path, text: str) -> None:
    """Writes or replaces a text file; a process killed meanwhile leaves what was there before.

    Raises:
      OSError: the system's, with this file's name: a full disk, say.
    """
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the place for a file that takes the place of `path` once it is written, and goes if that fails.

    Raises:
      OSError: the system's, with this file's name.
    """
    partial = path.with_suffix(".partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        error.filename = str(path)
        raise


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Writes or replaces a JSON file, as `write_whole`."""
    write_whole(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a run's folder.

    Raises:
      OSError: there is no such file.
      ValueError: it holds something else.
    """
    if not path.exists():
        hint = _run_inside(path.parent) or meant_path(path.parent)
        raise FileNotFoundError(f"{path.parent} is no run folder: it has no {path.name}{hint}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return data


def _run_inside(folder: Path) -> str:
    """Where the first run of a folder of several lies, as `meant`: that of a sweep or of a walk-forward."""
    runs = (folder / "chosen" / "seed-0", folder / "seed-0" / "fold-1", folder / "fold-1", folder / "seed-0")
    found = next((run for run in runs if run.is_dir()), None)
    return "" if found is None else f"; it holds several runs, such as {found}"


def reason(error: Exception) -> str:
    """Why reading or writing failed, in a few words: the system's own where they can be found."""
    text = str(error).strip()
    if found := re.search(r"os_error_code='(\d+)'", text):  # in TensorStore's messages, which name their own files
        return os.strerror(int(found[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return text.split("\n")[0][:160] or type(error).__name__


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a run's folder while inside; the lock dies with the process that holds it.

    Raises:
      OSError: another process is inside.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        yield
        return
    with (folder / LOCK).open("a") as file:  # a file: NFS locks no folders
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                f"another process is training in {folder}; wait until it has ended, or stop it, before you resume the run"
            ) from None
        except OSError:  # a file system without locks keeps nobody out
            pass
        yield
