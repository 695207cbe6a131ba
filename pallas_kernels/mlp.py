"""A multilayer perceptron with leaky ReLU: evaluated in one launch, differentiated a layer at a time.

Inputs are an array, or a table's rows chosen by an index with a few values of their own behind them (`Gathered`), so
that evaluating forms no array of all inputs, unless many rows have one output and there is a Hopper GPU (`mlp_value`).
Under differentiation each hidden layer is a launch (`mlp_layers`), which leaves its activations in memory for the
backward pass, and so are its data gradient and its weights' gradient.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import hopper, mlp_value, reference
from pallas_kernels.backend import Backend, Resolved, first_order_only, resolve, reverse_mode_only
from pallas_kernels.mlp_inputs import Gathered, Layers, Products, check, inside, obstacle
from pallas_kernels.mlp_layers import backward_layer, first_layer_gradient, forward_layer, weight_gradient
from pallas_kernels.mlp_pass import Inputs, forward
from pallas_kernels.mlp_plan import WIDEST, Padded, Plan, make_plan, pad_layers, pad_rows, pad_table

Array = jax.Array

_HOPPERS_ROWS = 1 << 15


class Static(NamedTuple):
    """What a launch is compiled for."""

    plan: Plan
    interpret: bool


def mlp(
    layers: Sequence[tuple[Array, Array]],
    inputs: Array | Gathered,
    *,
    negative_slope: float = 0.01,
    products: Products = "bfloat16",
    backend: Backend = "auto",
) -> Array:
    """Outputs `[B, O]` float32 of dense layers with leaky ReLU between them. Contract: `reference.mlp`.

    Differentiable in the layers, the inputs, and a `Gathered`'s table and values. Differentiation keeps what every
    product multiplies, in the products' dtype; tests allow 2e-2 (bfloat16) and 2e-3 (TF32) of an
    array's largest entry.

    Args:
      layers: `(kernel [in, out], bias [out])` of each layer, one or more.
      inputs: `[B, K]`, or a `Gathered` of B rows.
      negative_slope: of the leaky ReLU, a Python number in [0, 1]; 0 is ReLU.
      products: `"bfloat16"` rounds the operands of every product, `"tf32"` leaves that to the tensor cores; sums are
        float32 in both.
      backend: `"auto"` | `"pallas"` | `"interpret"` | `"xla"`; see `backend.resolve`.

    Raises:
      ValueError: a shape, a slope, products or a backend that do not fit; a jvp or second derivative of a kernel.
    """
    layers = tuple((kernel, bias) for kernel, bias in layers)
    batch = check(layers, inputs, negative_slope, products)
    mode = mlp_mode(layers, inputs, products, backend)
    if mode == "xla":
        return reference.mlp(layers, inputs, negative_slope=negative_slope, products=products)
    static = Static(make_plan(layers, batch, float(negative_slope), products), mode == "interpret")
    table, row, values = inputs if isinstance(inputs, Gathered) else (None, None, inputs)
    layers, table, values = reverse_mode_only((layers, table, values))
    return _mlp(static, layers, table, values, row)


def mlp_mode(
    layers: Sequence[tuple[Array, Array]], inputs: Array | Gathered, products: Products, backend: Backend
) -> Resolved:
    """The way `mlp` goes with these arguments: "pallas", "interpret" or "xla". TF32 was not measured faster than XLA."""
    return resolve(backend, faster=products == "bfloat16", obstacle=obstacle(layers, inputs, WIDEST))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mlp(static: Static, layers: Layers, table: Array | None, values: Array | None, row: Array | None) -> Array:
    plan = static.plan
    padded = pad_layers(layers, plan.widths, plan.operand)
    if _is_hoppers(static):
        x = pad_rows(_as_one(table, row, values), plan.widths[0], plan.operand)
        return mlp_value.evaluate(padded, x, slope=plan.negative_slope)[: plan.batch, None]
    inputs = Inputs(None if table is None else pad_table(table, plan.widths[0], plan.operand), row, values)
    offset = 0 if table is None else table.shape[1]
    return forward(plan, padded, inputs, offset, interpret=static.interpret)


def _is_hoppers(static: Static) -> bool:
    """Whether the kernel for Hopper's warpgroups is faster; with fewer rows they do not fill the GPU."""
    plan = static.plan
    is_one = plan.outputs == 1 and mlp_value.fits(plan.widths) and plan.batch >= _HOPPERS_ROWS
    return is_one and plan.products == "bfloat16" and not static.interpret and hopper.is_here()


