"""A caller's `Environment` as Triton compiles it rightly. Knows nothing of networks, choices or launches."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal
from jax.extend.core.primitives import select_n_p

from pallas_kernels.rollout_scan import Environment

# primitives that do no more than call what they hold
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def strongly_typed(environment: Environment) -> Environment:
    """The same environment, in which nothing is chosen between two constants that have no type of their own.

    `jnp.where(x > 0, 1.0, -1.0)` of a scalar is such a choice. Pallas gives both constants the condition's type, bool, and
    the choice between True and True is 1.0 on a GPU, or does not compile.
    """
    return Environment(*[_strongly_typed(function) for function in environment])


def _strongly_typed(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        outs = _evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outs)

    return run


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(x: Any) -> Any:
        return x.val if isinstance(x, Literal) else values[x]

    def typed(x: Any) -> Any:
        return lax.convert_element_type(read(x), x.aval.dtype) if x.aval.weak_type else read(x)

    def result(x: Any) -> Any:
        """A Python number stays one, which takes the type of what it meets."""
        is_number = isinstance(x, Literal) and cast(Any, x.aval).weak_type
        return np.asarray(read(x)).item() if is_number else read(x)

    for equation in jaxpr.eqns:
        primitive, params = equation.primitive, equation.params
        if primitive.name in _CALLS:
            inner = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
            outs = _evaluate(inner.jaxpr, inner.consts, list(map(read, equation.invars)))
        else:
            inputs = map(typed if primitive is select_n_p else read, equation.invars)
            outs = primitive.bind(*inputs, **{name: _inside(value) for name, value in params.items()})
            outs = outs if primitive.multiple_results else [outs]
        values.update(zip(equation.outvars, outs, strict=True))
    return list(map(result, jaxpr.outvars))


def _inside(param: Any) -> Any:
    """A parameter of a primitive; loops and conditions hold the functions that they run, alone or in a tuple."""
    if type(param) is tuple:
        return tuple(map(_inside, param))
    if not isinstance(param, ClosedJaxpr):
        return param
    return jax.make_jaxpr(lambda *args: _evaluate(param.jaxpr, param.consts, args))(*cast(Any, param.in_avals))
