"""The kernels for Hopper's warpgroups, in Mosaic's simulator of a GPU, against NumPy float64 of the same formula."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_kernels import backend, hopper, mlp_layers, mlp_plan, mlp_sums, mlp_value, mlp_walk
from tests.pallas_kernels import cases
from tests.pallas_kernels.lower_for_cuda import abstract_h200

SLOPE = 0.01
RACE = "RACE DETECTED"
ROUNDED = 5e-3  # of the largest entry: a bfloat16's last place
simulated = pytest.mark.skipif(
    not hasattr(hopper.mosaic, "InterpretGPUParams"), reason="JAX before 0.11 simulates no GPU"
)


@pytest.fixture
def few_blocks(monkeypatch):
    """So that a block walks more than one tile."""
    monkeypatch.setattr(hopper, "multiprocessors", lambda: 4)


@pytest.fixture
def no_races(monkeypatch, capfd):
    """The simulator prints them, or from JAX 0.12 on raises. Not for `mlp_sums`: it does not order a load before a barrier."""
    watch_for_races(monkeypatch.setattr)
    yield
    assert RACE not in capfd.readouterr().out


def watch_for_races(set_attribute):
    parameters = functools.partial(hopper.mosaic.InterpretGPUParams, detect_races=True)
    set_attribute(hopper.mosaic, "InterpretGPUParams", parameters)


@simulated
def test_the_simulator_would_tell_of_a_race():
    """In a process of its own, since the simulator is of no use after an error."""
    command = [sys.executable, "-c", "from tests.pallas_kernels import test_hopper; test_hopper.race()"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert RACE in run.stdout + run.stderr


def race():
    def kernel(out):
        def scope(shared):
            warpgroup = jax.lax.axis_index(hopper.WARPGROUP)
            shared[...] = jnp.full((8, 128), warpgroup, jnp.float32)  # both write, and neither waits
            pl.when(warpgroup == 0)(lambda: out.__setitem__(..., shared[...]))

        pl.run_scoped(scope, hopper.mosaic.SMEM((8, 128), jnp.float32), collective_axes=hopper.WARPGROUP)

    watch_for_races(setattr)
    shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    with abstract_h200():
        jax.block_until_ready(hopper.launch(kernel, shape, blocks=1, warpgroups=2, name="race", interpret=True)())


def random_arrays(n_rows, n_in, n_out, copies=()):
    """Rows a, the layer's w and b, gradients dz and inputs x whose last column is one; rounded to bfloat16, but for b."""
    random = np.random.default_rng(n_rows + n_in)

    def normal(*shape):
        return jnp.asarray(random.normal(size=(*copies, *shape)), jnp.bfloat16)

    x = normal(n_rows, hopper.STEP).at[..., -1].set(1)
    return normal(n_rows, n_in), normal(n_in, n_out), normal(n_out).astype(jnp.float32), normal(n_rows, n_out), x


def wide(*arrays):
    return [np.asarray(x, np.float64) for x in arrays]


def leaky(z, at):
    return np.where(at > 0, z, SLOPE * z)


def simulate(function, *arrays, **options):
    with abstract_h200():
        return function(*arrays, **options, interpret=True)


SHAPES = [  # rows, inputs, outputs
    (128, 64, 64),  # fewer tiles than blocks
    (640, 128, 192),  # blocks with tiles of their own number; one column block of 128, one of 64
    (256, 192, 128),
]


@simulated
@pytest.mark.usefixtures("few_blocks", "no_races")
@pytest.mark.parametrize(("n_rows", "n_in", "n_out"), SHAPES)
def test_layers_agree_with_the_formula(n_rows, n_in, n_out):
    a, w, b, dz, x = random_arrays(n_rows, n_in, n_out)
    a64, w64, b64, dz64, x64 = wide(a, w, b, dz, x)
    z = a64 @ w64 + b64
    cases.assert_close(simulate(mlp_walk.forward_layer, a, w, b, slope=SLOPE), leaky(z, z), ROUNDED)
    dz0 = leaky(dz64 @ w64.T, a64)
    cases.assert_close(simulate(mlp_walk.backward_layer, dz, w, a, slope=SLOPE), dz0, ROUNDED)
    rounded = np.asarray(jnp.asarray(dz0, jnp.bfloat16), np.float64)
    cases.assert_close(simulate(mlp_walk.first_layer_gradient, dz, w, a, x, slope=SLOPE), x64.T @ rounded, 1e-4)


@simulated
@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize(("n_rows", "n_in", "n_out"), SHAPES)
def test_weight_gradients_agree_with_the_formula(n_rows, n_in, n_out):
    a, _, _, dz, _ = random_arrays(n_rows, n_in, n_out)
    a64, dz64 = wide(a, dz)
    cases.assert_close(simulate(mlp_sums.weight_gradient, a, dz), (a64.T @ dz64, dz64.sum(axis=0)), 1e-5)


