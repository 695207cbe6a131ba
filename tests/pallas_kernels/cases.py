"""Batches for the kernels' tests, and the formulas in NumPy float64 that every backend is compared with."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

ACTIONS = (11, 45, 64)
BATCHES = (1, 31, 33, 100, 256, 4097)
TOLERANCE = 1e-5  # of each array's largest entry: float32 sums of up to 4,097 rounded terms


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    """Arguments of `dueling_q_td_loss`, float32; th and h hold the value and the advantage stream's hidden rows."""

    params: dict[str, np.ndarray]
    target_params: dict[str, np.ndarray]
    h: tuple[np.ndarray, np.ndarray]
    th: tuple[np.ndarray, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    weights: np.ndarray


def random_batch(actions: int, batch: int, *, hidden: int = 128, one_array: bool = False, seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * random.normal(size=shape)).astype(np.float32)

    def heads() -> dict[str, np.ndarray]:
        scale = hidden**-0.5
        return {
            "w_v": normal(hidden, scale=scale),
            "b_v": normal(),
            "w_a": normal(hidden, actions, scale=scale),
            "b_a": normal(actions),
        }

    def rows() -> tuple[np.ndarray, np.ndarray]:
        v, a = normal(batch, hidden), normal(batch, hidden)
        return (a, a) if one_array else (v, a)

    return Batch(
        params=heads(),
        target_params=heads(),
        h=rows(),
        th=rows(),
        actions=random.integers(0, actions, size=batch).astype(np.int32),
        rewards=normal(batch),
        discounts=(0.99 ** random.integers(1, 6, size=batch)).astype(np.float32),
        weights=random.uniform(0.5, 1.5, size=batch).astype(np.float32),
    )


def edge_batch(actions: int, batch: int, *, one_array: bool = False) -> Batch:
    """One action throughout; errors of exactly +-1 and 0; exact ties in the maximum; discounts and weights of 0.

    Without biases, rows of zeros have Q = 0 and target r exactly, so e = -r.
    """
    b = random_batch(actions, batch, one_array=one_array, seed=1)
    sample = np.arange(batch)
    for heads in (b.params, b.target_params):
        heads["b_v"], heads["b_a"] = np.zeros_like(heads["b_v"]), np.zeros_like(heads["b_a"])
    b.target_params["w_a"][:, [2, 7]] = b.target_params["w_a"][:, [5]] * 2  # the maximum, often, and twice
    for rows in (*b.h, *b.th):
        rows[sample % 4 == 0] = 0.0
    b.rewards[sample % 4 == 0] = np.array([1.0, -1.0, 0.0])[sample[sample % 4 == 0] // 4 % 3]
    b.discounts[sample % 3 == 1] = 0.0
    b.weights[sample % 5 == 2] = 0.0
    b.actions[:] = actions - 1
    return b


def q_values(h: tuple[np.ndarray, np.ndarray], params: dict[str, np.ndarray]) -> np.ndarray:
    v, a = (rows.astype(np.float64) for rows in h)
    p = {name: value.astype(np.float64) for name, value in params.items()}
    advantage = a @ p["w_a"] + p["b_a"]
    return (v @ p["w_v"] + p["b_v"])[:, None] + advantage - advantage.mean(axis=1, keepdims=True)


def backward(
    h: tuple[np.ndarray, np.ndarray], params: dict[str, np.ndarray], grad_q: np.ndarray
) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Gradients of sum(grad_q * Q) at the heads and at both streams, entry by entry from dQ[b, a] / dx."""
    v, a = (rows.astype(np.float64) for rows in h)
    w_v, w_a = params["w_v"].astype(np.float64), params["w_a"].astype(np.float64)
    count = w_a.shape[1]
    jacobian = np.eye(count) - 1.0 / count  # dQ[., i] / dA[., j]
    grad_a = grad_q @ jacobian
    grad_v = grad_q.sum(axis=1)
    heads = {"w_v": v.T @ grad_v, "b_v": grad_v.sum(), "w_a": a.T @ grad_a, "b_a": grad_a.sum(axis=0)}
    return heads, (np.outer(grad_v, w_v), grad_a @ w_a.T)


def td_loss(
    b: Batch, delta: float, *, targets: np.ndarray | None = None
) -> tuple[float, np.ndarray, dict[str, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Mean loss, td_error, gradients at the heads and at both hidden streams."""
    size = len(b.actions)
    q = q_values(b.h, b.params)
    y = b.rewards + b.discounts.astype(np.float64) * q_values(b.th, b.target_params).max(axis=1)
    error = q[np.arange(size), b.actions] - (y if targets is None else targets.astype(np.float64))
    huber = np.where(abs(error) <= delta, error**2 / 2, delta * (abs(error) - delta / 2))
    grad_q = np.zeros_like(q)
    grad_q[np.arange(size), b.actions] = b.weights * np.clip(error, -delta, delta) / size
    return float(np.mean(b.weights * huber)), error, *backward(b.h, b.params, grad_q)


def assert_close(actual: Any, expected: Any, tolerance: float = TOLERANCE, name: str = "") -> None:
    """Every array within the tolerance of the expected array's largest entry; trees of dicts and tuples."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_close(actual[key], value, tolerance, f"{name}.{key}")
    elif isinstance(expected, tuple):
        assert len(actual) == len(expected)
        for i, value in enumerate(expected):
            assert_close(actual[i], value, tolerance, f"{name}[{i}]")
    else:
        largest = max(float(np.max(np.abs(expected))), 1e-6)  # an array of zeros is compared absolutely
        worst = float(np.max(np.abs(np.asarray(actual, np.float64) - expected)))
        assert np.shape(actual) == np.shape(expected), name
        assert worst <= tolerance * largest, f"{name}: off by {worst:.2e}, {worst / largest:.1e} of the largest entry"
