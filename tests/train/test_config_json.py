"""Configs survive JSON whole, and what JSON got wrong is named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import jaxrl_trade as jt
from jaxrl_trade.config import DQNConfig
from jaxrl_trade.parts import Part
from jaxrl_trade.train.config_json import config_from_dict, config_to_dict, differences

TABLE = jt.ExecutionTable(
    exposure=(-1, 0.1, 1),
    fee_rate=(0.1, 0.2, 0.3),
    fill_ratio=(1, 1, 0.5),
    price_offset=(0, 0.1, -1),
    is_maker=(False, False, True),
)
CONFIGS = {
    "plan": jt.PPOConfig(),
    "net": jt.PPOConfig.net(),
    "other": jt.PPOConfig(
        env=jt.EnvConfig(execution=TABLE, reserve_fraction=None, spread=1 / 3),
        hypers=jt.PPOHypers(reward=jt.RewardScales(risk_weight=1e-17), learning_rate=0.1 + 0.2),
        target_kl=0.01,
        actor_hidden=(3,),
    ),
    "dqn": DQNConfig.net(),
}


def through_json(config: Any) -> Any:
    return json.loads(json.dumps(config_to_dict(config), allow_nan=False))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_comes_back_equal(name: str) -> None:
    config = CONFIGS[name]
    assert config_from_dict(type(config), through_json(config)) == config


def test_hyperparameters_on_the_device_become_numbers() -> None:
    config = jt.PPOConfig(hypers=jt.PPOHypers(learning_rate=jnp.asarray(0.25)))
    assert config_to_dict(config)["hypers"]["learning_rate"] == 0.25
    with pytest.raises(ValueError, match="gamma holds 2 values; a run has one"):
        config_to_dict(jt.PPOConfig(hypers=jt.PPOHypers(gamma=jnp.zeros(2))))


def my_reward(*given: Any) -> Any:
    return given


def my_mask(account: Any, execution: Any, close: Any) -> Any:
    raise NotImplementedError


def my_network(outputs: int) -> Any:
    raise NotImplementedError


def test_a_function_of_a_file_is_kept_by_its_place_and_the_hash_of_the_file() -> None:
    config = jt.PPOConfig(reward_fn=my_reward, network=my_network, env=jt.EnvConfig(mask=my_mask))
    data = through_json(config)
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    assert data["reward_fn"] == {"path": __file__, "name": "my_reward", "sha256": digest}
    found = config_from_dict(jt.PPOConfig, data)
    assert found.reward_fn is not None
    assert found.reward_fn(3) == (3,)  # the file's own, read again
    assert found.network == Part.of(f"{__file__}:my_network")
    assert found.env == jt.EnvConfig(mask=Part.of(f"{__file__}:my_mask"))
    assert data["env"]["mask"] == {"path": __file__, "name": "my_mask", "sha256": digest}
    assert config_from_dict(jt.PPOConfig, data, my_reward, my_network, my_mask) == config


def test_a_function_of_no_file_is_kept_by_name_and_given_back_by_hand() -> None:
    def inner(*_: Any) -> Any:
        raise NotImplementedError

    data = through_json(jt.PPOConfig(reward_fn=inner))
    assert data["reward_fn"].startswith(f"{__name__}:test_a_function_of_no_file")
    assert config_from_dict(jt.PPOConfig, data).reward_fn is None
    assert config_from_dict(jt.PPOConfig, data, inner).reward_fn is inner
    with pytest.raises(ValueError, match=r"network .*<lambda> is in no file that could be read again"):
        config_from_dict(jt.PPOConfig, through_json(jt.PPOConfig(network=lambda outputs: None)))


def changed(path: str, value: Any) -> dict[str, Any]:
    """The net preset with one value replaced, or removed where it is `...`."""
    data = through_json(CONFIGS["net"])
    *parents, name = path.split(".")
    inner = data
    for parent in parents:
        inner = inner[parent]
    if value is ...:
        del inner[name]
    else:
        inner[name] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("epochs", ..., r"the config lacks epochs"),
        ("env.fill", ..., r"the config: env lacks fill"),
        ("env.execution.is_maker", ..., r"the config: env: execution lacks is_maker"),
        ("hypers.reward.risk_weight", ..., r"the config: hypers: reward lacks risk_weight"),
        ("env.margin", 3, r"the config: env has margin, which EnvConfig does not know"),
        ("env", 3, r"the config: env is 3; it must hold the fields of EnvConfig"),
        ("env.spread", -1, r"the config: env: spread = -1 must be a number in \[0, 1\)"),
        ("hypers.clip", "a lot", r"the config: hypers: clip = 'a lot' must be a number"),
        ("updates", None, r"the config: updates = None must be a"),
    ],
)
def test_what_is_missing_unknown_or_wrong_is_named(path: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_dict(jt.PPOConfig, changed(path, value))


def test_differences_name_the_fields_with_both_values() -> None:
    assert differences(changed("env.spread", 1e-4), changed("env.spread", 2e-4)) == ["env.spread: 0.0001 -> 0.0002"]
    assert differences(changed("epochs", 4), changed("epochs", 4)) == []