@simulated
def test_a_vmap_gives_what_each_would_alone(few_blocks):
    a, w, b, dz, x = random_arrays(128, 64, 64, copies=(2,))

    def all_four(a, w, b, dz, x):
        options = {"slope": SLOPE, "interpret": True}
        return (
            mlp_walk.forward_layer(a, w, b, **options),
            mlp_walk.backward_layer(dz, w, a, **options),
            mlp_walk.first_layer_gradient(dz, w, a, x, **options),
            mlp_sums.weight_gradient(a, dz, interpret=True),
        )

    with abstract_h200():
        together = jax.vmap(all_four)(a, w, b, dz, x)
        for i in range(2):
            alone = all_four(a[i], w[i], b[i], dz[i], x[i])
            cases.assert_close(jax.tree.map(lambda y, i=i: y[i], together), wide_tree(alone), 1e-6)


@simulated
@pytest.mark.parametrize(
    ("widths", "n_rows"),
    [
        ((64, 64, 16), 128),  # no pair; fewer tiles than blocks
        ((64, 128, 128, 64, 16), 1152),  # blocks with tiles of their own number
        ((64, 128, 384, 128, 128, 128, 16), 256),  # a second layer in two groups, a last one in two pieces
    ],
)
def test_a_value_agrees_with_the_formula(few_blocks, no_races, monkeypatch, widths, n_rows):
    assert mlp_value.fits(widths)
    multiply_from_shared_memory(monkeypatch)
    random = np.random.default_rng(len(widths))
    shapes = itertools.pairwise(widths)
    w = [jnp.asarray(random.normal(size=shape) * (2 / shape[0]) ** 0.5, jnp.bfloat16) for shape in shapes]
    b = [jnp.asarray(0.1 * random.normal(size=width), jnp.float32) for width in widths[1:]]
    x = jnp.asarray(random.normal(size=(n_rows, 64)), jnp.bfloat16)
    actual = simulate(mlp_value.evaluate, mlp_plan.Padded(tuple(w), tuple(b)), x, slope=SLOPE)
    a = x
    for kernel, bias in zip(w, b, strict=True):
        z = np.asarray(a, np.float64) @ np.asarray(kernel, np.float64) + np.asarray(bias, np.float64)
        a = jnp.asarray(leaky(z, z), jnp.bfloat16)
    cases.assert_close(actual, z[:, 0], 1e-2)


def multiply_from_shared_memory(monkeypatch):
    """The simulator multiplies nothing out of registers, so that each warpgroup gets a tile more."""
    tiles = hopper.tiles

    def with_spare_tiles(*shape, **options):
        inputs = (2, mlp_value.ROWS, hopper.STEP)
        return tiles(*((4, *shape[1:]) if shape == inputs else shape), **options)

    def multiply(self, total, a, w):
        if isinstance(a, jax.core.Tracer):
            spare = self.shared.x.at[2 + self.warpgroup]
            spare[...] = a
            hopper.mosaic.commit_smem()
            a = spare
        hopper.mosaic.wgmma(total, a, w)
        hopper.mosaic.wgmma_wait(0)

    monkeypatch.setattr(hopper, "tiles", with_spare_tiles)
    monkeypatch.setattr(mlp_value._Tile, "_multiply", multiply)


@pytest.mark.parametrize(
    ("widths", "fits"),
    [
        ((64, 512, 384, 256, 128, 64, 16), True),
        ((64, 64, 16), True),
        ((128, 512, 384, 64, 16), False),  # wide inputs
        ((64, 512, 384, 16), False),  # pairs alone
        ((64, 512, 512, 64, 16), False),  # sums that do not fit into shared memory
        ((64, 192, 128, 64, 16), False),  # three pieces of a first layer do not share units in twos
        ((64, 128, 128, 64, 384, 64, 16), False),  # a later layer that would overwrite its own input
    ],
)
def test_values_are_for_networks_shaped_like_the_critic(widths, fits):
    assert mlp_value.fits(widths) == fits


def wide_tree(tree):
    return jax.tree.map(lambda y: np.asarray(y, np.float64), tree)


@pytest.mark.parametrize(
    ("capability", "dtype", "n_rows", "width", "copies", "goes"),
    [
        (9.0, "bfloat16", 65_536, 64, 1, True),
        (9.0, "bfloat16", 1024, 64, 64, True),
        (9.0, "bfloat16", 1024, 64, 1, False),  # the host would not keep up
        (9.0, "float32", 65_536, 64, 1, False),
        (8.0, "bfloat16", 65_536, 64, 1, False),
        (9.0, "bfloat16", 65_536, 32, 1, False),
    ],
)
def test_hoppers_kernels_take_many_rows_of_bfloat16_in_whole_pieces(
    monkeypatch, capability, dtype, n_rows, width, copies, goes
):
    monkeypatch.setattr(backend, "capability", lambda: capability)
    asked = []

    def answer(name):
        def launch(*args, **options):
            asked.append(name)
            return lambda *arrays: arrays[0]

        return launch

    monkeypatch.setattr(mlp_walk, "forward_layer", lambda a, *rest, **options: answer("hopper")()(a))
    monkeypatch.setattr(mlp_layers, "launch", answer("triton"))
    a, w = jnp.zeros((n_rows, width), dtype), jnp.zeros((width, width), dtype)

    def forward(a):
        return mlp_layers.forward_layer(a, w, jnp.zeros(width), slope=SLOPE, interpret=False)

    jax.eval_shape(jax.vmap(forward) if copies > 1 else forward, jnp.stack([a] * copies) if copies > 1 else a)
    assert asked[-1] == ("hopper" if goes else "triton")
