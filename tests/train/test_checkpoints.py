"""Checkpoints are whole or absent, come back bit for bit, and say in one line what is wrong with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_trade.train.checkpoints import Checkpoints, DamagedCheckpointError

TREE: dict[str, Any] = {
    "weights": [jnp.linspace(-1.0, 1.0, 300).reshape(3, 100), jnp.zeros((0, 4), jnp.int32)],
    "key": jax.random.key(7),
    "count": jnp.int32(3),
    "flags": jnp.array([True, False]),
}


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoints:
    """A folder with checkpoints after 2 and 4 updates."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for update in (2, 4):
        checkpoints.save(update, TREE, {"update": update, "env_steps": 3_000_000_000})
    return checkpoints


def like(**changes: Any) -> Any:
    return jax.eval_shape(lambda: {**TREE, **changes})


def complaint_of(checkpoints: Checkpoints) -> str:
    try:
        checkpoints.restore(4, like())
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def test_a_tree_comes_back_bit_for_bit_with_its_typed_keys_and_facts(saved: Checkpoints) -> None:
    tree, facts = saved.restore(4, like())
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(TREE), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)
    assert facts == {"update": 4, "env_steps": 3_000_000_000}  # more than int32 holds


def test_the_generator_of_a_key_comes_back(tmp_path: Path) -> None:
    key = jax.random.key(1, impl="rbg")
    Checkpoints(tmp_path).save(1, {"key": key}, {})
    restored = Checkpoints(tmp_path).restore(1, {"key": jax.random.key(0, impl="rbg")})[0]["key"]
    assert restored.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(restored), jax.random.key_data(key))


def test_updates_lists_complete_checkpoints_in_order(saved: Checkpoints) -> None:
    saved.save(100, TREE, {})
    (saved.folder / ".partial_00000101").mkdir()  # a killed process was writing it
    assert saved.updates() == [2, 4, 100]
    saved.prune({4})
    assert [path.name for path in saved.folder.iterdir()] == ["update_00000004"]


def test_a_write_that_fails_leaves_the_checkpoints_as_they_were(
    saved: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("jaxrl_trade.train.checkpoints.write_whole", fail)
    with pytest.raises(OSError, match="no space left"):
        saved.save(6, TREE, {})
    assert saved.updates() == [2, 4]
    saved.restore(4, like())


def test_every_truncated_file_is_found(saved: Checkpoints, tmp_path: Path) -> None:
    files = [path.relative_to(saved.folder) for path in saved.path(4).rglob("*") if path.is_file()]
    assert len(files) > 3
    for file in files:
        copy = Checkpoints(tmp_path / "copy")
        shutil.copytree(saved.folder, copy.folder)
        whole = (copy.folder / file).read_bytes()
        (copy.folder / file).write_bytes(whole[: len(whole) // 2])
        message = complaint_of(copy)
        if message:
            assert "\n" not in message
            assert "update_00000004" in message
        else:  # a file that Orbax does not need: then nothing may be lost
            np.testing.assert_array_equal(copy.restore(4, like())[0]["weights"][0], TREE["weights"][0])
        shutil.rmtree(copy.folder)


def test_other_arrays_or_facts_than_were_saved_are_found_by_their_hash(saved: Checkpoints) -> None:
    path = saved.path(4) / "checkpoint.json"
    described = json.loads(path.read_text())
    for changes in ({"sha256": "0" * 64}, {"facts": {"update": 4}}):
        path.write_text(json.dumps({**described, **changes}))
        with pytest.raises(DamagedCheckpointError, match="its content is not what was saved"):
            saved.restore(4, like())


def test_an_incomplete_checkpoint_is_told_apart(saved: Checkpoints) -> None:
    (saved.path(2) / "checkpoint.json").unlink()
    with pytest.raises(DamagedCheckpointError, match=r"update_00000002 is incomplete: it has no checkpoint\.json"):
        saved.restore(2, like())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": jnp.zeros(3)}, r"another agent's: it lacks \['more'\] \(1 of 6 arrays\)"),
        ({"flags": {}}, r"another agent's: it also holds \['flags'\]"),
        ({"count": jnp.zeros(2, jnp.int32)}, r"\['count'\] is int32 \[\], this run has int32 \[2\]"),
        ({"flags": jnp.zeros(2, jnp.int32)}, r"\['flags'\] is bool \[2\], this run has int32 \[2\]"),
    ],
)
def test_a_foreign_tree_is_refused_by_the_first_array_that_differs(
    saved: Checkpoints, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        saved.restore(4, like(**changes))


def test_a_checkpoint_of_another_format_is_refused(saved: Checkpoints) -> None:
    path = saved.path(4) / "checkpoint.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(ValueError, match="has format 1, this version of jaxrl_trade reads 2"):
        saved.restore(4, like())
    path.write_text('{"something": "else"}')
    with pytest.raises(DamagedCheckpointError, match="damaged or from another program"):
        saved.restore(4, like())


def test_a_checkpoint_that_cannot_be_written_leaves_the_ones_before_it(
    saved: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no space\nsomewhere deep")  # not an OSError, as of Orbax' storage

    monkeypatch.setattr("orbax.checkpoint.StandardCheckpointer.save", fail)
    for update in (4, 6):
        with pytest.raises(
            OSError, match=rf"update_0000000{update} cannot be written \(no space\); the ones before it"
        ):
            saved.save(update, TREE, {})
    assert saved.updates() == [2, 4]
    assert not complaint_of(saved)
    assert not list(saved.folder.glob(".partial*"))
