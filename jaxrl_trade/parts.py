"""Parts of the user's own: a function, class or table in a file, named `file.py:NAME`, and known again by the file's hash.

A `Part` stands for what it names: it is called like it, equal parts are equal configs (so nothing compiles twice), and as JSON it
is found again by whoever resumes or backtests the run. The file is read when the part is first used, and refused once it has
changed. Nothing else is imported by name: a run's folder alone makes no code run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from jaxrl_trade.spelling import meant, meant_path


@dataclasses.dataclass(frozen=True)
class Part:
    """What `NAME` is in one state of one file.

    Attributes:
      path: of the file, absolute.
      name: in it.
      sha256: of the file's bytes.
    """

    path: str
    name: str
    sha256: str

    @classmethod
    def of(cls, text: str) -> Self:
        """The part that `file.py:NAME` names, loaded once to see that it is there.

        Raises:
          ValueError: it names no file, the file fails, or has no such name.
        """
        file, colon, name = text.rpartition(":")
        if not colon or not name.isidentifier() or not file.endswith(".py"):
            raise ValueError(f"{text!r} names no part; write it as file.py:NAME, such as my_reward.py:reward")
        path = Path(file).absolute()
        part = cls(path=str(path), name=name, sha256=_sha256(path))
        part.load()
        return part

    @classmethod
    def of_function(cls, value: Any) -> Self | None:
        """The part that a function or class at the top of a file is; None where there is no such file (a prompt, a closure)."""
        if isinstance(value, cls):
            return value
        name = getattr(value, "__qualname__", "")
        try:
            path = Path(inspect.getsourcefile(value) or "").absolute()
        except TypeError:
            return None
        if not name.isidentifier() or not path.is_file():
            return None
        return cls(path=str(path), name=name, sha256=_sha256(path))

    @classmethod
    def of_json(cls, data: Any, where: str) -> Self:
        """The part that `dataclasses.asdict` wrote.

        Raises:
          ValueError: it is something else; `where` is in the message.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(data, Mapping) or set(data) != names or not all(isinstance(x, str) for x in data.values()):
            raise ValueError(f"{where} is {data!r}, not the record of a part ({', '.join(sorted(names))})")
        return cls(**data)

    def load(self) -> Any:
        """What the name stands for.

        Raises:
          ValueError: the file is not there, has changed, fails, or has no such name.
        """
        if (found := _sha256(Path(self.path))) != self.sha256:
            raise ValueError(
                f"{self.path} has changed since the run began (sha256 {found[:12]} instead of {self.sha256[:12]}); restore it to "
                "use this run, or start a new one"
            )
        module = _module(self.path, self.sha256)
        if not hasattr(module, self.name):
            known = ", ".join(name for name in vars(module) if not name.startswith("_")) or "nothing"
            raise ValueError(f"{self.path} has no {self.name}; it has {known}{meant(self.name, vars(module))}")
        return getattr(module, self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls what the name stands for.

        Raises:
          ValueError: as `load`, or of whatever it raises, with the line of the file.
        """
        function = self.load()
        try:
            return function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{self} fails{_line_in(self.path, error)}: {type(error).__name__}: {error}") from error

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


def record(value: Callable[..., Any]) -> dict[str, str] | str:
    """A function or class for JSON: as a part where it is one, else its name, by which nobody finds it again."""
    part = Part.of_function(value)
    return f"{getattr(value, '__module__', '')}:{named(value)}" if part is None else dataclasses.asdict(part)


def named(value: Callable[..., Any]) -> str:
    """A function's name for people."""
    return value.name if isinstance(value, Part) else getattr(value, "__qualname__", type(value).__qualname__)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); it holds a part of the run{meant_path(path)}"
        ) from None


@functools.cache
def _module(path: str, sha256: str) -> Any:
    """The file as a module of its own, its folder among those that it may import from."""
    name = f"jaxrl_trade_part_{sha256[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with _importable(str(Path(path).parent)):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise ValueError(f"{path} fails{_line_in(path, error)}: {type(error).__name__}: {error}") from error
    return module


def _line_in(path: str, error: BaseException) -> str:
    """Where in the file an error came from, if it did."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f" in line {lines[-1]}" if lines else ""


@contextlib.contextmanager
def _importable(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
