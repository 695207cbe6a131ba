"""The rollout in one launch, interpreted, and its contract: a walk against the same rules as NumPy loops in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk
from pallas_kernels.rollout_plan import Tiles, choose_tiles, choose_wide_tiles
from tests.pallas_kernels.walk import OF_CONSTANTS, SLOPE, State, check, network, random_policy, random_walk, run

ONE = Tiles(lanes=1, warps=4)
READ = Tiles(lanes=16, warps=8, chunk=16, stages=2)  # a wide network's weights, read in every step
HELD = Tiles(lanes=16, warps=8, chunk=16)  # and once


@pytest.mark.parametrize(
    ("tiles", "widths", "lanes", "length", "products", "forced"),
    [
        (ONE, (20, 12, 5), 3, 40, "float32", False),  # odd widths
        (ONE, (16, 5), 2, 1, "float32", True),  # nothing but the first layer and the last
        (ONE, (40, 33, 20, 45), 2, 30, "float32", False),  # hidden layers of more inputs than a fold; actions in pairs
        (ONE, (20, 12, 100), 2, 30, "float32", False),  # and in fours
        (Tiles(lanes=8, warps=4, columns=16), (40, 12, 5), 13, 40, "float32", False),  # pieces; a ragged tile
        (Tiles(lanes=8, warps=4), (16, 24, 17, 45), 8, 20, "tf32", True),
        (Tiles(lanes=16, warps=4, columns=32), (33, 3), 5, 30, "bfloat16", False),  # more lanes a tile than there are
    ],
)
def test_the_kernel_and_the_scan_walk_by_the_rules(tiles, widths, lanes, length, products, forced):
    walk = random_walk(widths, lanes, length, forced=forced)
    after, steps = run(*walk.arguments(), backend="interpret", products=products, tiles=tiles)
    check(walk, after, steps, "float32" if products == "tf32" else products)  # interpreted on a CPU, TF32 is float32
    after, steps = run(*walk.arguments(), backend="xla", products="float32")
    check(walk, after, steps, "float32")


@pytest.mark.parametrize(
    ("tiles", "widths", "lanes", "length", "products"),
    [
        (ONE, (20, 12, 5), 3, 40, "float32"),
        (Tiles(lanes=8, warps=4, columns=16), (40, 12, 45), 13, 30, "tf32"),  # a ragged tile
        (READ, (40, 33, 20, 5), 18, 40, "tf32"),  # pairs of layers in four and two chunks, and a ragged tile
        (READ, (60, 20, 5), 3, 40, "bfloat16"),  # an even number of layers: the last one has no pair
        (HELD, (40, 33, 20, 5), 18, 20, "bfloat16"),
        (HELD, (20, 5), 16, 1, "tf32"),
    ],
)
def test_greedy_lanes_take_the_first_of_the_greatest_logits_or_what_they_are_given(
    tiles, widths, lanes, length, products
):
    walk = random_walk(widths, lanes, length, choice="greedy")
    for backend, taken in (("interpret", products), ("xla", "float32")):
        after, steps = run(*walk.arguments(), backend=backend, products=products, choice="greedy", tiles=tiles)
        check(walk, after, steps, taken if taken == "bfloat16" else "float32")  # on a CPU, TF32 is float32


@pytest.mark.parametrize("tiles", [ONE, Tiles(lanes=8, warps=4), READ])
def test_the_first_of_equal_logits_is_the_greedy_one(tiles):
    walk = random_walk((16, 12, 5), 4, 6, choice="greedy")
    kernel, bias = walk.policy.layers[-1]
    kernel[...], bias[...] = 0.0, [1.0, 3.0, 2.0, 3.0, 3.0]
    for backend in ("interpret", "xla"):
        steps = run(*walk.arguments(), backend=backend, products="tf32", choice="greedy", tiles=tiles)[1]
        assert (np.asarray(steps.actions)[walk.draws < 0] == 1).all()


@pytest.mark.parametrize("tiles", [READ, HELD])
@pytest.mark.parametrize("products", ["bfloat16", "tf32"])
def test_a_wide_network_samples_by_the_rules(tiles, products):
    walk = random_walk((40, 33, 20, 5), 5, 30)
    after, steps = run(*walk.arguments(), backend="interpret", products=products, tiles=tiles)
    check(walk, after, steps, "bfloat16" if products == "bfloat16" else "float32")


@pytest.mark.parametrize("tiles", [ONE, Tiles(lanes=8, warps=4)])
def test_the_ends_of_the_uniform_numbers_choose_the_first_and_the_last_possible_action(tiles):
    walk = random_walk((16, 45), 40, 4)
    walk.policy.layers[-1].bias[0] = -300.0  # in float32 the first action's probability is 0
    walk.draws[:2], walk.draws[2:] = 0.0, np.nextafter(np.float32(1), 0)
    for backend in ("interpret", "xla"):
        after, steps = run(*walk.arguments(), backend=backend, products="float32", tiles=tiles)
        assert (np.asarray(steps.actions)[:2] == 1).all()
        assert (np.asarray(steps.actions)[2:] < 45).all()  # also where the sum of all exceeds the last partial sum
        check(walk, after, steps, "float32")


@pytest.mark.parametrize(
    ("backend", "tiles"), [("xla", None), ("interpret", ONE), ("interpret", Tiles(lanes=8, warps=4))]
)
def test_an_environment_may_give_numbers_for_what_is_the_same_in_all_lanes(backend, tiles):
    walk = random_walk((16, 5), 3, 6)
    settings = {"negative_slope": SLOPE, "backend": backend, "tiles": tiles}
    after, steps = pk.rollout(OF_CONSTANTS, *walk.arguments(), **settings)
    actions, rows = np.asarray(steps.actions), np.concatenate([walk.state.row[None], walk.restarts[:-1]])
    inside = np.clip(rows, 0, 49)  # every step ends an episode
    for t, n in np.ndindex(6, 3):
        logits = network(walk.policy, inside[t, n], (1.0, walk.tables.price[inside[t, n]]))
        log_prob = logits[actions[t, n]] - np.log(np.exp(logits).sum())
        np.testing.assert_allclose(steps.log_probs[t, n], log_prob, rtol=0, atol=1e-4)  # logits of up to 20 in float32
    purse = np.where(walk.effects.turns[actions], -np.inf, 0.5)
    ones = np.ones((6, 3))
    for actual, expected in zip(steps.record, (purse, 3 * ones, ones, 0 * ones), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert [x.dtype for x in steps.record] == [jnp.float32, jnp.int32, jnp.bool_, jnp.bool_]
    for actual, expected in zip(after, (walk.restarts[-1], [1] * 3, [0.25] * 3), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("backend", "tiles"), [("xla", None), ("interpret", ONE), ("interpret", Tiles(lanes=8, warps=4))]
)
def test_an_environment_without_tables_effects_or_values_is_walked(backend, tiles):
    walk = random_walk((16, 5), 3, 6)
    bandit = pk.Environment(
        row=lambda row: row,
        observe=lambda row, here: (),
        step=lambda row, effect, here, ahead: (row + 1, row % 4 == 3, None),
        restart=lambda row, here: row,
    )
    policy = walk.policy._replace(values=walk.policy.values[:0])
    arguments = jax.tree.map(jnp.asarray, (policy, (), None, walk.state.row, walk.draws, walk.restarts))
    after, steps = pk.rollout(bandit, *arguments, negative_slope=SLOPE, backend=backend, tiles=tiles)
    row = walk.state.row.copy()
    for t in range(6):
        logits = np.stack([network(policy, r, ()) for r in np.clip(row, 0, 49)])
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        taken = np.take_along_axis(log_probs, np.asarray(steps.actions[t])[:, None], 1)[:, 0]
        np.testing.assert_allclose(steps.log_probs[t], taken, rtol=0, atol=1e-4)
        row = np.where(row % 4 == 3, walk.restarts[t], row + 1)
    np.testing.assert_array_equal(after, row)


@pytest.mark.parametrize("backend", ["interpret", "xla"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"observe": lambda state, here: (here.price,)},
            r"observe gives 1 values, but policy.values has shape \(2, 16\)",
        ),
        (
            {"restart": lambda row, here: State(row, 0, jnp.zeros((3, 2)))},
            r"environment.restart gives .*\(3, 2\); wanted",
        ),
        ({"row": lambda state: state.purse}, "environment.row gives float32; wanted int32"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused_in_words(change, message, backend):
    arguments = random_walk((16, 5), 3, 6).arguments()
    with pytest.raises(ValueError, match=message):
        pk.rollout(OF_CONSTANTS._replace(**change), *arguments, negative_slope=SLOPE, backend=backend, tiles=ONE)


def test_vmap_over_seeds_walks_each_seed_by_the_rules():
    first, *others = walks = [random_walk((20, 12, 5), 3, 15, seed=seed) for seed in range(3)]
    for other in others:
        other.tables, other.effects = first.tables, first.effects
    _, tables, effects, *_ = first.arguments()

    @jax.jit
    @jax.vmap
    def together(policy, *rest):
        return run(policy, tables, effects, *rest, backend="interpret", products="float32", tiles=ONE)

    own = [(walk.policy, walk.state, walk.draws, walk.restarts) for walk in walks]
    results = together(*jax.tree.map(lambda *x: jnp.stack(x), *own))
    for i, walk in enumerate(walks):
        check(walk, *jax.tree.map(lambda x, i=i: x[i], results), "float32")


def test_its_derivative_is_an_error_that_says_what_to_do():
    policy, *rest = random_walk((16, 5), 2, 3).arguments()

    def total(policy, backend):
        steps = run(policy, *rest, backend=backend, products="float32")[1]
        return jnp.sum(steps.log_probs)

    with pytest.raises(ValueError, match="has derivatives only with backend='xla'"):
        jax.grad(total)(policy, "interpret")
    gradient = jax.eval_shape(lambda policy: jax.grad(total)(policy, "xla"), policy)
    assert gradient.table.shape == policy.table.shape


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ((257, 16, 5), "a layer of 257 units is wider than 256"),
        ((16, 300), "a layer of 300 units is wider than 256"),
        ((256,) * 5 + (200, 5), r"the layers after the first have 331776 weights \(padded\), more than 262144"),
    ],
)
def test_a_policy_too_large_goes_to_the_scan_or_is_refused_by_name(widths, message):
    walk = random_walk(widths, 2, 3)
    steps = run(*walk.arguments(), backend="auto", products="float32")[1]
    assert steps.actions.shape == (3, 2)
    with pytest.raises(ValueError, match=rf"backend = 'interpret': {message}.*use backend='xla'"):
        run(*walk.arguments(), backend="interpret", products="float32")
    assert pk.rollout_obstacle(random_policy(np.random.default_rng(0), 9, (256, 64, 64, 45))) is None


def test_weights_that_are_not_float32_and_a_table_too_large_are_obstacles():
    policy = random_policy(np.random.default_rng(0), 9, (16, 5))
    assert pk.rollout_obstacle(policy._replace(table=policy.table.astype(np.float64))) == (
        "the weights are float64, not float32"
    )
    huge = jax.ShapeDtypeStruct((2**26 + 1, 16), jnp.float32)
    assert "bytes, more than 4294967296" in pk.rollout_obstacle(policy._replace(table=huge))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: {"draws": w.draws[0]}, r"draws has shape \(3,\) and restarts \(4, 3\); both must be \[L, N\]"),
        (lambda w: {"restarts": w.restarts.T}, r"draws has shape \(4, 3\) and restarts \(3, 4\)"),
        (lambda w: {"draws": w.draws[:0], "restarts": w.restarts[:0]}, "at least one step and lane"),
        (
            lambda w: {"state": w.state._replace(age=w.state.age[:2])},
            r"a leaf of state has shape \(2,\); wanted \(3,\)",
        ),
        (
            lambda w: {"effects": w.effects._replace(gain=w.effects.gain[1:])},
            r"effects has shape \(4,\); wanted \(5,\)",
        ),
        (lambda w: {"tables": w.tables._replace(kind=w.tables.kind[1:])}, r"tables has shape \(49,\); wanted \(50,\)"),
        (lambda w: {"policy": w.policy._replace(layers=())}, "policy.layers is empty"),
        (
            lambda w: {"policy": w.policy._replace(values=w.policy.values.T)},
            r"policy.values \(16, 2\); wanted .*\[K, H\]",
        ),
        (lambda w: {"policy": w.policy._replace(layers=w.policy.layers[::-1])}, r"layers\[0\].*wanted \[16, out\]"),
    ],
)
@pytest.mark.parametrize("backend", ["interpret", "xla"])
def test_shapes_that_do_not_fit_are_named(change, message, backend):
    walk = random_walk((16, 8, 5), 3, 4)
    for name, value in change(walk).items():
        setattr(walk, name, value)
    with pytest.raises(ValueError, match=message):
        run(*walk.arguments(), backend=backend, products="float32")


def test_an_unknown_precision_is_refused():
    with pytest.raises(
        ValueError, match="products = 'float16' is unknown; choose one of 'float32', 'tf32', 'bfloat16'"
    ):
        run(*random_walk((16, 5), 2, 3).arguments(), backend="xla", products="float16")


def test_a_choice_that_is_unknown_or_does_not_fit_its_draws_is_refused():
    arguments = random_walk((16, 5), 2, 3).arguments()
    with pytest.raises(ValueError, match="choice = 'best' is unknown; choose one of 'softmax', 'greedy'"):
        run(*arguments, backend="xla", products="float32", choice="best")
    with pytest.raises(ValueError, match="draws are float32, but a greedy choice takes int32"):
        run(*arguments, backend="xla", products="float32", choice="greedy")


@pytest.mark.parametrize("products", ["float32", "tf32", "bfloat16"])
def test_tiles_are_powers_of_two_for_any_number_of_lanes(products):
    for lanes in (1, 128, 264, 265, 1000, 4225, 8448, 8449, 32768, 10**6):
        tiles = choose_tiles(lanes, products)
        assert all(size & (size - 1) == 0 for size in (tiles.lanes, tiles.warps, tiles.columns))
        assert tiles.columns >= 16  # the shortest side of a product on the tensor cores


@pytest.mark.parametrize("products", ["float32", "tf32", "bfloat16"])
def test_many_rollouts_at_once_fill_a_gpu_with_larger_tiles_that_each_can_fill(products):
    assert choose_tiles(128, products, copies=64).lanes > choose_tiles(128, products).lanes
    for lanes in (1, 8, 32, 100, 128):
        for copies in (2, 64, 1000):
            assert choose_tiles(lanes, products, copies).lanes <= max(lanes, 8)


@pytest.mark.parametrize(
    ("products", "kib", "held"),
    [
        ("bfloat16", 227, 3),  # 128 + 64 + 16 KiB
        ("bfloat16", 163, 2),
        ("bfloat16", 99, 1),
        ("tf32", 227, 1),
        ("float32", 227, 1),  # three terms: 384 + 192 + 48 KiB
        ("float32", 99, 0),
    ],
)
def test_as_many_layers_stay_on_chip_as_shared_memory_has_room_for(products, kib, held):
    widths = (256, 256, 128, 64)
    tiles = choose_wide_tiles(widths, 128, products, shared=kib << 10)
    assert tiles.held == held
    assert choose_wide_tiles((256,) * 5, 128, products, shared=kib << 10).held <= held
    for lanes, copies in ((1, 1), (16, 1000), (2112, 1), (10**6, 1)):
        tiles = choose_wide_tiles(widths, lanes, products, copies, shared=kib << 10)
        assert all(size & (size - 1) == 0 for size in (tiles.lanes, tiles.warps, tiles.chunk))
        assert 16 <= tiles.lanes <= max(16, lanes)  # the shortest side of a product on the tensor cores