def _as_one(table: Array | None, row: Array | None, values: Array | None) -> Array | Gathered:
    return cast(Array, values) if table is None else Gathered(table, cast(Array, row), values)


def _fwd(static: Static, *args: Any) -> Any:
    y, padded, kept = first_order_only(functools.partial(_forward_kept, static))(*args)
    return y, (padded, kept, args)


def _bwd(static: Static, residuals: Any, grad: Array) -> Any:
    return first_order_only(functools.partial(_backward, static))(residuals, grad)


_mlp.defvjp(_fwd, _bwd)


def _forward_kept(
    static: Static, layers: Layers, table: Array | None, values: Array | None, row: Array | None
) -> tuple[Array, Padded, tuple[Array, ...]]:
    """Outputs, the padded layers, and what each layer multiplies: `[rows, padded width]`, rows for whole tiles."""
    plan = static.plan
    padded = pad_layers(layers, plan.widths, plan.operand)
    kept = [pad_rows(_as_one(table, row, values), plan.widths[0], plan.operand)]
    for w, b in zip(padded.w[:-1], padded.b[:-1], strict=True):
        kept.append(forward_layer(kept[-1], w, b, slope=plan.negative_slope, interpret=static.interpret))
    y = _product(kept[-1], padded.w[-1], 1, 0) + padded.b[-1]
    return y[: plan.batch, : plan.outputs], padded, tuple(kept)


def _backward(static: Static, residuals: tuple[Padded, tuple[Array, ...], Any], grad: Array) -> Any:
    padded, kept, (layers, table, values, row) = residuals
    plan = static.plan
    dz = jnp.pad(grad, ((0, len(kept[0]) - plan.batch), (0, plan.widths[-1] - plan.outputs))).astype(plan.operand)
    sums, behind = [], None
    for w, a in zip(padded.w[:0:-1], kept[:0:-1], strict=True):
        sums.append(weight_gradient(a, dz, interpret=static.interpret))
        behind = dz, w, a
        dz = backward_layer(*behind, slope=plan.negative_slope, interpret=static.interpret)
    if behind is None:
        first = weight_gradient(kept[0], dz, interpret=static.interpret)
    else:
        n_inputs = layers[0][0].shape[0]
        first = first_layer_gradient(
            kept[0], n_inputs, dz, *behind, slope=plan.negative_slope, interpret=static.interpret
        )
    grad_layers = tuple(
        (dw[: kernel.shape[0], : kernel.shape[1]].astype(kernel.dtype), db[: bias.shape[0]].astype(bias.dtype))
        for (kernel, bias), (dw, db) in zip(layers, (first, *reversed(sums)), strict=True)
    )
    dx = _product(dz, padded.w[0], 1, 1)[: plan.batch]  # dropped by XLA where nobody reads it
    features = 0 if table is None else table.shape[1]
    grad_table = grad_values = None
    if table is not None:
        at = inside(row, table.shape[0])
        grad_table = jnp.zeros(table.shape, jnp.float32).at[at].add(dx[:, :features]).astype(table.dtype)
    if values is not None:
        grad_values = dx[:, features : features + values.shape[1]].astype(values.dtype)
    return grad_layers, grad_table, grad_values, None


def _product(x: Array, y: Array, x_axis: int, y_axis: int) -> Array:
    return lax.dot_general(x, y, (((x_axis,), (y_axis,)), ((), ())), preferred_element_type=jnp.float32)
