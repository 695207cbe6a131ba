"""Several devices, and three ways to run one function on all of them that give the same numbers.

`shard_map` is what JAX recommends, `pmap` what it recommended before; `vmap` keeps every device's share on one device, to debug.
Whatever holds them, arrays have the shapes of one device: shares lie end to end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Array = jax.Array
Executor = Literal["shard_map", "pmap", "vmap"]

AXIS = "devices"
WHOLE, SHARE = (
    P(),
    P(AXIS),
)  # of an argument or a result: each device has all of it, or its share of the first dimension


@dataclasses.dataclass(frozen=True)
class Team:
    """Several devices and the executor that maps a function over them; for `vmap`, several shares on one device."""

    executor: Executor
    count: int
    devices: tuple[jax.Device, ...]  # none for `vmap`

    @classmethod
    def of(cls, executor: Executor, count: int | None) -> Team:
        """The first `count` devices, or all; of several processes, those of all of them.

        Raises:
          ValueError: an unknown executor, no number of devices, or more than there are.
        """
        if executor not in get_args(Executor):
            raise ValueError(f"executor = {executor!r} must be one of {', '.join(map(repr, get_args(Executor)))}")
        there = jax.devices()
        count = len(there) if count is None else count
        if not isinstance(count, (int, np.integer)) or isinstance(count, bool):
            raise ValueError(f"devices = {count!r} must be a whole number, or None for all")
        if count < 1:
            raise ValueError(f"devices = {count} must be at least 1")
        if executor == "vmap":
            return cls(executor, count, ())
        if count > len(there):
            raise ValueError(
                f"devices = {count}, but JAX sees {len(there)} of kind {there[0].platform!r}; ask for fewer, or take "
                "executor='vmap', which keeps every share on one device"
            )
        return cls(executor, count, tuple(there[:count]))

    @property
    def mesh(self) -> Mesh:
        """The devices in a row named `AXIS`."""
        return jax.make_mesh((self.count,), (AXIS,), axis_types=(AxisType.Auto,), devices=self.devices)

    def replicate(self, tree: Any) -> Any:
        """The tree on every device, once and for all calls."""
        return self.place(tree, WHOLE)

    def place(self, tree: Any, layout: Any) -> Any:
        """Whole arrays, of which every process has all, laid over the devices.

        Args:
          tree: of arrays.
          layout: pytree prefix of it, of partition specs, as for `map`.
        """
        if not self.devices:
            return tree
        mesh = self.mesh
        return jax.tree.map(
            lambda spec, part: jax.tree.map(lambda x: _put(x, NamedSharding(mesh, spec)), part), layout, tree
        )

    def map(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], results: Any, *, donate: bool = False
    ) -> Callable[..., Any]:
        """`function`, which sees the shares of one device and no dimension for devices, as a function of whole arrays.

        Args:
          function: positional arguments; collectives along `AXIS` are those of all devices.
          arguments: pytree prefixes of them, of partition specs: `WHOLE`, or which dimension is divided.
          results: likewise. What is `WHOLE` must be alike on all devices: `vmap` proves it while tracing, see also
            `check_replicas`.
          donate: the first argument.
        """
        donated = (0,) if donate else ()
        if self.executor == "shard_map":
            # check_vma=True knows no Pallas kernels
            mapped = jax.shard_map(function, mesh=self.mesh, in_specs=arguments, out_specs=results, check_vma=False)
            return jax.jit(mapped, donate_argnums=donated)
        # `shard_map` divides a dimension; `pmap` and `vmap` take away one that counts devices
        in_axes, out_axes = _dimensions(arguments), _dimensions(results)

        def around(mapped: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *xs: _reshaped(mapped(*_reshaped(xs, arguments, self._split)), results, self._join)

        if self.executor == "vmap":
            vmapped = jax.vmap(function, in_axes, out_axes, axis_name=AXIS, axis_size=self.count)
            return jax.jit(around(vmapped), donate_argnums=donated)
        pmapped = jax.pmap(
            lambda *xs: function(*xs[:-1]),  # the last one is there because pmap wants an argument that is divided
            AXIS,
            in_axes=(*in_axes, 0),
            out_axes=out_axes,
            devices=self.devices,
            donate_argnums=donated,
        )
        return around(lambda *xs: pmapped(*xs, np.arange(self.count)))

    def _split(self, x: Array, dimension: int) -> Array:
        return x.reshape(*x.shape[:dimension], self.count, -1, *x.shape[dimension + 1 :])

    def _join(self, x: Array, dimension: int) -> Array:
        return x.reshape(*x.shape[:dimension], -1, *x.shape[dimension + 2 :])


def _put(x: Array, sharding: NamedSharding) -> Array:
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    held = np.asarray(x)
    return jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])


def check_replicas(tree: Any) -> None:
    """Refuses arrays that should be alike on several devices and are not, bit for bit; others pass.

    Raises:
      RuntimeError: names the first of them, and the devices.
    """
    for path, x in jax.tree.leaves_with_path(tree):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        if not x.is_fully_replicated:
            continue
        first, *others = x.addressable_shards
        wanted = np.asarray(first.data).tobytes()
        for shard in others:
            if np.asarray(shard.data).tobytes() != wanted:
                raise RuntimeError(
                    f"{jax.tree_util.keystr(path)} is not the same on {first.device} and {shard.device}, which took the same "
                    "steps; a device may be faulty, or a reduction was left out"
                )


def _dimensions(specs: Any) -> Any:
    """Partition specs as `in_axes` or `out_axes`."""
    return jax.tree.map(_dimension, specs)


def _dimension(spec: Any) -> int | None:
    return tuple(spec).index(AXIS) if AXIS in tuple(spec) else None


def _reshaped(tree: Any, specs: Any, reshape: Callable[[Array, int], Array]) -> Any:
    def one(spec: Any, x: Array) -> Array:
        dimension = _dimension(spec)
        return x if dimension is None else reshape(x, dimension)

    return jax.tree.map(one, jax.tree.broadcast(specs, tree), tree)
