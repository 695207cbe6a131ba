"""An exported policy decides as the policy does, in a process that has JAX and safetensors alone."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.export
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.agents import Origin, Policy, actor_policy, q_policy
from tests.train import tiny

N_OBS = tiny.FEATURES + 3
LOADER = (Path(__file__).parents[2] / "docs" / "live.md").read_text().split("```python\n")[-1].split("```")[0]
AFTER = """
import sys
assert "jaxrl_trade" not in sys.modules
np.savez("out.npz", actions=actions, one=np.asarray(forward.call(weights, obs[:1])), all=np.asarray(forward.call(weights, obs)))
"""


def policies() -> dict[str, Policy]:
    ppo = jt.PPOConfig.net(actor_hidden=(16, 8), critic_hidden=(8,), curiosity_hidden=(8,))
    half = dataclasses.replace(ppo, compute_dtype="bfloat16")
    dqn = jt.DQNConfig.net(shared_hidden=(16,), head_hidden=8, curiosity_hidden=(8,))
    actor = jt.init_ppo(jax.random.key(1), ppo, tiny.FEATURES).actor
    made = {
        "ppo": actor_policy(actor, ppo),
        "bfloat16": actor_policy(actor, half),
        "dqn": q_policy(jt.init_dqn(jax.random.key(2), dqn, tiny.FEATURES).dueling, dqn),
    }
    origin = Origin.of_market(tiny.market(), ppo.env)
    return {name: dataclasses.replace(policy, origin=origin) for name, policy in made.items()}


def test_the_loader_of_the_docs_decides_as_the_policy(tmp_path: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(1000, N_OBS)).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    policy = policies()["ppo"]
    policy.export(tmp_path / "exported")
    subprocess.run([sys.executable, "-c", LOADER + AFTER], check=True, cwd=tmp_path)
    wanted = np.asarray(policy(obs))
    with np.load(tmp_path / "out.npz") as file:
        found = dict(file)
    assert np.array_equal(found["actions"], wanted.argmax(-1))
    np.testing.assert_allclose(found["all"], wanted, rtol=1e-5, atol=1e-6)  # float32, sums of at most 16 terms
    np.testing.assert_allclose(found["one"], wanted[:1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["bfloat16", "dqn"])
def test_every_kind_of_network_is_exported(name: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    policy, obs = policies()[name], np.random.default_rng(1).normal(size=(500, N_OBS)).astype(np.float32)
    forward, weights, _ = policy.export(tmp_path)
    logits = np.asarray(jax.export.deserialize(bytearray(forward.read_bytes())).call(load_file(weights), obs))
    wanted = np.asarray(policy(obs))
    assert np.array_equal(logits.argmax(-1), wanted.argmax(-1))
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-5)


def test_the_facts_name_every_column_and_action(tmp_path: Path) -> None:
    policies()["ppo"].export(tmp_path)
    facts = json.loads((tmp_path / "policy.json").read_text())
    assert facts["observation"] == [*tiny.NAMES, "equity / initial_capital", "position / max_position", "spread"]
    assert len(facts["env"]["execution"]["exposure"]) == 45
    assert facts["bar_minutes"] is None  # the tiny market knows no times


def test_a_policy_without_an_origin_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not know what it was trained on"):
        dataclasses.replace(policies()["ppo"], origin=None).export(tmp_path)
