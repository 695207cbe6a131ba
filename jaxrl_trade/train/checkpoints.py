"""Checkpoints: a pytree of arrays and a few facts beside it, written whole or not at all, checked when read.

A checkpoint is the folder `update_00000040`: `state/` (Orbax, every leaf under its path in the tree) and `checkpoint.json` (the
facts, the leaves' shapes and dtypes, a hash of them all). It is written under another name and renamed when it is complete.
Several processes call every method together, on a folder that all of them see: each writes its own part of what is divided over
them, and reads all. Knows nothing of agents: any tree with typed keys in it will do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from jaxrl_trade import hosts
from jaxrl_trade.train.files import reason, write_whole

Tree = TypeVar("Tree")
FORMAT = 2
FACTS = "checkpoint.json"
_PREFIX, _PARTIAL = "update_", ".partial_"


class DamagedCheckpointError(OSError):
    """A checkpoint that is incomplete, or not what was written."""


class Checkpoints:
    """The checkpoints of one run, by the number of updates they were written after."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, update: int) -> Path:
        """Folder of the checkpoint after that many updates."""
        return self.folder / f"{_PREFIX}{update:08d}"

    def updates(self) -> list[int]:
        """Updates that have a checkpoint, ascending."""
        names = (p.name for p in self.folder.glob(f"{_PREFIX}*") if p.is_dir())
        return sorted(int(n.removeprefix(_PREFIX)) for n in names if n.removeprefix(_PREFIX).isdigit())

    def save(self, update: int, tree: Any, facts: dict[str, Any]) -> Path:
        """Writes a checkpoint; a process killed meanwhile leaves the ones before it as they were.

        Args:
          update: updates done.
          tree: of arrays and typed keys.
          facts: JSON values to keep beside it.
        Raises:
          OSError: it cannot be written: a full disk, say.
        """
        arrays, path = _data(tree), self.path(update)
        leaves = _to_host(arrays)
        described = {"format": FORMAT, "facts": facts, "leaves": _describe(leaves), "sha256": _digest(leaves, facts)}
        text = json.dumps(described, indent=1, allow_nan=False)
        partial = self.folder / f"{_PARTIAL}{update:08d}"
        try:
            with hosts.together():
                if hosts.is_first():
                    shutil.rmtree(partial, ignore_errors=True)
                    partial.mkdir(parents=True)
            with hosts.together():
                _write_leaves(partial, leaves if hosts.count() == 1 else {name: arrays[name] for name in leaves})
            with hosts.together():
                if hosts.is_first():
                    write_whole(partial / FACTS, text)
                    shutil.rmtree(path, ignore_errors=True)  # of a run that was resumed from before it
                    partial.rename(path)
        except Exception as error:  # Orbax and its storage have no common error for a disk that is full
            if hosts.is_first():
                shutil.rmtree(partial, ignore_errors=True)
            raise OSError(
                f"checkpoint {path} cannot be written ({reason(error)}); the ones before it stay, resume from them"
            ) from None
        return path

    def facts(self, update: int) -> dict[str, Any]:
        """The facts beside a checkpoint, whose arrays are not looked at.

        Raises:
          DamagedCheckpointError, ValueError: as `restore`.
        """
        return self._read_description(update)["facts"]

    def restore(self, update: int, like: Tree) -> tuple[Tree, dict[str, Any]]:
        """The tree of a checkpoint, and the facts kept beside it.

        Args:
          update: of the checkpoint.
          like: a tree of the same structure, shapes and dtypes; arrays or `jax.ShapeDtypeStruct`s.
        Raises:
          DamagedCheckpointError: it is incomplete or damaged.
          ValueError: its leaves are not those of `like` (the message names the first that differs), or its format is another's.
        """
        described, path = self._read_description(update), self.path(update)
        wanted = {name: _shape_and_dtype(leaf) for name, leaf in _named(like).items()}
        _check_structure(described["leaves"], {name: [list(s), str(d)] for name, (s, d) in wanted.items()}, path)
        leaves = self._read_leaves(update, {name: np.zeros(shape, dtype) for name, (shape, dtype) in wanted.items()})
        if _digest(leaves, described["facts"]) != described["sha256"]:
            raise DamagedCheckpointError(f"{path} is damaged: its content is not what was saved")
        return _to_device(leaves, like), described["facts"]

    def prune(self, keep: set[int]) -> None:
        """Deletes every other checkpoint, and what a killed process left half written."""
        for update in self.updates():
            if update not in keep:
                shutil.rmtree(self.path(update))
        for partial in self.folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(partial, ignore_errors=True)

    def _read_leaves(self, update: int, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        import orbax.checkpoint as ocp

        path = self.path(update)
        try:
            with _quiet_storage(), ocp.StandardCheckpointer() as checkpointer:
                return like | checkpointer.restore(path.absolute() / "state", _filled(like))
        except MemoryError:
            raise
        except Exception as error:  # Orbax and its storage have no common error for broken files
            raise DamagedCheckpointError(f"{path} is damaged or cut off ({reason(error)})") from None

    def _read_description(self, update: int) -> dict[str, Any]:
        path = self.path(update) / FACTS
        try:
            described = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(described, dict) or not {"format", "facts", "leaves", "sha256"} <= set(described):
                raise ValueError("other fields")
        except FileNotFoundError:
            raise DamagedCheckpointError(f"{path.parent} is incomplete: it has no {FACTS}") from None
        except ValueError:
            raise DamagedCheckpointError(f"{path} is damaged or from another program") from None
        if described["format"] != FORMAT:
            raise ValueError(f"{path} has format {described['format']}, this version of jaxrl_trade reads {FORMAT}")
        return described


def _write_leaves(partial: Path, leaves: dict[str, Any]) -> None:
    """Writes the arrays into `partial`, an empty folder."""
    import orbax.checkpoint as ocp

    with _quiet_storage(), ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(partial.absolute() / "state", _filled(leaves))
        checkpointer.wait_until_finished()


@contextlib.contextmanager
def _quiet_storage() -> Iterator[None]:
    """Inside, Orbax logs nothing: what fails is an exception, and told in one line."""
    if not isinstance(sys.unraisablehook, _WithoutLateCallbacks):
        sys.unraisablehook = _WithoutLateCallbacks(sys.unraisablehook)
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


class _WithoutLateCallbacks:
    """A `sys.unraisablehook` without TensorStore's callbacks that come, from its own threads, when Orbax has given up on them."""

    def __init__(self, otherwise: Callable[[Any], Any]) -> None:
        self._otherwise = otherwise

    def __call__(self, unraisable: Any) -> None:
        if not (unraisable.object is None and str(unraisable.exc_value) == "Event loop is closed"):
            self._otherwise(unraisable)


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by their path in the tree."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _shape_and_dtype(leaf: Any) -> tuple[tuple[int, ...], np.dtype]:
    data = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    return tuple(data.shape), np.dtype(data.dtype)


def _data(tree: Any) -> dict[str, Any]:
    """Leaves by their path, of typed keys the data."""
    return _named(jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree))


