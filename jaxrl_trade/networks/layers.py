"""Pieces that the networks share: dense layers, their activation, and the first layer split by bar and account.

An observation is market features and a few account values. The features' part of the first layer depends on the bar alone, so it
can be computed once for all bars (`project`), and a step adds the account's columns (`add_account`). Both ways give the same sums,
up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import pallas_kernels as pk
from jaxrl_trade.config import ComputeDtype
from jaxrl_trade.networks.precision import dot, dot_general

Array = jax.Array
Params = Mapping[str, Any]


def dense(width: int, scale: float, compute_dtype: ComputeDtype, param_dtype: Any) -> nn.Dense:
    """A dense layer, initialised orthogonally with that scale."""
    return nn.Dense(
        width,
        kernel_init=nn.initializers.orthogonal(scale),
        param_dtype=param_dtype,
        dot_general=dot_general(compute_dtype),
    )


def activate(x: Array, negative_slope: float) -> Array:
    """Leaky ReLU; slope 0 is ReLU."""
    return jnp.where(x > 0, x, negative_slope * x)


def project(layer: Params, features: Array, compute_dtype: ComputeDtype) -> Array:
    """The part `[..., M]` of a first layer that features `[..., F]` make, bias included."""
    return dot(features, layer["kernel"][: features.shape[-1]], compute_dtype) + layer["bias"]


def add_account(layer: Params, projected: Array, account_values: Array, compute_dtype: ComputeDtype) -> Array:
    """The first layer's sums `[..., M]`: `project`'s, and those of the columns `[..., 3]` that follow the features."""
    return projected + dot(account_values, layer["kernel"][-account_values.shape[-1] :], compute_dtype)


def split(layers: Sequence[Params], features: Array, constants: Array, compute_dtype: ComputeDtype) -> pk.SplitPolicy:
    """A perceptron as the fused rollout takes it: the first layer's sums for the features `[T, F]` of every bar.

    Args:
      layers: dense ones, the last of which gives the logits.
      features: of all bars.
      constants: `[C]`, the inputs' last columns, the same at every step.
      compute_dtype: of the features' products.
    """
    first, *rest = layers
    kernel = first["kernel"][features.shape[-1] :]
    own = len(kernel) - len(constants)
    return pk.SplitPolicy(
        table=project(first, features, compute_dtype) + constants @ kernel[own:],
        values=kernel[:own],
        layers=tuple(pk.Layer(layer["kernel"], layer["bias"]) for layer in rest),
    )
