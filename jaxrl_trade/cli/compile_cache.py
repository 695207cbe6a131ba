"""The command line's store of compiled programs: a job's second start finds there what its first one compiled.

Decides where it lies and how large it grows; the rest is JAX's persistent compilation cache, which knows by itself what a program
depends on (its code, the flags and versions of XLA, the kind of device). Imports no JAX, which reads these settings when it is
imported; importing the package without the command line sets none.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import MutableMapping
from pathlib import Path

FOLDER = "JAX_COMPILATION_CACHE_DIR"  # JAX's own name: another folder, or empty for none
LIMIT = 512 * 2**20  # bytes of programs kept, where the folder is ours; a job leaves one to a few MB


def enable(environment: MutableMapping[str, str] = os.environ, limit: int = LIMIT) -> None:
    """Lets JAX keep compiled programs of any size, in the folder the user names, else in one of the user's cache.

    Silent, and without effect where that folder cannot be written.

    Args:
      environment: of this process; what it says of JAX's cache already stays.
      limit: bytes; the programs stored first go until the others fit.
    """
    named = environment.get(FOLDER)
    if named == "":
        del environment[FOLDER]  # to JAX an empty name is the working folder
    if named is None:
        folder = _own_folder(environment)
        if folder is None:
            return
        _prune(folder, limit)
        environment[FOLDER] = str(folder)
    environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    # a full disk, or a program that a killed process left half written: compiled anew, as without a cache
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


def _own_folder(environment: MutableMapping[str, str]) -> Path | None:
    """$XDG_CACHE_HOME/jaxrl_trade/compiled, made for this user alone: who writes there decides what runs here."""
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    try:
        if not base.is_absolute():  # as the XDG specification wants
            base = Path.home() / ".cache"
        folder = base / "jaxrl_trade" / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if os.access(folder, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        return None


def _prune(folder: Path, limit: int) -> None:
    kept = 0
    with contextlib.suppress(OSError):  # another process prunes, too
        entries = [(path.lstat(), path) for path in folder.rglob("*") if not path.is_dir()]
        for status, path in sorted(entries, key=lambda entry: entry[0].st_mtime, reverse=True):
            kept += status.st_size
            if kept > limit:
                path.unlink()