def _to_host(arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """In NumPy, and whole, whichever processes hold the parts."""
    is_here = lambda x: not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated  # noqa: E731
    whole = {name: x if is_here(x) else multihost_utils.process_allgather(x, tiled=True) for name, x in arrays.items()}
    return {name: np.array(leaf) for name, leaf in jax.device_get(whole).items()}


def _to_device(leaves: dict[str, np.ndarray], like: Tree) -> Tree:
    def put(path: Any, leaf: Any) -> jax.Array:
        value = jnp.array(leaves[jax.tree_util.keystr(path)])  # a copy: the loop donates it
        return jax.random.wrap_key_data(value, impl=_key_impl(leaf)) if _is_key(leaf) else value

    return jax.tree_util.tree_map_with_path(put, like)


def _key_impl(leaf: Any) -> Any:
    """The generator of a typed key, also of a `jax.ShapeDtypeStruct`: only a traced or concrete key tells."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return found[0]


def _filled(leaves: dict[str, Any]) -> dict[str, Any]:
    """Without the empty arrays, which Orbax refuses; their shapes say all there is to them."""
    return {name: leaf for name, leaf in leaves.items() if leaf.size}


def _describe(leaves: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    return {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in leaves.items()}


def _digest(leaves: dict[str, np.ndarray], facts: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(leaves):
        digest.update(name.encode() + np.ascontiguousarray(leaves[name]).tobytes())
    return digest.hexdigest()


def _check_structure(saved: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    if missing := sorted(set(wanted) - set(saved)):
        raise ValueError(f"{path} is another agent's: it lacks {missing[0]} ({len(missing)} of {len(wanted)} arrays)")
    if unknown := sorted(set(saved) - set(wanted)):
        raise ValueError(f"{path} is another agent's: it also holds {unknown[0]} ({len(unknown)} arrays more)")
    for name in sorted(wanted):
        if saved[name] != wanted[name]:
            (shape, dtype), (wanted_shape, wanted_dtype) = saved[name], wanted[name]
            raise ValueError(
                f"{path} is from other settings: {name} is {dtype} {shape}, this run has {wanted_dtype} {wanted_shape}"
            )
