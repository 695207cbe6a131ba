"""The multilayer perceptron that actor, critic and curiosity model share, with its first layer split in two.

An observation is market features and a few account values. The features' part of the first layer depends on the bar alone,
so it can be computed once for all bars (`project`), and a step adds the account's columns (`from_projection`). Both ways give
the same sums, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_trade.config import ComputeDtype
from jaxrl_trade.networks.precision import dot, dot_general

Array = jax.Array
Params = Mapping[str, Any]


class MLP(nn.Module):
    """Dense layers with leaky ReLU between them, named `{prefix}_layer_0`, ..., `{prefix}_output`; orthogonal initialisation."""

    prefix: str
    hidden: tuple[int, ...]
    outputs: int
    output_scale: float
    negative_slope: float
    compute_dtype: ComputeDtype
    param_dtype: Any

    def setup(self) -> None:
        """Names the layers."""
        for i, width in enumerate(self.hidden):
            setattr(self, f"{self.prefix}_layer_{i}", self._dense(width, 2.0**0.5))
        setattr(self, f"{self.prefix}_output", self._dense(self.outputs, self.output_scale))

    def __call__(self, inputs: Array) -> Array:
        """`[..., K]` to `[..., outputs]`."""
        return self.from_first(getattr(self, f"{self.prefix}_layer_0")(inputs))

    def from_first(self, first: Array) -> Array:
        """The rest of the network, from the first layer's sums `[..., hidden[0]]` before their activation."""
        x = self._activate(first)
        for i in range(1, len(self.hidden)):
            x = self._activate(getattr(self, f"{self.prefix}_layer_{i}")(x))
        return getattr(self, f"{self.prefix}_output")(x)

    def project(self, params: Params, features: Array) -> Array:
        """The features' part `[..., hidden[0]]` of the first layer, bias included, of features `[..., F]`."""
        layer = params[f"{self.prefix}_layer_0"]
        return dot(features, layer["kernel"][: features.shape[-1]], self.compute_dtype) + layer["bias"]

    def evaluate(self, params: Params, inputs: Array) -> Array:
        """The outputs `[..., outputs]` of inputs `[..., K]` under these weights."""
        return cast(Array, self.apply({"params": params}, inputs))

    def from_projection(self, params: Params, projected: Array, account_values: Array) -> Array:
        """The outputs `[..., outputs]`, from `project`'s sums and the columns `[..., 3]` of the inputs that follow the features."""
        kernel = params[f"{self.prefix}_layer_0"]["kernel"][-account_values.shape[-1] :]
        first = projected + dot(account_values, kernel, self.compute_dtype)
        return cast(Array, self.apply({"params": params}, first, method=MLP.from_first))

    def _activate(self, x: Array) -> Array:
        return jnp.where(x > 0, x, self.negative_slope * x)

    def _dense(self, width: int, scale: float) -> nn.Dense:
        return nn.Dense(
            width,
            kernel_init=nn.initializers.orthogonal(scale),
            param_dtype=self.param_dtype,
            dot_general=dot_general(self.compute_dtype),
        )
