"""The multilayer perceptron that actor, critic and curiosity model share, with its first layer split in two; see `layers`."""

from __future__ import annotations

from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

import pallas_kernels as pk
from jaxrl_trade.config import Backend, ComputeDtype, Scalar
from jaxrl_trade.networks import layers
from jaxrl_trade.networks.layers import Params

Array = jax.Array


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
        return layers.project(params[f"{self.prefix}_layer_0"], features, self.compute_dtype)

    def evaluate(self, params: Params, inputs: Array | pk.Gathered, backend: Backend = "auto") -> Array:
        """The outputs `[..., outputs]` of inputs `[..., K]` under these weights.

        In bfloat16 a kernel of `pallas_kernels` where `backend` has one, else a product a layer.
        """
        if not self._is_rounded(inputs):
            array = inputs.formed() if isinstance(inputs, pk.Gathered) else inputs
            return cast(Array, self.apply({"params": params}, array))
        if isinstance(inputs, pk.Gathered):
            return self._launch(params, inputs, backend)
        rows = inputs.reshape(-1, inputs.shape[-1])
        return self._launch(params, rows, backend).reshape(*inputs.shape[:-1], self.outputs)

    def evaluate_gathered(self, params: Params, inputs: pk.Gathered, backend: Backend) -> Array | None:
        """The outputs `[B, outputs]` of rows `[B]` of a table and their values, in one launch; None where there is none."""
        if self.compute_dtype != "bfloat16" or pk.mlp_mode(self._layers(params), inputs, "bfloat16", backend) == "xla":
            return None
        return self._launch(params, inputs, backend)

    def policy_loss(
        self,
        params: Params,
        inputs: Array | pk.Gathered,
        actions: Array,
        log_probs: Array,
        advantages: Array,
        clip: Scalar,
        entropy_coef: Scalar,
    ) -> pk.PolicyLoss:
        """`pk.clipped_policy_loss` of the outputs under these weights, taken for logits; inputs carry no gradient."""
        layers, batch = self._layers(params), (actions, log_probs, advantages, clip, entropy_coef)
        if self._is_rounded(inputs) and pk.mlp_policy_loss_mode(layers, inputs, "auto") != "xla":
            return pk.mlp_policy_loss(layers, inputs, *batch, negative_slope=self.negative_slope)
        return pk.clipped_policy_loss(self.evaluate(params, inputs), *batch)

    def from_projection(self, params: Params, projected: Array, account_values: Array) -> Array:
        """The outputs `[..., outputs]`, from `project`'s sums and the columns `[..., 3]` of the inputs that follow the features."""
        first = layers.add_account(params[f"{self.prefix}_layer_0"], projected, account_values, self.compute_dtype)
        return cast(Array, self.apply({"params": params}, first, method=MLP.from_first))

    def split(self, params: Params, features: Array, constants: Array) -> pk.SplitPolicy:
        """The network as the fused rollout takes it: the first layer's sums for the features `[T, F]` of every bar.

        constants `[C]`: the inputs' last columns, the same at every step.
        """
        return layers.split([params[name] for name in self._names()], features, constants, self.compute_dtype)

    def _is_rounded(self, inputs: Array | pk.Gathered) -> bool:
        dtype = inputs.table.dtype if isinstance(inputs, pk.Gathered) else inputs.dtype
        return self.compute_dtype == "bfloat16" and dtype == jnp.float32

    def _launch(self, params: Params, inputs: Array | pk.Gathered, backend: Backend) -> Array:
        return pk.mlp(self._layers(params), inputs, negative_slope=self.negative_slope, backend=backend)

    def _layers(self, params: Params) -> tuple[pk.Layer, ...]:
        return tuple(pk.Layer(params[name]["kernel"], params[name]["bias"]) for name in self._names())

    def _names(self) -> list[str]:
        return [*(f"{self.prefix}_layer_{i}" for i in range(len(self.hidden))), f"{self.prefix}_output"]

    def _activate(self, x: Array) -> Array:
        return layers.activate(x, self.negative_slope)

    def _dense(self, width: int, scale: float) -> nn.Dense:
        return layers.dense(width, scale, self.compute_dtype, self.param_dtype)
