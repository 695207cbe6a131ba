"""PPO's clipped surrogate of a small perceptron's logits, with the gradients of all its weights.

What `clipped_policy_loss(mlp(layers, inputs), ...)` gives: one launch for everything that goes row by row and one for each
layer's weights, where that takes a launch for each layer, each activation and the loss, and leaves the logits in memory.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import reference
from pallas_kernels.backend import Backend, Resolved, first_order_only, resolve, reverse_mode_only
from pallas_kernels.mlp_inputs import Gathered, Layers, check, obstacle
from pallas_kernels.mlp_layers import weight_gradient
from pallas_kernels.mlp_plan import pad_layers, pad_rows, padded_width
from pallas_kernels.mlp_policy_pass import WIDEST, run_pass
from pallas_kernels.policy_head import Batch, outcome
from pallas_kernels.policy_loss import check_rows, make_batch
from pallas_kernels.policy_outcome import PolicyLoss

Array = jax.Array


class Static(NamedTuple):
    """What the launches are compiled for."""

    negative_slope: float
    interpret: bool


def mlp_policy_loss(
    layers: Sequence[tuple[Array, Array]],
    inputs: Array | Gathered,
    actions: Array,
    log_probs: Array,
    advantages: Array,
    clip: Array | float,
    entropy_coef: Array | float,
    *,
    negative_slope: float = 0.01,
    backend: Backend = "auto",
) -> PolicyLoss:
    """The loss of `reference.clipped_policy_loss` of `reference.mlp`'s outputs, and what it measures on the way.

    Only the loss carries a gradient, and only to the layers. Operands of products are rounded to bfloat16, sums
    are float32.

    Args:
      layers: `(kernel [in, out], bias [out])` of each layer, one or more; the last one's outputs are logits `[B, A]`.
      inputs: `[B, K]`, or a `Gathered` of B rows.
      actions: `[B]` integers in [0, A).
      log_probs: `[B]`, of the actions under the policy that took them.
      advantages: `[B]`.
      clip: of the ratio, may be traced; entropy_coef: of the bonus, may be traced.
      negative_slope: of the leaky ReLU, a Python number in [0, 1].
      backend: `"auto"` | `"pallas"` | `"interpret"` | `"xla"`; see `backend.resolve`.

    Raises:
      ValueError: shapes, actions, a slope or a backend that do not fit; a jvp or second derivative of the kernel.
    """
    layers = tuple((kernel, bias) for kernel, bias in layers)
    n_rows = check(layers, inputs, negative_slope, "bfloat16")
    check_rows(actions, log_probs, advantages, n_rows, len(layers[-1][1]), "[B] with B of the inputs")
    inputs = lax.stop_gradient(inputs)
    mode = mlp_policy_loss_mode(layers, inputs, backend)
    if mode == "xla":
        logits = reference.mlp(layers, inputs, negative_slope=negative_slope, products="bfloat16")
        return reference.clipped_policy_loss(logits, actions, log_probs, advantages, clip, entropy_coef)
    batch = make_batch(actions, log_probs, advantages, clip, entropy_coef)
    found = _loss(Static(float(negative_slope), mode == "interpret"), reverse_mode_only(layers), inputs, batch)
    return PolicyLoss(found.loss, *lax.stop_gradient(found[1:]))


def mlp_policy_loss_mode(layers: Sequence[tuple[Array, Array]], inputs: Array | Gathered, backend: Backend) -> Resolved:
    """The way `mlp_policy_loss` goes with these arguments: "pallas", "interpret" or "xla"."""
    return resolve(backend, faster=True, obstacle=obstacle(layers, inputs, WIDEST))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss(static: Static, layers: Layers, inputs: Array | Gathered, batch: Batch) -> PolicyLoss:
    return _loss_and_gradient(static, layers, inputs, batch)[0]


def _fwd(static: Static, layers: Layers, inputs: Array | Gathered, batch: Batch) -> Any:
    return first_order_only(functools.partial(_loss_and_gradient, static))(layers, inputs, batch)


def _bwd(static: Static, gradient: Any, cotangents: PolicyLoss) -> Any:
    del static
    return jax.tree.map(lambda g: cotangents.loss * g, gradient), None, None


_loss.defvjp(_fwd, _bwd)


def _loss_and_gradient(
    static: Static, layers: Layers, inputs: Array | Gathered, batch: Batch
) -> tuple[PolicyLoss, tuple[tuple[Array, Array], ...]]:
    widths = [padded_width(layers[0][0].shape[0]), *(padded_width(bias.shape[0]) for _, bias in layers)]
    padded, x = pad_layers(layers, widths, jnp.bfloat16), pad_rows(inputs, widths[0], jnp.bfloat16)
    n_rows, n_actions = len(batch.actions), len(layers[-1][1])
    passed = run_pass(
        padded,
        x,
        batch,
        n_actions=n_actions,
        n_rows=n_rows,
        slope=static.negative_slope,
        interpret=static.interpret,
    )
    gradient = []
    for (kernel, bias), a, dz in zip(layers, (x, *passed.a), passed.dz, strict=True):
        dw, db = weight_gradient(a, dz, interpret=static.interpret)
        gradient.append((dw[: kernel.shape[0], : kernel.shape[1]], db[: len(bias)]))
    gradient = jax.tree.map(lambda g, x: g.astype(x.dtype), tuple(gradient), tuple(layers))
    return outcome(passed.measures, n_rows, batch.scalars[1]), gradient
