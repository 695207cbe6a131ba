"""A small policy forward, its clipped loss, and the gradient back through its layers, in one launch.

    a_0 = x,  z_l = a_l W_l + b_l,  a_{l+1} = leaky(z_l),   dz_n = d loss / d logits  (policy_head)
    dz_{l-1} = (dz_l W_l^T) leaky'(a_l)

A program takes _ROWS rows through all of it and leaves what the weights' gradients multiply (`mlp_layers.weight_gradient`).
Operands of products are rounded to bfloat16, sums are float32.
"""

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.backend import dot, launch, load, store
from pallas_kernels.mlp_plan import Padded
from pallas_kernels.policy_head import SUMS, Batch, head, load_rows

Array = jax.Array

WIDEST = 128  # layer, beyond which the registers do not hold a tile
_ROWS = 64  # a program
_WARPS = 4


class Passed(NamedTuple):
    """Activations a_1, ... and gradients dz_0, ... `[rows, padded width]` in bfloat16; measures `[SUMS, programs]`."""

    a: tuple[Any, ...]
    dz: tuple[Any, ...]
    measures: Any


def run_pass(
    padded: Padded, x: Array, batch: Batch, *, n_actions: int, n_rows: int, slope: float, interpret: bool
) -> Passed:
    """The pass over inputs `[rows, padded width]`, of which the first n_rows are real; rows is a multiple of 128."""
    widths = [b.shape[0] for b in padded.b]
    programs = len(x) // _ROWS
    kept = tuple(jax.ShapeDtypeStruct((len(x), width), jnp.bfloat16) for width in widths)
    outs = Passed(kept[:-1], kept, jax.ShapeDtypeStruct((SUMS, programs), jnp.float32))
    kernel = functools.partial(_kernel, n_actions=n_actions, n_rows=n_rows, slope=slope)
    run = launch(kernel, (outs,), grid=(programs,), name="mlp_policy_loss", warps=_WARPS, interpret=interpret)
    return cast(Passed, run(padded, x, batch)[0])


def _kernel(padded: Padded, x: Any, batch: Batch, outs: Passed, *, n_actions: int, n_rows: int, slope: float) -> None:
    program = pl.program_id(0)
    row = program * _ROWS + jnp.arange(_ROWS)
    last = len(padded.w) - 1

    def at(ref: Any) -> Any:
        return ref.at[row[:, None], jnp.arange(ref.shape[1])[None, :]]

    a, rows = [load(at(x))], load_rows(batch, row, row < n_rows)
    for layer, (w, b) in enumerate(zip(padded.w, padded.b, strict=True)):
        z = dot(a[layer], w[...]) + b[...][None, :]
        if layer < last:
            a.append(jnp.maximum(z, slope * z).astype(jnp.bfloat16))
            store(at(outs.a[layer]), a[-1])
    dz, measures = head(z, rows, row < n_rows, n_actions, n_rows)
    for layer in reversed(range(last + 1)):
        operand = dz.astype(jnp.bfloat16)
        store(at(outs.dz[layer]), operand)
        if layer > 0:
            da = dot(operand, padded.w[layer][...], trans_b=True)
            dz = jnp.where(a[layer] > 0, da, slope * da)
    for i, values in enumerate(measures[:-1]):
        outs.measures[i, program] = jnp.sum(values)
    outs.measures[SUMS - 1, program] = jnp.max(measures[-1])
