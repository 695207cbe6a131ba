"""The two output layers of a dueling network as arrays, and the checks every function makes of its arguments."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


class Heads(NamedTuple):
    """Value head `w_v [H]`, `b_v []` and advantage head `w_a [H, A]`, `b_a [A]`."""

    w_v: Array
    b_v: Array
    w_a: Array
    b_a: Array


class DuelingGradients(NamedTuple):
    """Gradients of a scalar in the shapes of `Heads` and of the hidden rows `[B, H]`."""

    w_v: Array
    b_v: Array
    w_a: Array
    b_a: Array
    h_v: Array
    h_a: Array


def as_heads(params: Any, name: str) -> Heads:
    """Heads from a mapping or any object with attributes `w_v`, `b_v`, `w_a`, `b_a`; `b_v` may also be `[1]`.

    Raises:
      ValueError: an entry is missing or the shapes do not fit each other.
    """
    found = []
    for field in Heads._fields:
        try:
            value = params[field] if isinstance(params, Mapping) else getattr(params, field)
        except (KeyError, AttributeError):
            raise ValueError(f"{name} has no {field!r}; give a dict or an object with w_v, b_v, w_a, b_a") from None
        found.append(jnp.asarray(value))
    w_v, b_v, w_a, b_a = found
    if w_a.ndim != 2:
        raise ValueError(f"{name}.w_a has shape {w_a.shape}; wanted [H, A], the transpose of a PyTorch layer's weight")
    hidden, actions = w_a.shape
    check_shape(f"{name}.w_v", w_v, (hidden,), "[H] with H of w_a")
    check_shape(f"{name}.b_a", b_a, (actions,), "[A] with A of w_a")
    if b_v.shape not in ((), (1,)):
        raise ValueError(f"{name}.b_v has shape {b_v.shape}; wanted one number, shape () or (1,)")
    return Heads(w_v, b_v.reshape(()), w_a, b_a)


def check_shape(name: str, array: Array | None, wanted: tuple[int, ...], meaning: str) -> None:
    """Raise a ValueError that names the argument unless its shape is the wanted one."""
    shape = None if array is None else jnp.shape(array)
    if shape != wanted:
        raise ValueError(f"{name} has shape {shape}; wanted {wanted}, {meaning}")


def check_hidden(name: str, hidden: Array, width: int) -> None:
    """Raise a ValueError unless the array is `[B, H]` with B >= 1 and the heads' H."""
    shape = jnp.shape(hidden)
    if len(shape) != 2 or shape[0] < 1 or shape[1] != width:
        raise ValueError(f"{name} has shape {shape}; wanted [B, H] with B at least 1 and H = {width}, the heads' width")


def check_actions(actions: Array, batch: int, count: int) -> None:
    """Raise a ValueError unless the actions are integers `[B]` and, where their values are known, in [0, A).

    Inside jit the values are not known: there an index outside the range counts as the nearest one inside it.
    """
    check_shape("actions", actions, (batch,), "[B]")
    if not jnp.issubdtype(actions.dtype, jnp.integer):
        raise ValueError(f"actions have dtype {actions.dtype}; wanted integers in [0, {count})")
    if isinstance(actions, jax.core.Tracer):
        return
    values = np.asarray(actions)
    outside = np.flatnonzero((values < 0) | (values >= count))
    if outside.size:
        first = outside[0]
        raise ValueError(
            f"actions[{first}] = {values[first]} is outside [0, {count}), the actions that there are; "
            f"{outside.size} of {values.size} are"
        )


def check_delta(delta: float) -> None:
    """Raise a ValueError unless delta is a positive Python number (it is static: compiled into the kernel)."""
    if not isinstance(delta, int | float) or not 0 < delta < float("inf"):  # infinity times no linear part is NaN
        wanted = "a positive and finite Python number, the half-width of the quadratic part"
        raise ValueError(f"delta = {delta!r}; wanted {wanted}")


def obstacle(heads: Heads, hidden: Sequence[Array | None]) -> str | None:
    """Why the kernels cannot take these arrays, or None: they are built for float32 and bfloat16, A <= 64, H <= 256."""
    width, actions = heads.w_a.shape
    if width % 32 or width > 256:
        return f"H = {width} is not one of 32, 64, ..., 256"
    if not 1 <= actions <= 64:
        return f"A = {actions} is not one of 1, ..., 64"
    for array in (*heads, *hidden):
        if array is not None and array.dtype not in (jnp.float32, jnp.bfloat16):
            return f"an array has dtype {array.dtype}, not float32 or bfloat16"
    return None
