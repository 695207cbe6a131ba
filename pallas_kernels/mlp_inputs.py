"""What a multilayer perceptron takes: rows of inputs that are mostly rows of a table, and the name of its products."""

from typing import Literal, NamedTuple

import jax

Array = jax.Array
Products = Literal["bfloat16", "tf32"]


class Gathered(NamedTuple):
    """Inputs `[B, F + V]`: row `row[b]` of a table `[T, F]`, then `values[b]`.

    row `[B]` integers; one outside [0, T) counts as the nearest inside. values `[B, V]`, or None for V = 0.
    """

    table: Array
    row: Array
    values: Array | None
