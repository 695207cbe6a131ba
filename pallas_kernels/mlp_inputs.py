"""What a multilayer perceptron takes: layers, rows of inputs that are mostly rows of a table, the name of its products."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
Layers = Sequence[tuple[Array, Array]]  # (kernel [in, out], bias [out])
Products = Literal["bfloat16", "tf32"]


class Gathered(NamedTuple):
    """Inputs `[B, F + V]`: row `row[b]` of a table `[T, F]`, then `values[b]`.

    row `[B]` integers; one outside [0, T) counts as the nearest inside. values `[B, V]`, or None for V = 0.
    """

    table: Array
    row: Array
    values: Array | None

    def formed(self) -> Array:
        """The inputs as one array."""
        chosen = self.table[inside(self.row, self.table.shape[0])]
        return chosen if self.values is None else jnp.concatenate([chosen, self.values], axis=1)


def inside(row: Array, length: int) -> Array:
    """Row numbers of any integer dtype, clipped into a table of that length, which a narrow dtype need not hold."""
    if row.dtype.itemsize < 4:
        row = row.astype(jnp.int32)
    return jnp.clip(row, 0, length - 1)


def check(layers: Layers, inputs: Array | Gathered, negative_slope: float, products: Products) -> int:
    """The number of rows; raises a ValueError that names the argument where shapes do not fit each other."""
    if products not in ("bfloat16", "tf32"):
        raise ValueError(f"products = {products!r} is unknown; choose 'bfloat16' or 'tf32'")
    if not isinstance(negative_slope, int | float) or not 0 <= negative_slope <= 1:
        raise ValueError(f"negative_slope = {negative_slope!r}; wanted a Python number in [0, 1]")
    if not layers:
        raise ValueError("layers is empty; wanted (kernel [in, out], bias [out]) of one layer or more")
    batch, width = _input_shape(inputs)
    for i, (kernel, bias) in enumerate(layers):
        if jnp.ndim(kernel) != 2 or kernel.shape[0] != width:
            before = "the inputs' width" if i == 0 else f"the width of layers[{i - 1}]"
            raise ValueError(f"layers[{i}] has a kernel of shape {jnp.shape(kernel)}; wanted [{width}, out], {before}")
        width = kernel.shape[1]
        if jnp.shape(bias) != (width,):
            raise ValueError(f"layers[{i}] has a bias of shape {jnp.shape(bias)}; wanted ({width},), as its kernel")
    return batch


def obstacle(layers: Layers, inputs: Array | Gathered, widest: int) -> str | None:
    """Why kernels with layers of at most that width cannot take these arrays, or None."""
    for i, (kernel, _) in enumerate(layers):
        if max(kernel.shape) > widest:
            return f"layers[{i}] is {kernel.shape[0]} x {kernel.shape[1]}, wider than {widest}"
        if not kernel.size:
            return f"layers[{i}] is {kernel.shape[0]} x {kernel.shape[1]}, empty"
    arrays = [inputs.table, inputs.values] if isinstance(inputs, Gathered) else [inputs]
    for array in (*arrays, *(x for layer in layers for x in layer)):
        if array is not None and array.dtype not in (jnp.float32, jnp.bfloat16):
            return f"an array has dtype {array.dtype}, not float32 or bfloat16"
    return None


def _input_shape(inputs: Array | Gathered) -> tuple[int, int]:
    if not isinstance(inputs, Gathered):
        if jnp.ndim(inputs) != 2 or inputs.shape[0] < 1:
            raise ValueError(f"inputs have shape {jnp.shape(inputs)}; wanted [B, K] with B at least 1")
        return inputs.shape[0], inputs.shape[1]
    table, row, values = inputs
    if jnp.ndim(table) != 2 or table.shape[0] < 1:
        raise ValueError(f"inputs.table has shape {jnp.shape(table)}; wanted [T, F] with T at least 1")
    if jnp.ndim(row) != 1 or row.shape[0] < 1 or not jnp.issubdtype(row.dtype, jnp.integer):
        raise ValueError(f"inputs.row is {row.dtype}{list(jnp.shape(row))}; wanted integers [B], B at least 1")
    batch, width = row.shape[0], table.shape[1]
    if values is None:
        return batch, width
    if jnp.ndim(values) != 2 or values.shape[0] != batch:
        raise ValueError(
            f"inputs.values has shape {jnp.shape(values)}; wanted [{batch}, V], one for each of inputs.row"
        )
    return batch, width + values.shape[1]
