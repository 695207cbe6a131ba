"""What the three executors show to the function they map, and what they share out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_trade import collectives, scale
from tests.scaling.eight.runs import DEVICES, EXECUTORS


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_mapped_function_sees_its_share_and_no_dimension_for_devices(executor):
    seen = []

    def function(first, second, whole):
        seen.append((first.shape, second.shape, whole.shape))
        return first + jax.lax.axis_index(scale.AXIS), second

    mapped = scale.Team.of(executor, DEVICES).map(
        function, (scale.SHARE, P(None, scale.AXIS), scale.WHOLE), (scale.SHARE, P(None, scale.AXIS))
    )
    first, second = jnp.zeros((16, 3), int), jnp.arange(80).reshape(5, 16)
    moved, same = mapped(first, second, jnp.zeros(4))
    assert set(seen) == {((2, 3), (5, 2), (4,))}
    np.testing.assert_array_equal(moved, np.repeat(np.arange(DEVICES), 2)[:, None] * np.ones((16, 3)))
    np.testing.assert_array_equal(same, second)


def test_by_themselves_pmap_takes_the_device_dimension_away_and_shard_map_leaves_it():
    """Why `Team.map` divides a dimension under one and adds one under the others."""
    seen = {}

    def function(name):
        return lambda x: seen.setdefault(name, x.shape) and x

    x, mesh = jnp.zeros((DEVICES, 2, 3)), scale.Team.of("shard_map", DEVICES).mesh
    jax.pmap(function("pmap"))(x)
    jax.vmap(function("vmap"))(x)
    jax.shard_map(function("shard_map"), mesh=mesh, in_specs=scale.SHARE, out_specs=scale.SHARE)(x)
    assert seen == {"pmap": (2, 3), "vmap": (2, 3), "shard_map": (1, 2, 3)}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_reductions_and_draws_are_those_of_a_program_alone(executor):
    key, shape = jax.random.key(0), (5, 16)
    x = jnp.arange(80.0).reshape(shape)

    def function(x, axis=scale.AXIS):
        draw = collectives.share(lambda whole: jax.random.uniform(key, whole), x.shape, 1, axis)
        reduced = collectives.mean(x.mean(), axis), collectives.total(x.sum(), axis), collectives.largest(x.max(), axis)
        return draw, (*reduced, collectives.variance(x, axis))

    columns = P(None, scale.AXIS)
    draw, reduced = scale.Team.of(executor, DEVICES).map(function, (columns,), (columns, scale.WHOLE))(x)
    np.testing.assert_array_equal(draw, jax.random.uniform(key, shape))
    np.testing.assert_allclose(reduced, [x.mean(), x.sum(), x.max(), np.var(x)], rtol=1e-6)
    alone, (mean, total, largest, variance) = function(x, None)
    np.testing.assert_array_equal(alone, draw)
    np.testing.assert_allclose([mean, total, largest, variance], reduced, rtol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_device_draws_by_itself_from_a_key_of_its_own(executor):
    def function(key, x):
        return jax.random.key_data(collectives.own_key(key, scale.AXIS))[None] + 0 * x[:, None]

    words = scale.Team.of(executor, DEVICES).map(function, (scale.WHOLE, scale.SHARE), scale.SHARE)(
        jax.random.key(0), jnp.zeros(DEVICES, jnp.uint32)
    )
    assert len({tuple(x) for x in np.asarray(words).tolist()}) == DEVICES


@pytest.mark.parametrize("executor", EXECUTORS)
def test_one_device_draws_as_without_an_axis(executor):
    key = jax.random.key(0)
    words = scale.Team.of(executor, 1).map(
        lambda key: jax.random.key_data(collectives.own_key(key, scale.AXIS)), (scale.WHOLE,), scale.WHOLE
    )(key)
    np.testing.assert_array_equal(words, jax.random.key_data(key))


def test_vmap_refuses_as_alike_what_was_not_reduced():
    mapped = scale.Team.of("vmap", DEVICES).map(lambda x: x.mean(), (scale.SHARE,), scale.WHOLE)
    with pytest.raises(ValueError, match="out_axes"):
        mapped(jnp.arange(16.0))


def test_devices_that_should_hold_the_same_and_do_not_are_found():
    mesh = scale.Team.of("shard_map", DEVICES).mesh
    spread = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, scale.SHARE))
    scale.check_replicas({"spread": spread, "key": jax.device_put(jax.random.key(0), NamedSharding(mesh, scale.WHOLE))})
    parts = [jax.device_put(np.float32(i == 5), device) for i, device in enumerate(jax.devices())]
    odd = jax.make_array_from_single_device_arrays((), NamedSharding(mesh, scale.WHOLE), parts)
    with pytest.raises(RuntimeError, match=r"\['odd'\] is not the same on .*0.* and .*5"):
        scale.check_replicas({"spread": spread, "odd": odd})


@pytest.mark.parametrize("executor", ["shard_map", "pmap"])
def test_more_devices_than_there_are_is_an_error(executor):
    with pytest.raises(ValueError, match=r"devices = 9, but JAX sees 8 of kind 'cpu'; .* executor='vmap'"):
        scale.Team.of(executor, 9)
