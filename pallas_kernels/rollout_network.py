"""The network inside the rollout's kernel: logits of a block's lanes, from the first layer's sums and the state's values.

A block of one lane is all scalars and vectors: its products are sums of 32-bit floats. A hidden layer's weights are folded
so that a few threads of one warp hold all inputs of a unit, whose sum needs no other warp's. The last layer's are not:
its sums end up in every warp whole, where an action is chosen without waiting for another. A block of several lanes
multiplies on the tensor cores. There the first layer comes in pieces of `Tiles.columns` columns, so narrow that a warp's
threads hold one lane each rather than all lanes each: Triton computes the environment in the layout of these pieces' rows.

A wide network's weights do not all fit on chip. Each of its layers takes its inputs a chunk at a time and holds its sums as
pieces, the next layer's chunks: no product needs all of a row, and a weight is touched once a step. Weights lie in memory
as their products take them. Those of the last `Tiles.held` layers are read before the first step and stay in shared
memory, where the compiler puts what the tensor cores read; the others are read in every step by a loop over the chunks,
which fetches them from the L2 cache ahead of their products.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.backend import dot
from pallas_kernels.numerics import bf16_terms, dot_f32
from pallas_kernels.rollout_plan import Static
from pallas_kernels.rollout_scan import Layer, SplitPolicy

Array = jax.Array
FOLD = 16  # inputs of a unit that neighbouring threads hold, four each: measured, with 8 and 32, on an H200
Columns = Callable[[Any, int], Array]  # (n, size) -> columns n, ..., n + size - 1 of some layer's sums, [lanes, size]

# What a product does to its operands first (once for the weights), and the product.
_PRODUCTS: dict[str, tuple[Callable[[Array], Any], Callable[[Any, Any], Array]]] = {
    "float32": (bf16_terms, dot_f32),
    "tf32": (lambda x: x, dot),
    "bfloat16": (lambda x: x.astype(jnp.bfloat16), dot),
}


def operands(policy: SplitPolicy, static: Static) -> SplitPolicy:
    """The policy as the kernel reads it.

    One lane: the hidden layers' kernels folded. A wide network: weights as its products take them, an array or its terms.
    """
    if static.tiles.lanes == 1:
        *hidden, last = policy.layers
        return policy._replace(layers=(*(Layer(_folded(kernel), bias) for kernel, bias in hidden), last))
    if static.tiles.chunk is None:
        return policy
    prepare, _ = _PRODUCTS[static.products]
    return policy._replace(layers=tuple(Layer(prepare(kernel), bias) for kernel, bias in policy.layers))


def network(policy: SplitPolicy, static: Static) -> Callable[[Any, Sequence[Array]], Array]:
    """Logits `[AP]` or `[lanes, AP]` from the first layer and the state's values; what stays is loaded now, before the loop.

    The first layer comes as pieces, or for a wide network as `Columns`.
    """
    if static.tiles.chunk is not None:
        return _wide_network(policy, static, static.tiles.chunk)
    if static.tiles.lanes == 1:
        return _vector_network(policy, static)
    size = min(static.tiles.columns, policy.table.shape[1])
    pieces = [pl.ds(begin, size) for begin in range(0, policy.table.shape[1], size)]
    prepare, multiply = _PRODUCTS[static.products]
    (kernel_0, bias_0), *rest = policy.layers
    kernels_0 = [prepare(kernel_0[piece, :]) for piece in pieces]
    layers = [(prepare(kernel[...]), bias) for kernel, bias in rest]

    # biases and columns are read anew in every step: they would fill the registers
    def logits(first: Sequence[Array], values: Sequence[Array]) -> Array:
        x: Any = bias_0[...][None, :]
        for y, piece, kernel in zip(first, pieces, kernels_0, strict=True):
            y = _with_values(y, policy, values, piece)
            x = x + multiply(prepare(_leaky(y, static)), kernel)
        for kernel, bias in layers:
            x = multiply(prepare(_leaky(x, static)), kernel) + bias[...][None, :]
        return cast(Array, x)

    return logits


def _vector_network(policy: SplitPolicy, static: Static) -> Callable[[Sequence[Array], Sequence[Array]], Array]:
    columns = [] if policy.values is None else [policy.values[k, :] for k in range(policy.values.shape[0])]
    layers = [(kernel[...], bias[...]) for kernel, bias in policy.layers]

    def logits(first: Sequence[Array], values: Sequence[Array]) -> Array:
        (x,) = first
        for value, column in zip(values, columns, strict=True):
            x = x + value * column
        for kernel, bias in layers:
            x = _vector_product(_leaky(x, static), kernel) + bias
        return x

    return logits


def _folded(kernel: Array) -> Array:
    """`[in / FOLD, out, FOLD]` of `[in, out]`."""
    return jnp.swapaxes(kernel.reshape(-1, FOLD, kernel.shape[1]), 1, 2)


def _vector_product(x: Array, kernel: Array) -> Array:
    if kernel.ndim == 2:
        return jnp.sum(x[:, None] * kernel, axis=0)
    folded = x.reshape(-1, 1, FOLD) * kernel
    return jnp.sum(jnp.sum(folded, axis=0), axis=1)


def _wide_network(policy: SplitPolicy, static: Static, chunk: int) -> Callable[[Columns, Sequence[Array]], Array]:
    # sizes: of a layer's chunks, and so of the pieces of the layer before; the logits are one piece
    prepare, multiply = _PRODUCTS[static.products]
    widths = [policy.table.shape[1], *(bias.shape[0] for _, bias in policy.layers)]
    sizes = [*(min(chunk, width) for width in widths[:-1]), widths[-1]]
    layers = [_WideLayer(*layer, *size) for layer, size in zip(policy.layers, itertools.pairwise(sizes), strict=True)]
    streamed = len(layers) - static.tiles.held
    held = [None if k < streamed else [layer.read(i) for i in range(layer.chunks)] for k, layer in enumerate(layers)]

    def summed(layer: _WideLayer, weights: list[Any] | None, inputs: Callable[[Any], Array]) -> tuple[Array, ...]:
        """The layer's sums in pieces; inputs: chunk i of what it begins with, before its activation."""

        def add(i: Any, kernels: Sequence[Any], sums: tuple[Array, ...]) -> tuple[Array, ...]:
            x = prepare(_leaky(inputs(i), static))
            return tuple(z + multiply(x, kernel) for z, kernel in zip(sums, kernels, strict=True))

        sums = layer.begin(static.tiles.lanes)
        if weights is None:
            return _loop(layer.chunks, lambda i, sums: add(i, layer.read(i), sums), sums)
        for i, kernels in enumerate(weights):
            sums = add(i, kernels, sums)
        return sums

    def logits(first: Columns, values: Sequence[Array]) -> Array:
        def with_values(i: Any) -> Array:
            n, size = i * sizes[0], sizes[0]
            return _with_values(first(n, size), policy, values, pl.ds(n, size))

        inputs = with_values
        for layer, weights in zip(layers, held, strict=True):
            sums = summed(layer, weights, inputs)
            inputs = functools.partial(_one_of, sums)
        (only,) = sums
        return only

    return logits


