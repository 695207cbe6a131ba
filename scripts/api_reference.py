"""The reference of the public functions and classes, from their docstrings, as HTML.

    python scripts/api_reference.py build/docs

writes index.html and a page for each room, of the names in its `__all__` and nothing else, and prints the path. `make docs`
runs it. A type that cannot be resolved, or a name that is not there, is an error.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
import sys
import typing
import warnings
from pathlib import Path
from types import ModuleType

import jax
import pdoc.doc
import pdoc.render

PACKAGES = ("jaxrl_trade", "pallas_kernels")


class Room(pdoc.doc.Module):
    """A package by its public names. Its modules are its own affair."""

    submodules: typing.ClassVar = []


def main() -> None:
    """Writes the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder")
    out = parser.parse_args().out
    warnings.simplefilter("error", UserWarning)
    # not where JAX keeps them
    jax.Array.__qualname__, jax.Device.__module__, jax.sharding.Mesh.__module__ = "Array", "jax", "jax.sharding"
    rooms = public_rooms()
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        import_for_types(sys.modules[name])
    for room in rooms:
        resolve_named_tuples(room)
    pdoc.render.configure(docformat="google", show_source=False, footer_text="jaxrl_trade")
    pages: dict[str, pdoc.doc.Module] = {room.__name__: Room(room) for room in rooms}
    for name, page in pages.items():
        path = out / f"{name.replace('.', '/')}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(readable(pdoc.render.html_module(page, pages)), encoding="utf-8")
    index = out / "index.html"
    index.write_text(pdoc.render.html_index(pages), encoding="utf-8")
    print(index)


def public_rooms() -> list[ModuleType]:
    """The packages that say what is public in them."""
    found = []
    for package in map(importlib.import_module, PACKAGES):
        inner = [each.name for each in pkgutil.iter_modules(package.__path__) if each.ispkg]
        rooms = [package, *(importlib.import_module(f"{package.__name__}.{name}") for name in sorted(inner))]
        found += [room for room in rooms if hasattr(room, "__all__")]
    return found


def import_for_types(module: ModuleType) -> None:
    """Gives a module the names that it imports for type checkers alone: its annotations use them, its lazy names are there."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), str(module.__file__), "exec"), module.__dict__)
    module.__dict__.setdefault("Bars", importlib.import_module("jaxrl_trade").Bars)  # FeatureFunction has it as a text


def resolve_named_tuples(room: ModuleType) -> None:
    """Lets the constructors of named tuples know the types of their fields, which their own module does not."""
    for value in (getattr(room, name) for name in room.__all__):
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            value.__new__.__annotations__ = typing.get_type_hints(value)


def readable(html: str) -> str:
    """The page with `**options` alone for `**options: Unpack[...]`, which Python 3.11 spells as the repr of a class."""
    return re.sub(r"(\*\*\w+): \*&lt;class .*?&gt;", r"\1", html)


if __name__ == "__main__":
    main()
