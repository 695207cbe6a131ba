"""Which way a call runs, and what is said to a caller who asks for what does not fit."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk
from pallas_kernels import backend
from tests.pallas_kernels import cases

BATCH = cases.random_batch(5, 8, hidden=32)


def call(**changes):
    b = BATCH
    arguments = {
        "params": b.params,
        "target_params": b.target_params,
        "h_v": b.h[0],
        "h_a": b.h[1],
        "th_v": b.th[0],
        "th_a": b.th[1],
        "actions": b.actions,
        "rewards": b.rewards,
        "discounts": b.discounts,
        "weights": b.weights,
        "backend": "interpret",
    }
    return pk.dueling_q_td_loss(**{**arguments, **changes})


def test_auto_without_a_gpu_is_the_plain_formula(monkeypatch):
    monkeypatch.setattr(backend, "capability", lambda: 0.0)
    assert backend.resolve("auto", faster=True) == "xla"


def test_auto_on_a_gpu_takes_the_kernel_only_where_it_was_measured_faster(monkeypatch):
    monkeypatch.setattr(backend, "capability", lambda: 8.0)
    assert backend.resolve("auto", faster=True) == "pallas"
    assert backend.resolve("auto", faster=False) == "xla"
    assert backend.resolve("auto", faster=True, obstacle="H = 48 is odd") == "xla"
    assert backend.resolve("pallas", faster=False) == "pallas"


def test_pallas_without_a_gpu_names_interpret(monkeypatch):
    monkeypatch.setattr(backend, "capability", lambda: 0.0)
    with pytest.raises(ValueError, match="backend='interpret'"):
        call(backend="pallas")


def test_an_unknown_backend_is_told_the_four_there_are():
    with pytest.raises(ValueError, match=r"'cuda' is unknown.*'auto', 'pallas', 'interpret', 'xla'"):
        call(backend="cuda")


def test_without_the_triton_back_end_calls_run_as_xla_with_one_warning(monkeypatch):
    monkeypatch.setattr(backend, "plgpu", None)
    backend._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="no Pallas Triton back end"):
        loss, _ = call(backend="interpret")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(call(backend="interpret")[0]) == float(loss) == float(call(backend="xla")[0])
    backend._warn_once.cache_clear()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"h_a": BATCH.h[1][:, :16]}, r"h_a has shape \(8, 16\); wanted \[B, H\].*H = 32"),
        ({"h_v": BATCH.h[0][:4]}, r"h_v has shape \(4, 32\); wanted \(8, 32\)"),
        ({"th_a": None}, "th_a has shape None"),
        ({"rewards": BATCH.rewards[:, None]}, r"rewards has shape \(8, 1\)"),
        ({"weights": BATCH.weights[:3]}, r"weights has shape \(3,\)"),
        ({"targets": BATCH.rewards[:3]}, r"targets has shape \(3,\)"),
        ({"params": {"w_v": BATCH.params["w_v"]}}, "params has no 'b_v'"),
        ({"params": {**BATCH.params, "b_a": BATCH.params["b_a"][:2]}}, r"params.b_a has shape \(2,\)"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"delta": float("inf")}, "delta = inf; wanted a positive and finite Python number"),
        ({"actions": BATCH.rewards}, "actions have dtype float32"),
        ({"actions": BATCH.actions * 0 + 5}, r"actions\[0\] = 5 is outside \[0, 5\)"),
        ({"actions": BATCH.actions * 0 - 1}, r"actions\[0\] = -1 is outside \[0, 5\)"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        call(**changes)


def test_an_action_out_of_range_under_jit_counts_as_the_nearest_one():
    last = BATCH.actions * 0 + 4
    for way in ("interpret", "xla"):
        traced = jax.jit(lambda actions, way=way: call(actions=actions, backend=way))(last + 100)
        cases.assert_close(traced, tuple(map(jax.numpy.asarray, call(actions=last, backend=way))))


def test_sizes_the_kernels_are_not_built_for_are_an_error_by_name_and_xla_under_auto():
    b = cases.random_batch(5, 4, hidden=48)
    arguments = (b.params, b.target_params, *b.h, *b.th, b.actions, b.rewards, b.discounts)
    with pytest.raises(ValueError, match=r"H = 48.*backend='xla'"):
        pk.dueling_q_td_loss(*arguments, backend="interpret")
    assert jnp.isfinite(pk.dueling_q_td_loss(*arguments, backend="auto")[0])


def test_a_function_with_copies_knows_how_many_a_vmap_runs_at_once():
    seen = []

    def add(copies, x, y):
        seen.append(copies)
        return x + y

    function = backend.with_copies(add)
    np.testing.assert_array_equal(jax.jit(function)(jnp.arange(3), 1), [1, 2, 3])
    np.testing.assert_array_equal(jax.jit(jax.vmap(function, (0, None)))(jnp.arange(5), 1), np.arange(5) + 1)
    assert seen[0] == 1
    assert seen[-1] == 5
