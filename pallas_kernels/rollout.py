"""A whole policy rollout in one launch: network, choice of an action and environment for all L steps.

The kernel is rollout_kernel.py's; its contract is `rollout_scan.scan_rollout`.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.backend import Backend, device, launch, not_differentiable, resolve, with_copies
from pallas_kernels.numerics import PADDING, padded
from pallas_kernels.rollout_kernel import Inputs, rollout_kernel
from pallas_kernels.rollout_network import operands
from pallas_kernels.rollout_plan import Products, Static, Tiles, choose_tiles, choose_wide_tiles
from pallas_kernels.rollout_scan import Choice, Environment, Layer, SplitPolicy, Steps, as_arrays, scan_rollout

Array = jax.Array

MAX_WIDTH = 256  # of a layer: the sums of a wider one do not fit into registers
MAX_WEIGHTS = 1 << 18  # entries of all layers after the first, padded
MAX_SMALL = 1 << 15  # of them, those that stay on chip in float32, in any tile; a network of more is wide
H200_SHARED = 227 << 10  # bytes of a block's shared memory
MAX_TABLE = 1 << 32  # bytes of the first layer's table


def obstacle(policy: SplitPolicy) -> str | None:
    """Why the kernel cannot take this policy, or None."""
    widths = _widths(policy)
    if max(widths) > MAX_WIDTH:
        return f"a layer of {max(widths)} units is wider than {MAX_WIDTH}"
    if _weights(widths) > MAX_WEIGHTS:
        return f"the layers after the first have {_weights(widths)} weights (padded), more than {MAX_WEIGHTS}"
    if policy.table.dtype != jnp.float32:
        return f"the weights are {policy.table.dtype}, not float32"
    if policy.table.size * 4 > MAX_TABLE:
        return f"the first layer's table has {policy.table.size * 4} bytes, more than {MAX_TABLE}"
    return None


def _widths(policy: SplitPolicy) -> list[int]:
    return [policy.table.shape[1], *(layer.kernel.shape[1] for layer in policy.layers)]


def _weights(widths: Sequence[int]) -> int:
    """Entries of all layers after the first, padded."""
    return sum(padded(a) * padded(b) for a, b in itertools.pairwise(widths))


def rollout(
    environment: Environment,
    policy: SplitPolicy,
    tables: Any,
    effects: Any,
    state: Any,
    draws: Array,
    restarts: Array,
    *,
    negative_slope: float,
    choice: Choice = "softmax",
    products: Products = "float32",
    backend: Backend = "auto",
    tiles: Tiles | None = None,
) -> tuple[Any, Steps]:
    """L steps of N lanes.

    Args:
      environment: what a lane does.
      policy: the network, float32.
      tables: pytree of `[T]` arrays.
      effects: pytree of `[A]` arrays, one entry an action.
      state: pytree of `[N]` arrays.
      draws: `[L, N]` float32 in [0, 1): the action is the number of entries of c with c <= u c_last, c the cumulative
        sum of exp(logit - max), at most A - 1. Or `[L, N]` int32: the actions themselves, clipped into [0, A); under the
        choice "greedy" always these, and one below 0 takes the greedy action.
      restarts: `[L, N]` int32, the row where a lane whose episode ends at that step starts afresh.
      negative_slope: of the leaky ReLU.
      choice: "softmax": the logits are those of a softmax policy, which gives the log-probabilities. "greedy": the
        policy takes the first of the greatest logits, so the log-probability is 0 for that action and -inf for others.
      products: precision of the matrix products: float32 (from bfloat16 terms, exact to 2^-24), TF32 or bfloat16, each
        with float32 sums.
      backend: `"auto"` | `"pallas"` | `"interpret"` | `"xla"`; see `backend.resolve`. XLA takes JAX's own precision.
      tiles: how the kernel cuts the lanes; None chooses by N, and by how
        many rollouts a vmap around this one runs at once.

    Returns:
      The state after L steps, and the steps.

    Raises:
      ValueError: shapes that do not fit, an unknown `products` or `choice`, uniforms for a greedy choice, or a policy that
        a kernel asked for by name cannot take.
    """
    _check_choices(draws, products, choice)
    _check(policy, tables, effects, state, draws, restarts)
    _check_values(environment, policy, tables, effects, state)
    mode = resolve(backend, faster=True, obstacle=obstacle(policy))
    if mode == "xla":
        logits = functools.partial(policy.logits, negative_slope=negative_slope)
        return scan_rollout(environment, logits, choice, tables, effects, state, draws, restarts)

    def run(copies: int, *args: Any) -> tuple[Any, Steps]:
        static = Static(
            environment=environment,
            choice=choice,
            negative_slope=negative_slope,
            products=products,
            tiles=tiles or _tiles(policy, draws.shape[1], products, copies),
            interpret=mode == "interpret",
        )
        return _launch(static, *args)

    whole = not_differentiable(with_copies(run))
    return cast(tuple[Any, Steps], whole(policy, tables, effects, state, draws, restarts))


def _tiles(policy: SplitPolicy, n_lanes: int, products: Products, copies: int) -> Tiles:
    widths = _widths(policy)
    if _weights(widths) <= MAX_SMALL:
        return choose_tiles(n_lanes, products, copies)
    shared = getattr(device(), "shared_memory_per_block_optin", H200_SHARED)  # in bytes; unknown where there is no GPU
    return choose_wide_tiles(list(map(padded, widths)), n_lanes, products, copies, shared=shared)


def _check_choices(draws: Array, products: Products, choice: Choice) -> None:
    for name, value, known in (("products", products, Products), ("choice", choice, Choice)):
        if value not in get_args(known):
            raise ValueError(f"{name} = {value!r} is unknown; choose one of {', '.join(map(repr, get_args(known)))}")
    if choice == "greedy" and not jnp.issubdtype(draws.dtype, jnp.integer):
        raise ValueError(
            f"draws are {draws.dtype}, but a greedy choice takes int32: an action, or -1 for the greedy one"
        )


def _check(policy: SplitPolicy, tables: Any, effects: Any, state: Any, draws: Array, restarts: Array) -> None:
    if draws.ndim != 2 or draws.shape != restarts.shape or not draws.size:
        raise ValueError(
            f"draws has shape {draws.shape} and restarts {restarts.shape}; both must be [L, N] with at least one step and lane"
        )
    _check_policy(policy)
    sizes = {"tables": policy.table.shape[0], "effects": policy.layers[-1].kernel.shape[1], "state": draws.shape[1]}
    for (what, size), tree in zip(sizes.items(), (tables, effects, state), strict=True):
        for leaf in jax.tree.leaves(tree):
            if leaf.shape != (size,):
                raise ValueError(f"a leaf of {what} has shape {leaf.shape}; wanted ({size},)")


def _check_values(environment: Environment, policy: SplitPolicy, tables: Any, effects: Any, state: Any) -> None:
    one_state, _, here, _ = _examples(state, effects, tables)
    values = jax.eval_shape(environment.observe, one_state, here)
    if len(values) != len(policy.values):
        raise ValueError(
            f"environment.observe gives {len(values)} values, but policy.values has shape {policy.values.shape}; "
            f"wanted [{len(values)}, H]"
        )


def _check_policy(policy: SplitPolicy) -> None:
    if not policy.layers:
        raise ValueError("policy.layers is empty; the last of them gives the logits")
    if policy.table.ndim != 2 or policy.values.ndim != 2 or policy.table.shape[1] != policy.values.shape[1]:
        raise ValueError(
            f"policy.table has shape {policy.table.shape} and policy.values {policy.values.shape}; wanted [T, H] and [K, H]"
        )
    width = policy.table.shape[1]
    for i, (kernel, bias) in enumerate(policy.layers):
        if kernel.ndim != 2 or kernel.shape[0] != width or bias.shape != kernel.shape[1:]:
            raise ValueError(
                f"policy.layers[{i}] has a kernel of shape {kernel.shape} and a bias of shape {bias.shape}; "
                f"wanted [{width}, out] and [out]"
            )
        width = kernel.shape[1]


def _launch(
    static: Static, policy: SplitPolicy, tables: Any, effects: Any, state: Any, draws: Array, restarts: Array
) -> tuple[Any, Steps]:
    length, n_lanes = draws.shape
    record = jax.eval_shape(as_arrays(static.environment).step, *_examples(state, effects, tables))[2]
    in_memory = jax.tree.map(lambda x: jax.ShapeDtypeStruct((length, n_lanes), _memory(x.dtype)), record)
    log_probs = jax.ShapeDtypeStruct((length, n_lanes), jnp.float32)
    steps = Steps(jax.ShapeDtypeStruct((length, n_lanes), jnp.int32), log_probs, in_memory)
    outs = (jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state), steps)
    ins = Inputs(
        policy=operands(_pad(policy), static),
        tables=jax.tree.map(lambda x: x.astype(_memory(x.dtype)), tables),
        effects=jax.tree.map(lambda x: x.astype(_memory(x.dtype)), effects),
        state=state,
        draws=draws,
        restarts=restarts.astype(jnp.int32),
    )
    kernel = functools.partial(
        rollout_kernel,
        static=static,
        dtypes=jax.tree.map(lambda x: x.dtype, (tables, effects)),
        n_actions=policy.layers[-1].kernel.shape[1],
    )
    tiles = static.tiles
    grid = (pl.cdiv(n_lanes, tiles.lanes),)
    run = launch(
        kernel,
        outs,
        grid=grid,
        name="rollout",
        warps=tiles.warps,
        stages=tiles.stages,
        interpret=static.interpret,
    )
    after, steps = run(ins)
    return after, steps._replace(record=jax.tree.map(lambda x, want: x.astype(want.dtype), steps.record, record))


def _examples(state: Any, effects: Any, tables: Any) -> tuple[Any, Any, Any, Any]:
    """Shapes of one step's arguments, a lane each."""

    def one(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1,), x.dtype), tree)

    return one(state), one(effects), one(tables), one(tables)


def _pad(policy: SplitPolicy) -> SplitPolicy:
    """Widths padded to powers of two: units that do not exist stay zero, actions that do not exist get PADDING."""
    last = len(policy.layers) - 1

    def grow(x: Array, *axes: int, value: float = 0.0) -> Array:
        pad = [(0, padded(n) - n if axis in axes else 0) for axis, n in enumerate(x.shape)]
        return jnp.pad(x, pad, constant_values=value)

    layers = tuple(
        Layer(grow(kernel, 0, 1), grow(bias, 0, value=PADDING if i == last else 0.0))
        for i, (kernel, bias) in enumerate(policy.layers)
    )
    values = grow(policy.values, 1) if len(policy.values) else None  # no kernel reads an array of nothing
    return SplitPolicy(grow(policy.table, 1), values, layers)


def _memory(dtype: Any) -> Any:
    """How values of a dtype lie in memory: bools as bytes."""
    return jnp.int8 if dtype == jnp.bool_ else dtype
