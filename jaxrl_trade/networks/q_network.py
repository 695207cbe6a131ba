"""The dueling Q network (Wang et al. 2016, arXiv:1511.06581): a shared trunk, a value stream and an advantage stream.

Q = V + A - mean(A). The streams' last layers are `pallas_kernels`' to compute: `streams` and `heads` are what its functions take.
"""

from __future__ import annotations

from typing import Any, cast

import flax.linen as nn
import jax

import pallas_kernels as pk
from jaxrl_trade.config import Backend, ComputeDtype
from jaxrl_trade.networks import layers
from jaxrl_trade.networks.layers import Params
from jaxrl_trade.networks.precision import plain_products

Array = jax.Array

ADVANTAGE_SCALE = 0.01  # as of an actor's output: all actions are worth about the same until something is learnt


class Dueling(nn.Module):
    """Layers `shared_layer_0`, ..., then `value_layer_0`, `value_output` and `advantage_layer_0`, `advantage_output`."""

    shared_hidden: tuple[int, ...]
    head_hidden: int
    n_actions: int
    negative_slope: float
    compute_dtype: ComputeDtype
    backend: Backend
    param_dtype: Any

    def setup(self) -> None:
        """Names the layers."""
        for i, width in enumerate(self.shared_hidden):
            setattr(self, f"shared_layer_{i}", self._dense(width, 2.0**0.5))
        self.value_layer_0 = self._dense(self.head_hidden, 2.0**0.5)
        self.value_output = self._dense(1, 1.0)
        self.advantage_layer_0 = self._dense(self.head_hidden, 2.0**0.5)
        self.advantage_output = self._dense(self.n_actions, ADVANTAGE_SCALE)

    def __call__(self, inputs: Array) -> Array:
        """Q `[..., A]` of observations `[..., K]`, by the plain formula."""
        h_v, h_a = self.streams_from_first(self.shared_layer_0(inputs))
        advantage = self.advantage_output(h_a)
        return self.value_output(h_v) + advantage - advantage.mean(-1, keepdims=True)

    def streams_from_first(self, first: Array) -> tuple[Array, Array]:
        """The hidden rows `[..., H]` of both streams, from the first layer's sums `[..., M]` before their activation."""
        x = self._activate(first)
        for i in range(1, len(self.shared_hidden)):
            x = self._activate(getattr(self, f"shared_layer_{i}")(x))
        return self._activate(self.value_layer_0(x)), self._activate(self.advantage_layer_0(x))

    def project(self, params: Params, features: Array) -> Array:
        """The features' part `[..., M]` of the first layer, bias included, of features `[..., F]`."""
        return layers.project(params["shared_layer_0"], features, self.compute_dtype)

    def from_projection(self, params: Params, projected: Array, account_values: Array) -> Array:
        """Q `[..., A]`, from `project`'s sums and the columns `[..., 3]` of the observations that follow the features."""
        first = layers.add_account(params["shared_layer_0"], projected, account_values, self.compute_dtype)
        return self._q(params, *self._streams_from_first(params, first))

    def split(self, params: Params, features: Array, constants: Array) -> pk.SplitPolicy:
        """The advantages as the fused rollout takes them: their first maximum is that of Q, V being the same for all actions.

        Args:
          params: the weights.
          features: `[T, F]`, of every bar.
          constants: `[C]`, the observations' last columns, the same at every step.
        """
        names = [f"shared_layer_{i}" for i in range(len(self.shared_hidden))] + [
            "advantage_layer_0",
            "advantage_output",
        ]
        return layers.split([params[name] for name in names], features, constants, self.compute_dtype)

    def streams(self, params: Params, inputs: Array) -> tuple[Array, Array]:
        """The hidden rows `[..., H]` of the value and the advantage stream, of observations `[..., K]`."""
        layer = params["shared_layer_0"]
        return self._streams_from_first(params, layers.project(layer, inputs, self.compute_dtype))

    def evaluate(self, params: Params, inputs: Array) -> Array:
        """Q `[..., A]` of observations `[..., K]` under these weights."""
        return self._q(params, *self.streams(params, inputs))

    def _streams_from_first(self, params: Params, first: Array) -> tuple[Array, Array]:
        return cast(tuple[Array, Array], self.apply({"params": params}, first, method=Dueling.streams_from_first))

    def _q(self, params: Params, h_v: Array, h_a: Array) -> Array:
        rows = h_v.reshape(-1, self.head_hidden), h_a.reshape(-1, self.head_hidden)
        with plain_products(self.compute_dtype):
            q = pk.dueling_q(*rows, **heads(params), backend=self.backend)
        return q.reshape(*h_v.shape[:-1], self.n_actions)

    def _activate(self, x: Array) -> Array:
        return layers.activate(x, self.negative_slope)

    def _dense(self, width: int, scale: float) -> nn.Dense:
        return layers.dense(width, scale, self.compute_dtype, self.param_dtype)


def heads(params: Params) -> dict[str, Array]:
    """The last layers as `pallas_kernels` takes them: w_v `[H]`, b_v, w_a `[H, A]`, b_a `[A]`."""
    value, advantage = params["value_output"], params["advantage_output"]
    return {
        "w_v": value["kernel"][:, 0],
        "b_v": value["bias"][0],
        "w_a": advantage["kernel"],
        "b_a": advantage["bias"],
    }
