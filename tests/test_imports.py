"""Imports point down, and heavy libraries are loaded where they are used. Each check runs in a process of its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = (
    "pandas",
    "talib",
    "matplotlib",
    "plotly",
    "gymnasium",
    "tensorboardX",
    "tensorboard",
    "tyro",
    "empyrical",
    "arch",
    "pyarrow",
)

# What a room must not import: everything above it.
ABOVE = {
    "pallas_kernels": ("jaxrl_trade",),
    "jaxrl_trade/config.py": ("jaxrl_trade",),
    "jaxrl_trade/bars": tuple(
        f"jaxrl_trade.{x}" for x in ("market", "env", "networks", "rollout", "agents", "train", "scale", "cli")
    ),
    "jaxrl_trade/env": tuple(f"jaxrl_trade.{x}" for x in ("networks", "rollout", "agents", "train", "scale", "cli")),
    "jaxrl_trade/networks": tuple(f"jaxrl_trade.{x}" for x in ("env", "rollout", "agents", "train", "scale", "cli")),
    "jaxrl_trade/rollout": tuple(f"jaxrl_trade.{x}" for x in ("agents", "train", "scale", "cli")),
    "jaxrl_trade/agents": tuple(f"jaxrl_trade.{x}" for x in ("train", "scale", "cli")),
    "jaxrl_trade/scale": tuple(f"jaxrl_trade.{x}" for x in ("train.loop", "train.session", "cli")),
    "jaxrl_trade/collectives.py": ("jaxrl_trade",),
}


def test_importing_the_package_loads_no_heavy_library():
    loaded = _run(f"import sys, jaxrl_trade; print([m for m in {HEAVY!r} if m in sys.modules])")
    assert loaded == "[]"


def test_importing_the_command_line_loads_no_jax():
    """So that its first act can be to answer Ctrl-C."""
    assert _run("import sys, jaxrl_trade.cli; print('jax' in sys.modules)") == "False"


def test_importing_the_kernels_loads_nothing_of_the_package():
    loaded = _run("import sys, pallas_kernels; print([m for m in sys.modules if m.startswith('jaxrl_trade')])")
    assert loaded == "[]"


@pytest.mark.parametrize("room", ABOVE)
def test_imports_point_down(room):
    path = ROOT / room
    files = [path] if path.suffix else sorted(path.rglob("*.py"))
    assert files
    wrong = [f"{f.name}: {name}" for f in files for name in _imports(f) if _is_in(name, ABOVE[room])]
    assert not wrong


def _imports(file: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def _is_in(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout.strip().splitlines()[-1]
