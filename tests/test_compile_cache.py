"""The command line's compilation cache: a second process compiles nothing, and no folder of the user's can stop a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl_trade.cli import compile_cache
from tests.test_cli import SMALL

# the command as it is, with JAX's own counts of programs asked for and programs found written to a file at the end
COUNTED = """
import collections, json, pathlib, sys
from jaxrl_trade.cli import compile_cache, main
compile_cache.enable()  # as main does; the listener below needs JAX before it
import jax
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.split('/')[-1]]))
code = main()
pathlib.Path({file!r}).write_text(json.dumps(counts))
sys.exit(code)
"""


def start(words: list[str], folder: Path, cache: dict[str, str]) -> tuple[dict[str, int], str]:
    """A command in a process of its own: JAX's counts, and what it wrote to stderr."""
    kept = {name: text for name, text in os.environ.items() if name != "JAX_ENABLE_COMPILATION_CACHE"}
    code = COUNTED.format(file=str(folder / "counts.json"))
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env={**kept, **cache}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "counts.json").read_text()), done.stderr


def test_the_second_start_of_a_job_compiles_nothing(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    first, _ = start(["train", "ppo", *SMALL, "--out", str(tmp_path / "first")], tmp_path, cache)
    second, stderr = start(["train", "ppo", *SMALL, "--out", str(tmp_path / "second")], tmp_path, cache)
    asked = first["compile_requests_use_cache"]
    assert first.get("cache_hits", 0) < asked
    assert second["cache_hits"] == second["compile_requests_use_cache"] == asked
    assert "cache_misses" not in second
    assert "cache" not in stderr.lower()  # JAX would complain of one that it cannot use
    assert (tmp_path / "cache" / "jaxrl_trade" / "compiled").stat().st_mode & 0o077 == 0  # whoever writes there is run


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    code = "from jaxrl_trade.cli import compile_cache as c; c.enable(); import jax.numpy as jnp; print(jnp.ones(3) @ jnp.ones(3))"
    for cache in ({"XDG_CACHE_HOME": str(tmp_path / "file")}, {compile_cache.FOLDER: str(tmp_path / "file" / "x")}):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "true", **cache},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("3.0\n", "")


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"XDG_CACHE_HOME": "/tmp_path/x"}, "/tmp_path/x/jaxrl_trade/compiled"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/tmp_path"}, "/tmp_path/.cache/jaxrl_trade/compiled"),
        ({"HOME": "/tmp_path"}, "/tmp_path/.cache/jaxrl_trade/compiled"),
        ({"JAX_COMPILATION_CACHE_DIR": "/tmp_path/own"}, "/tmp_path/own"),
        ({"JAX_COMPILATION_CACHE_DIR": ""}, None),
    ],
)
def test_where_programs_are_kept(
    given: dict[str, str], folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {name: text.replace("/tmp_path", str(tmp_path)) for name, text in given.items()}
    monkeypatch.setenv("HOME", environment.get("HOME", ""))
    compile_cache.enable(environment)
    expected = None if folder is None else folder.replace("/tmp_path", str(tmp_path))
    assert environment.get("JAX_COMPILATION_CACHE_DIR") == expected


def test_the_oldest_programs_go_when_there_are_too_many(tmp_path: Path) -> None:
    folder = tmp_path / "jaxrl_trade" / "compiled"
    folder.mkdir(parents=True)
    for age, name in enumerate(["new", "middle", "old"]):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    compile_cache.enable({"XDG_CACHE_HOME": str(tmp_path)}, limit=250)
    assert sorted(path.name for path in folder.iterdir()) == ["middle", "new"]


def test_importing_the_package_sets_nothing() -> None:
    code = "import os; before = dict(os.environ); import jaxrl_trade.cli, jaxrl_trade.train.loop; print(dict(os.environ) == before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
