"""The fused loss under JAX's transformations, interpreted: values from the plain formula, or an error of our own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as pk
from pallas_kernels import reference
from tests.pallas_kernels import cases

BATCH = cases.random_batch(5, 8, hidden=32, one_array=True)
H = jnp.asarray(BATCH.h[0])
REST = (BATCH.actions, BATCH.rewards, BATCH.discounts, BATCH.weights)


def loss(params, h, backend="interpret"):
    return pk.dueling_q_td_loss(params, BATCH.target_params, h, h, *BATCH.th, *REST, backend=backend)


def plain(params, h):
    return reference.dueling_q_td_loss(params, BATCH.target_params, h, h, *BATCH.th, *REST)


def test_vmap_over_parameters_gives_each_members_gradients():
    ensemble = jax.tree.map(lambda x: jnp.stack([x, 2 * x, -x]), jax.tree.map(jnp.asarray, BATCH.params))

    def each(f):
        return jax.jit(jax.vmap(jax.grad(lambda p: f(p, H)[0])))(ensemble)

    expected = jax.tree.map(lambda x: np.asarray(x, np.float64), each(plain))
    cases.assert_close(each(loss), expected)


def test_gradient_steps_inside_a_scan_follow_the_plain_formula():
    def train(f):
        def step(params, _):
            value, grads = jax.value_and_grad(lambda p: jnp.mean(3 * f(p, H)[0]))(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

        return jax.jit(lambda p: jax.lax.scan(step, p, length=4))(jax.tree.map(jnp.asarray, BATCH.params))

    expected = jax.tree.map(lambda x: np.asarray(x, np.float64), train(plain))
    cases.assert_close(train(loss), expected)


def test_td_error_carries_no_gradient():
    grads = jax.jit(jax.grad(lambda p, h: jnp.sum(loss(p, h)[1]), (0, 1)))(BATCH.params, H)
    assert all(not np.any(x) for x in jax.tree.leaves(grads))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_forward_mode_is_an_error_that_names_xla(wrap):
    f = wrap(lambda h: loss(BATCH.params, h)[0])
    with pytest.raises(ValueError, match=r"forward-mode.*backend='xla'"):
        wrap(lambda h: jax.jvp(f, (h,), (h,)))(H)


def test_a_second_derivative_is_an_error_that_names_xla():
    def gradient_norm(h):
        return jnp.sum(jax.grad(lambda h: loss(BATCH.params, h)[0])(h) ** 2)

    with pytest.raises(ValueError, match=r"second derivatives.*backend='xla'"):
        jax.grad(gradient_norm)(H)

    def hessian_product(h):
        return jax.jvp(jax.grad(lambda h: loss(BATCH.params, h)[0]), (h,), (h,))

    with pytest.raises(ValueError, match="backend='xla'"):
        hessian_product(H)


def test_every_differentiable_function_refuses_forward_mode():
    heads = [jnp.asarray(BATCH.params[name]) for name in ("w_v", "b_v", "w_a", "b_a")]
    q = jnp.ones((8, 5))
    with pytest.raises(ValueError, match="backend='xla'"):
        jax.jvp(lambda h: pk.dueling_q(h, h, *heads, backend="interpret"), (H,), (H,))
    with pytest.raises(ValueError, match="backend='xla'"):
        jax.jvp(lambda q: pk.huber_td_loss(q, REST[0], jnp.ones(8), backend="interpret")[0], (q,), (q,))
    backward = functools.partial(pk.dueling_q_backward, backend="interpret")
    with pytest.raises(ValueError, match="backend='xla'"):
        jax.grad(lambda h: jnp.sum(backward(h, h, heads[0], heads[2], q).h_a))(H)


def test_xla_has_forward_mode_and_second_derivatives():
    def f(h):
        return loss(BATCH.params, h, backend="xla")[0]

    @jax.jit
    def derivatives(h):
        gradient, curvature = jax.jvp(jax.grad(f), (h,), (h,))
        return jax.jvp(f, (h,), (h,))[1], jnp.sum(gradient * h), curvature

    forward, reverse, curvature = derivatives(H)
    np.testing.assert_allclose(forward, reverse, rtol=1e-4)  # float32 sums in another order
    assert np.any(curvature)


MAPPED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
from tests.pallas_kernels.test_transforms import BATCH, H, REST, plain
import pallas_kernels as pk

def part(params, h, th, *rest):
    f = lambda p: pk.dueling_q_td_loss(p, BATCH.target_params, h, h, th, th, *rest, backend="interpret")[0]
    return jax.lax.pmean(jax.grad(f)(params), "d")

params = jax.tree.map(jnp.asarray, BATCH.params)
rest = tuple(map(jnp.asarray, (BATCH.th[0], *REST)))
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
specs = (P(), *[P("d")] * 6)
sharded = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False))(params, H, *rest)
split = lambda x: x.reshape(2, -1, *x.shape[1:])
pmapped = jax.pmap(part, "d", in_axes=(None, *[0] * 6))(params, split(H), *map(split, rest))
expected = jax.jit(jax.grad(lambda p: plain(p, H)[0]))(params)
for name, want in expected.items():
    tolerance = 1e-5 * float(jnp.max(jnp.abs(want)))
    np.testing.assert_allclose(sharded[name], want, rtol=0, atol=tolerance)
    np.testing.assert_allclose(pmapped[name][1], want, rtol=0, atol=tolerance)
print("agreed")
"""


def test_gradients_averaged_over_two_devices_are_the_whole_batchs():
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    run = subprocess.run([sys.executable, "-c", MAPPED], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.strip().endswith("agreed"), run.stderr[-2000:]
