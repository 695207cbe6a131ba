"""A policy for use without this package: its forward pass as a program of `jax.export`, its weights, and what they mean.

Writes to one folder:
  forward.jaxexport    `forward(weights, obs [N, F + 3]) -> logits [N, A]`, any N, for CPUs and NVIDIA GPUs; needs JAX alone
  weights.safetensors  the weights it takes, in PyTorch's layout and under the names of `networks.weights`
  policy.json          the observation's columns, the account's rules with every action's meaning, and the bars' size
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.export
import numpy as np

from jaxrl_trade.config import N_PORTFOLIO
from jaxrl_trade.networks import weights
from jaxrl_trade.parts import record

if TYPE_CHECKING:
    from jaxrl_trade.agents.policy import Policy

FORWARD, WEIGHTS, FACTS = "forward.jaxexport", "weights.safetensors", "policy.json"
PLATFORMS = ("cpu", "cuda")
ACCOUNT = ("equity / initial_capital", "position / max_position", "spread")


def export(policy: Policy, folder: str | Path) -> list[Path]:
    """`Policy.export`, whose arguments these are; the paths written."""
    from safetensors.numpy import save_file

    if policy.origin is None:
        raise ValueError(
            "this policy does not know what it was trained on; take it from jt.load_policy(run) or from a training's result"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = weights.to_tensors(policy.params)
    (folder / FORWARD).write_bytes(_forward(policy, tensors, policy.origin.n_features))
    save_file(tensors, folder / WEIGHTS)
    (folder / FACTS).write_text(json.dumps(_facts(policy), indent=2) + "\n", encoding="utf-8")
    return [folder / name for name in (FORWARD, WEIGHTS, FACTS)]


def _forward(policy: Policy, tensors: Mapping[str, np.ndarray], n_features: int) -> bytes:
    apply = getattr(policy.apply, "plain", policy.apply)

    def forward(tensors: Mapping[str, Any], obs: Any) -> Any:
        return apply(weights.from_tensors(tensors, policy.params), obs)

    (batch,) = jax.export.symbolic_shape("batch")
    obs = jax.ShapeDtypeStruct((batch, n_features + N_PORTFOLIO), np.float32)
    shapes = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in tensors.items()}
    exported = jax.export.export(jax.jit(forward), platforms=PLATFORMS)(shapes, obs)
    try:
        return bytes(exported.serialize())
    except ImportError:  # JAX does not bring it along
        raise ImportError("export needs flatbuffers: pip install 'jaxrl-trade[export]'") from None


def _facts(policy: Policy) -> dict[str, Any]:
    origin = policy.origin
    assert origin is not None
    names = origin.feature_names or tuple(f"feature {i}" for i in range(origin.n_features))
    return {
        "observation": [*names, *ACCOUNT],
        "env": {**dataclasses.asdict(origin.env), "mask": None if origin.env.mask is None else record(origin.env.mask)},
        "bar_minutes": origin.steps[0] if origin.steps else None,
    }
