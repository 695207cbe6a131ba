"""What it means that two ways of collecting the same episodes agree."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

ACCOUNT_TOLERANCE = 1e-5  # of each quantity's scale, in every precision of the networks
MONEY = ("equity_before", "equity_after", "cost", "slippage")
UNITS = ("position_before", "position", "max_position", "trade")
FRACTIONS = ("diversity_penalty", "curiosity_bonus", "drawdown")
EXACT = ("bar", "step", "action", "barrier_label", "terminated", "truncated")
OF_NETWORKS = ("log_probs", "values", "advantages", "returns")


def assert_collections_agree(
    actual: tuple[Any, Any],
    expected: tuple[Any, Any],
    config: Any,
    tolerance: float,
    lanes: Any = slice(None),
    of_networks: tuple[str, ...] = OF_NETWORKS,
) -> None:
    """Two results of `collect_ppo` with the same actions; lanes selects those to compare.

    tolerance: of what the networks give, relative to each array's largest entry.
    of_networks: its names; DQN's are others.
    """
    (experience, state), (wanted, wanted_state) = actual, expected
    transitions = wanted.transitions
    names = {field.name for field in dataclasses.fields(transitions)} - {"log_prob"}
    assert names == {*MONEY, *UNITS, *FRACTIONS, *EXACT, "base"}
    scales = {
        **dict.fromkeys(MONEY, config.env.initial_capital),
        **dict.fromkeys(UNITS, float(np.max(transitions.max_position))),
        **dict.fromkeys(FRACTIONS, 1.0),
        **dict.fromkeys(EXACT, 0.0),
        "base": float(np.max(np.abs(transitions.base))),
    }
    for name, scale in scales.items():
        assert_within(
            name,
            getattr(experience, name)[:, lanes],
            getattr(transitions, name)[:, lanes],
            ACCOUNT_TOLERANCE * scale,
        )
    for name in of_networks:
        x = getattr(wanted, name)
        assert_within(name, getattr(experience, name)[:, lanes], x[:, lanes], tolerance * float(np.max(np.abs(x))))
    for (path, x), y in zip(jax.tree.leaves_with_path(state), jax.tree.leaves(wanted_state), strict=True):
        is_exact = np.issubdtype(x.dtype, np.integer)
        largest = 0.0 if is_exact else float(np.max(np.abs(y)))
        assert_within(jax.tree_util.keystr(path), x[lanes], y[lanes], ACCOUNT_TOLERANCE * largest)


def assert_within(name: str, actual: Any, expected: Any, allowed: float) -> None:
    assert np.shape(actual) == np.shape(expected), name
    error = np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64))
    assert np.all(error <= allowed), f"{name}: off by {error.max():.2e}, {allowed:.2e} allowed"  # NaN is off too


def assert_sampled(experience: Any, market: Any, actor: Any, uniforms: Any, width: float, slope: float) -> None:
    """Every action is the one that its uniform number chooses, up to a near-tie: u in [c_(a-1) - width, c_a + width).

    c: cumulative probabilities of the network in float64, at the observations that the episodes saw. So a lane's first
    difference to another that was sampled with the same numbers is a near-tie of one of them.
    """
    logits = forward(actor, np.asarray(experience.observations(market), np.float64), slope)
    cumulative = np.cumsum(np.exp(logits - logits.max(-1, keepdims=True)), axis=-1)
    ends = np.concatenate([np.zeros_like(cumulative[..., :1]), cumulative], axis=-1) / cumulative[..., -1:]
    actions = np.asarray(experience.actions)[..., None]
    low, high = (np.take_along_axis(ends, actions + i, axis=-1)[..., 0] for i in (0, 1))
    uniforms = np.asarray(uniforms, np.float64)
    is_chosen = (low - width <= uniforms) & (uniforms < high + width)
    assert is_chosen.all(), f"{np.argwhere(~is_chosen)[0]}: u {uniforms[~is_chosen][0]}, not in its action's interval"


def assert_explored(
    experience: Any, market: Any, dueling: Any, uniforms: Any, epsilon: float, tie: float, slope: float
) -> None:
    """Every action is the random one where u1 < epsilon, elsewhere the greatest Q's, up to a near-tie; so are log_probs.

    Q: of the network in float64, at the observations that the episodes saw. tie: of two Q, relative to the advantages.
    """
    q, scale = dueling_q(dueling, np.asarray(experience.observations(market), np.float64), slope)
    actions, u = np.asarray(experience.actions), np.asarray(uniforms, np.float32)
    n_actions = q.shape[-1]
    random = np.minimum(np.floor(u[..., 1] * n_actions), n_actions - 1)
    is_random = u[..., 0] < np.float32(epsilon)
    np.testing.assert_array_equal(actions[is_random], random[is_random])
    second, most = np.sort(q, axis=-1)[..., -2:].transpose(2, 0, 1)
    is_clear = most - second > tie * scale
    assert is_clear.mean() > 0.5
    np.testing.assert_array_equal(actions[~is_random & is_clear], q.argmax(-1)[~is_random & is_clear])
    taken = np.take_along_axis(q, actions[..., None], -1)[..., 0]
    assert (taken >= most - tie * scale)[~is_random].all()
    chance = np.where(actions == q.argmax(-1), 1 - epsilon, 0.0) + epsilon / n_actions
    np.testing.assert_allclose(np.exp(experience.log_probs)[is_clear], chance[is_clear], rtol=1e-5)  # float32


def dueling_q(params: dict[str, dict[str, Any]], x: np.ndarray, slope: float) -> tuple[np.ndarray, float]:
    """Q in float64, and the largest advantage."""

    def stream(name: str, x: np.ndarray) -> np.ndarray:
        return forward({key: layer for key, layer in params.items() if key.startswith(name)}, x, slope)

    shared = stream("shared", x)
    shared = np.where(shared > 0, shared, slope * shared)
    value, advantage = stream("value", shared), stream("advantage", shared)
    return value + advantage - advantage.mean(-1, keepdims=True), float(np.abs(advantage).max())


def forward(params: dict[str, dict[str, Any]], x: np.ndarray, slope: float) -> np.ndarray:
    """A perceptron in float64; the names of its layers sort in their order, `_layer_0` to `_output`."""
    *hidden, last = (params[name] for name in sorted(params))
    for layer in hidden:
        x = x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)
        x = np.where(x > 0, x, slope * x)
    return x @ np.asarray(last["kernel"], np.float64) + np.asarray(last["bias"], np.float64)
