"""On a GPU: compiled rollouts, entropies and discounted sums agree with their definitions, and rollouts repeat bitwise."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import pallas_kernels as pk
from pallas_kernels.rollout_plan import Tiles
from tests.pallas_kernels import test_entropy, test_recurrence
from tests.pallas_kernels.walk import check, random_walk, run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("products", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize(
    ("tiles", "widths", "lanes"),
    [
        (None, (16, 5), 7),
        (None, (128, 64, 45), 7),  # actions in pairs
        (None, (40, 33, 20, 100), 7),  # and in fours
        (Tiles(lanes=8, warps=4, columns=16), (40, 12, 5), 13),
        (Tiles(lanes=16, warps=4, columns=32), (128, 64, 45), 33),
        (Tiles(lanes=64, warps=4, columns=32), (100, 24, 17, 45), 65),
        (Tiles(lanes=128, warps=4, columns=128), (128, 64, 45), 130),
    ],
)
def test_compiled_walks_go_by_the_rules(tiles, widths, lanes, products):
    for forced in (False, True):
        walk = random_walk(widths, lanes, 30, forced=forced)
        after, steps = run(*walk.arguments(), backend="pallas", products=products, tiles=tiles)
        check(walk, after, steps, "float32" if tiles is None else products)  # a block of one lane sums in float32


@pytest.mark.parametrize("products", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize(
    ("tiles", "widths", "lanes"),
    [
        (None, (256, 256, 128, 45), 33),  # what there is room for stays on chip
        (Tiles(lanes=16, warps=8, chunk=32, stages=2), (256, 200, 60, 45), 33),  # all weights are read in every step
        (Tiles(lanes=16, warps=8, chunk=32, held=1, stages=3), (100, 256, 45), 16),
        (None, (256, 256, 128, 64, 5), 7),
    ],
)
def test_compiled_wide_networks_walk_by_the_rules(tiles, widths, lanes, products):
    for choice in ("greedy", "softmax"):
        walk = random_walk(widths, lanes, 30, choice=choice)
        after, steps = run(*walk.arguments(), backend="pallas", choice=choice, products=products, tiles=tiles)
        check(walk, after, steps, products)


@pytest.mark.parametrize("tiles", [None, Tiles(lanes=8, warps=4, columns=16)])
def test_compiled_greedy_lanes_take_the_first_of_the_greatest_logits(tiles):
    walk = random_walk((40, 12, 45), 13, 30, choice="greedy")
    after, steps = run(*walk.arguments(), backend="pallas", choice="greedy", products="float32", tiles=tiles)
    check(walk, after, steps, "float32")


def test_the_same_draws_give_the_same_bits():
    arguments = random_walk((128, 64, 45), 1000, 50).arguments()
    first, second = (run(*arguments, backend="pallas", products="bfloat16") for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_auto_takes_the_kernel():
    arguments = random_walk((16, 5), 7, 30).arguments()
    assert "rollout" in run.lower(*arguments, backend="auto", products="float32").compile().as_text()


@pytest.mark.parametrize(("window", "length", "lanes"), [(7, 45, 11), (100, 500, 130), (4096, 40, 3), (1, 1, 1)])
def test_compiled_entropies_are_those_of_the_windows(window, length, lanes):
    history, steps = test_entropy.random_history(window, length, lanes, 45)
    actual = jax.jit(lambda h, s: pk.windowed_entropy(h, s, 45, "pallas"))(history, steps)
    allowed = 1e-5 if window > 1000 else 2e-6  # the fixed point of a long window; float32, a fast logarithm
    np.testing.assert_allclose(actual, test_entropy.brute_force(history, steps), rtol=0, atol=allowed)


@pytest.mark.parametrize(("length", "lanes"), [(1, 1), (45, 33), (500, 130)])
def test_compiled_sums_are_those_of_the_definition(length, lanes):
    x, discounts = test_recurrence.random_steps(length, lanes)
    expected = test_recurrence.from_the_definition(x, discounts)
    actual = jax.jit(lambda x, d: pk.discounted_sums(x, d, "pallas"))(x, discounts)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
