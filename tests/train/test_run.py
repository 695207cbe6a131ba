"""The run folder: what it says of a run, and the policy it gives back or refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.bars import FEATURE_NAMES, FEATURE_VERSION
from jaxrl_trade.train.choice import Choice, load_choice, save_choice
from jaxrl_trade.train.provenance import market_digest
from jaxrl_trade.train.run import check_same_run, create_run, load_config, read_facts
from tests.train import tiny

CONFIG = tiny.config()
KEY = jax.random.key(42)
PARAMS = jax.tree.map(np.ones_like, jt.init_ppo(KEY, CONFIG, tiny.FEATURES))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with weights."""
    folder = tmp_path / "run"
    create_run(folder, tiny.market(), CONFIG, KEY, 1, {"seed": 42})
    save_choice(folder, PARAMS, Choice(2, 4, 0.0123, 3))
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_config_and_the_facts_are_kept(folder: Path) -> None:
    assert load_config(folder) == CONFIG
    facts = read_facts(folder)
    assert facts["seed"] == 42
    assert facts["key"] == np.asarray(jax.random.key_data(KEY)).tolist()
    assert facts["feature_names"] == list(tiny.NAMES)
    assert facts["feature_version"] is None  # not the list of jaxrl_trade
    assert {"jax", "flax", "optax", "numpy", "jaxrl_trade", "python"} <= set(facts["versions"])
    assert facts["device"].startswith(f"{len(jax.devices())} x ")
    assert facts["market"]["bars"] == [tiny.EPISODE + 1]
    assert {"commit", "command", "started", "x64"} <= set(facts)


def test_the_market_is_known_by_its_prices_and_its_split() -> None:
    whole = tiny.market(400)
    first, second = jt.split(whole, (0.5, 0.5), embargo=0)
    digests = {market_digest(m) for m in (whole, first, second, tiny.market(400, seed=1))}
    assert len(digests) == 4
    assert market_digest(tiny.market(400)) in digests


def test_a_market_of_own_features_is_known_by_them_too() -> None:
    market = tiny.market()
    other = dataclasses.replace(market, features=market.features + 1.0)
    assert market_digest(other) != market_digest(market)


def test_load_policy_computes_the_chosen_actor(folder: Path) -> None:
    policy = jt.load_policy(folder, tiny.NAMES)
    logits = policy(jnp.zeros((3, tiny.FEATURES + 3)))
    # weights and biases are 1: a hidden value is 0 x 1 + 1 = 1, a logit 8 x 1 + 1 = 9
    np.testing.assert_array_equal(logits, np.full((3, 45), 9.0))


def test_new_weights_replace_the_old_ones_whole(folder: Path) -> None:
    save_choice(folder, jax.tree.map(np.zeros_like, PARAMS), Choice(4, 4, None))
    assert load_choice(folder) == Choice(4, 4, None)
    assert not np.any(jt.load_policy(folder, tiny.NAMES).params["policy_output"]["kernel"])
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "run.json", "weights"]


def test_a_choice_says_in_words_which_weights_it_is() -> None:
    assert str(Choice(40, 100, 0.0123, 10)) == (
        "the weights after update 40 of 100, the best of 10 on validation after costs (+1.23%)"
    )
    assert str(Choice(100, 100, None)) == "the last weights, after update 100 (not chosen on validation bars)"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("one", "two", "three", "four", "six"), "it also has five; it lacks six"),
        (tiny.NAMES[:4], "it also has five"),
        ((*tiny.NAMES, "six"), "it lacks six"),
        (("two", "one", "three", "four", "five"), "one is at another place"),
        (None, "it also has one, two, three, four, five; it lacks ret_1"),  # the 51 of jaxrl_trade
    ],
)
def test_a_run_of_another_feature_list_is_refused_with_the_difference(folder: Path, names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"was trained on another feature list: {message}"):
        jt.load_policy(folder, names)


def test_a_run_of_another_feature_version_is_refused(folder: Path) -> None:
    edit(folder / "run.json", feature_names=list(FEATURE_NAMES), feature_version=FEATURE_VERSION + 1)
    with pytest.raises(
        ValueError, match=rf"version {FEATURE_VERSION + 1} of the features, this is version {FEATURE_VERSION}"
    ):
        jt.load_policy(folder)


def test_a_run_of_another_feature_version_is_not_resumed(tmp_path: Path) -> None:
    market = dataclasses.replace(tiny.market(), features=jnp.zeros((65, 51)), feature_names=FEATURE_NAMES)
    create_run(tmp_path / "run", market, CONFIG, KEY, 1, {})
    check_same_run(tmp_path / "run", market, CONFIG, KEY)
    edit(tmp_path / "run" / "run.json", feature_version=FEATURE_VERSION + 1)
    with pytest.raises(ValueError, match=rf"version {FEATURE_VERSION + 1} of the features"):
        check_same_run(tmp_path / "run", market, CONFIG, KEY)


def test_a_run_of_other_floats_is_not_resumed(folder: Path) -> None:
    edit(folder / "run.json", x64=True)
    with pytest.raises(ValueError, match="trained with jax_enable_x64 = True, here it is False; set it alike"):
        check_same_run(folder, tiny.market(), CONFIG, KEY)


@pytest.mark.parametrize(
    ("name", "value"), [("feature_names", None), ("n_features", "many"), ("market", None), ("agent", None)]
)
def test_a_run_json_of_other_types_is_damaged(folder: Path, name: str, value: Any) -> None:
    edit(folder / "run.json", **{name: value})
    with pytest.raises(ValueError, match=rf"run\.json is damaged: {name} is {value!r}"):
        jt.load_policy(folder, tiny.NAMES)


@pytest.mark.parametrize("changes", [{"update": "two"}, {"score": "good"}, {"extra": 1}])
def test_a_choice_of_other_fields_is_damaged(folder: Path, changes: dict[str, Any]) -> None:
    edit(folder / "weights" / "chosen.json", **changes)
    with pytest.raises(ValueError, match=r"chosen\.json is damaged"):
        load_choice(folder)


def test_a_run_needs_a_folder_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(NotADirectoryError, match=r"notes\.txt is a file; a run needs a folder"):
        create_run(tmp_path / "notes.txt", tiny.market(), CONFIG, KEY, 1, {})


def test_what_is_no_run_is_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"elsewhere is no run folder: it has no run\.json"):
        jt.load_policy(tmp_path / "elsewhere")
    create_run(tmp_path / "young", tiny.market(), CONFIG, KEY, 1, {})
    with pytest.raises(FileNotFoundError, match="young has no weights yet"):
        jt.load_policy(tmp_path / "young", tiny.NAMES)
    edit(folder / "config.json", more=1)
    edit(folder / "run.json", config=json.loads((folder / "config.json").read_text()))
    with pytest.raises(ValueError, match=r"config\.json: the config has more, which PPOConfig does not know"):
        load_config(folder)
    edit(folder / "run.json", agent="sarsa")
    with pytest.raises(ValueError, match=r"run\.json: agent 'sarsa' is none of ppo, dqn"):
        load_config(folder)
    (folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        jt.load_policy(folder, tiny.NAMES)


def test_a_folder_that_holds_a_run_is_not_taken(folder: Path) -> None:
    with pytest.raises(FileExistsError, match="already holds a run"):
        create_run(folder, tiny.market(), CONFIG, KEY, 1, {})
