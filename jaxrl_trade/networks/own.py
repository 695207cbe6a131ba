"""A network of the user's own in the place of the package's: any Flax module from observations to outputs.

It has the methods that the agents call on the package's own, without their short cuts: nothing is taken out of the loop, and no
kernel is written for it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels as pk
from jaxrl_trade.config import Backend, Scalar
from jaxrl_trade.networks.layers import Params
from jaxrl_trade.parts import named

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Own:
    """`make(outputs)` is a Flax module from observations `[..., F + 3]` to `[..., outputs]`, with nothing but parameters."""

    make: Callable[[int], Any]
    outputs: int

    @functools.cached_property
    def module(self) -> nn.Module:
        """The Flax module.

        Raises:
          ValueError: `make` makes something else.
        """
        module = self.make(self.outputs)
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"network {named(self.make)} makes a {type(module).__name__}; it must make a flax.linen.Module"
            )
        return module

    def init(self, key: Array, obs: Array) -> dict[str, Any]:
        """Fresh `{"params": ...}`.

        Raises:
          ValueError: outputs of another shape, state besides parameters, or whatever the module raises.
        """
        try:
            variables = dict(self.module.init(key, obs))
            shape = jax.eval_shape(self.module.apply, variables, obs).shape
        except (Exception, SystemExit) as error:
            raise ValueError(f"network {named(self.make)} fails: {type(error).__name__}: {error}") from error
        if shape != (self.outputs,) or set(variables) != {"params"}:
            extra = sorted(set(variables) - {"params"})
            raise ValueError(
                f"network {named(self.make)} gives {shape} for one observation {obs.shape}"
                + (f" and keeps {', '.join(extra)}" if extra else "")
                + f"; it must give ({self.outputs},), and keep nothing but params"
            )
        return variables

    def check_rows(self, n_inputs: int) -> None:
        """Refuses a module that gives an observation other outputs when others are beside it: agents take them in any company.

        Raises:
          ValueError: it does, or as `init`.
        """
        keys = jax.random.split(jax.random.key(0), 3)
        variables = self.init(keys[0], jnp.zeros(n_inputs))
        leaves, tree = jax.tree.flatten(variables)
        # weights that begin at 0 would hide it
        noise = [
            0.1 * jax.random.normal(jax.random.fold_in(keys[1], i), x.shape, x.dtype) for i, x in enumerate(leaves)
        ]
        variables = jax.tree.unflatten(tree, [x + y for x, y in zip(leaves, noise, strict=True)])
        obs = jax.random.normal(keys[2], (3, n_inputs))
        try:
            together = np.asarray(self.apply(variables, obs), float)
            alone = np.stack([np.asarray(self.apply(variables, row), float) for row in obs])
        except (Exception, SystemExit) as error:
            raise ValueError(f"network {named(self.make)} fails: {type(error).__name__}: {error}") from error
        # a few per cent: products in bfloat16 may be summed in another order
        if together.shape != alone.shape or not np.abs(together - alone).max() <= 0.03 * np.abs(alone).max() + 1e-6:
            raise ValueError(
                f"network {named(self.make)} mixes the observations of a batch: it gives one of them other outputs beside others "
                "than alone; take means and norms over the last axis only (a LayerNorm, no BatchNorm)"
            )

    def apply(self, variables: Any, obs: Array) -> Array:
        """As the module's."""
        return cast(Array, self.module.apply(variables, obs))

    def evaluate(self, params: Params, inputs: Array | pk.Gathered, backend: Backend = "auto") -> Array:
        """The outputs `[..., outputs]` of inputs `[..., K]`."""
        del backend
        return self.apply({"params": params}, inputs.formed() if isinstance(inputs, pk.Gathered) else inputs)

    def evaluate_gathered(self, params: Params, inputs: pk.Gathered, backend: Backend) -> None:
        """None: there is no launch for it."""
        del params, inputs, backend

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
        """`pk.clipped_policy_loss` of the outputs, taken for logits."""
        logits = self.evaluate(params, inputs)
        return pk.clipped_policy_loss(logits, actions, log_probs, advantages, clip, entropy_coef)

    def project(self, params: Params, features: Array) -> Array:
        """The features themselves: nothing of the network depends on them alone."""
        del params
        return features

    def from_projection(self, params: Params, projected: Array, account_values: Array) -> Array:
        """The outputs, of `project`'s features and the account values `[..., 3]`."""
        return self.evaluate(params, jnp.concatenate([projected, account_values.astype(projected.dtype)], axis=-1))

    def split(self, params: Params, features: Array, constants: Array) -> None:
        """None: the fused rollout cannot take it."""
        del params, features, constants
