"""Did you mean: the known name nearest to a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name most like the word, however it is capitalised; None where none is like it."""
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean NAME?` for the end of a sentence, or nothing."""
    name = nearest(word, known)
    return "" if name is None else f"; did you mean {name}?"


def meant_path(path: Path) -> str:
    """`meant` among what lies beside a path that does not exist."""
    try:
        beside = [other.name for other in path.parent.iterdir()]
    except OSError:
        return ""
    name = nearest(path.name, beside)
    return "" if name is None or name == path.name else f"; did you mean {path.with_name(name)}?"