class _WideLayer(NamedTuple):
    """A layer of a wide network: it takes its inputs a chunk at a time, and its sums are held as pieces of its outputs."""

    kernel: Any
    bias: Any
    chunk: int
    piece: int

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return cast(int, jax.tree.leaves(self.kernel)[0].shape[0] // self.chunk)

    @property
    def pieces(self) -> list[Any]:
        """The outputs of each piece."""
        return [pl.ds(n, self.piece) for n in range(0, self.bias.shape[0], self.piece)]

    def begin(self, lanes: int) -> tuple[Array, ...]:
        """Sums before any input: the biases."""
        return tuple(jnp.broadcast_to(self.bias[piece][None, :], (lanes, self.piece)) for piece in self.pieces)

    def read(self, i: Any) -> list[Any]:
        """The weights of chunk i to each piece."""
        rows = pl.ds(i * self.chunk, self.chunk)
        return [jax.tree.map(lambda ref, piece=piece: ref[rows, piece], self.kernel) for piece in self.pieces]


def _loop(rounds: int, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    return body(0, carry) if rounds == 1 else lax.fori_loop(0, rounds, body, carry)


def _one_of(pieces: Sequence[Array], i: Any) -> Array:
    """Piece i, which only a loop does not know beforehand."""
    if isinstance(i, int):
        return pieces[i]
    chosen = pieces[0]
    for k, piece in enumerate(pieces[1:], start=1):
        chosen = jnp.where(i == k, piece, chosen)
    return chosen


def _with_values(y: Array, policy: SplitPolicy, values: Sequence[Array], columns: Any) -> Array:
    """The first layer's sums of these columns, y with what the state's values add."""
    for k, value in enumerate(values):
        y = y + value[:, None] * policy.values[k, columns][None, :]
    return y


def _leaky(x: Array, static: Static) -> Array:
    return jnp.where(x > 0, x, static.negative_slope * x)
