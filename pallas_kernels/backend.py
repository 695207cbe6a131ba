"""Where a kernel runs: compiled for a GPU, interpreted, or as plain XLA. The one file that knows Pallas' Triton back end.

Kernels are written for Pallas' Triton back end, named explicitly at every launch because the default has changed
between JAX releases. Its deprecation notice (JAX 0.11 and later) is silenced here; where a later JAX lacks the back
end, every request falls back to XLA with one warning. Everything else about a kernel lives in that kernel's file.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, NoReturn, get_args

import jax
from jax.experimental import pallas as pl
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

try:
    from jax.experimental.pallas import triton as plgpu
except ImportError:  # a later JAX
    plgpu = None  # type: ignore[assignment]

Array = jax.Array
Backend = Literal["auto", "pallas", "interpret", "xla"]
Resolved = Literal["pallas", "interpret", "xla"]

warnings.filterwarnings("ignore", message="The Pallas Triton backend is deprecated", category=DeprecationWarning)

_MINIMUM_CAPABILITY = 8.0  # Triton's oldest GPU generation


def resolve(backend: Backend, *, faster: bool, obstacle: str | None = None) -> Resolved:
    """The way a call runs, decided while tracing.

    Args:
      backend: `"auto"`, `"pallas"`, `"interpret"` or `"xla"`.
      faster: whether the compiled kernel was measured faster than XLA at the call's shapes; decides `"auto"` on a GPU.
      obstacle: why the kernel cannot take the call's arrays, or None.

    Raises:
      ValueError: an unknown backend, or `"pallas"` where no NVIDIA GPU is the default device, or a kernel
        asked for by name that cannot take the arrays.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend = {backend!r} is unknown; choose one of {', '.join(map(repr, get_args(Backend)))}")
    if backend == "xla" or (backend == "auto" and (obstacle or not faster or not _has_gpu())):
        return "xla"
    if obstacle:
        raise ValueError(f"backend = {backend!r}: {obstacle}, which the kernels are not built for; use backend='xla'")
    if plgpu is None:
        _warn_once()
        return "xla"
    if backend == "interpret":
        return "interpret"
    if not _has_gpu():
        raise ValueError(
            "backend = 'pallas' compiles the kernel for an NVIDIA GPU of compute capability 8.0 or newer, and the "
            f"default device is {jax.default_backend()!r}; use backend='interpret' to run the same kernel slowly "
            "anywhere, or backend='auto'"
        )
    return "pallas"


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        f"JAX {jax.__version__} has no Pallas Triton back end: pallas_kernels run as plain XLA; "
        "install jax<0.13 for the kernels",
        stacklevel=4,
    )


def _has_gpu() -> bool:
    return capability() >= _MINIMUM_CAPABILITY


def capability() -> float:
    """Compute capability of the default device, 9.0 for an H200; 0 where it is no NVIDIA GPU."""
    if device().platform not in ("gpu", "cuda"):
        return 0.0
    try:
        return float(getattr(device(), "compute_capability", "none"))  # "9.0" on CUDA, "gfx942" on ROCm
    except ValueError:
        return 0.0


def device() -> Any:
    """The default device of this process: what a kernel is compiled and its tiles are chosen for."""
    chosen = getattr(jax.config, "jax_default_device")  # noqa: B009 (not in the type stubs)
    if isinstance(chosen, str):  # the config also takes a platform's name
        chosen = jax.local_devices(backend=chosen)[0]
    return chosen or jax.local_devices()[0]


def launch(
    kernel: Callable[..., None],
    out_shapes: Any,
    *,
    grid: tuple[int, ...],
    name: str,
    warps: int,
    interpret: bool,
    stages: int = 1,
) -> Callable[..., Any]:
    """`pl.pallas_call` on whole arrays: the kernel indexes its refs itself. Call the result with the inputs.

    Inputs and out_shapes are tuples of pytrees; the kernel gets the same trees, of refs, and None where they have None.
    With several stages the compiler fetches what a loop multiplies that many rounds ahead.
    """
    return pl.pallas_call(
        kernel,
        out_shape=out_shapes,
        grid=grid,
        interpret=interpret,
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
        name=name,
    )


def with_copies(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(copies, *args)` as a function of args alone; copies: how many of them a vmap around the call runs at once.

    For choices that depend on how much there is for a chip to do. A second vmap around the first counts nothing more.
    """
    alone = jax.custom_batching.custom_vmap(functools.partial(function, 1))

    @alone.def_vmap
    def together(axis_size: int, in_batched: Any, *args: Any) -> Any:
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, tuple(in_batched))
        out = jax.vmap(functools.partial(function, axis_size), axes)(*args)
        return out, jax.tree.map(lambda _: True, out)

    return alone


def load(ref: Any, mask: Array | None = None, other: float | None = None) -> Array:
    """A masked load; lanes outside the mask read `other` and touch no memory."""
    return plgpu.load(ref, mask=mask, other=other)


def store(ref: Any, value: Array, mask: Array | None = None) -> None:
    """A masked store in the ref's own dtype."""
    plgpu.store(ref, value.astype(ref.dtype), mask=mask)


def dot(x: Array, y: Array, *, trans_a: bool = False, trans_b: bool = False) -> Array:
    """`x @ y` (with `x.T`, `y.T` on request) on the tensor cores, summed in float32. bfloat16 operands multiply exactly."""
    return plgpu.dot(x, y, trans_a=trans_a, trans_b=trans_b)


# What a kernel cannot do is said in our words: a kernel has a first derivative in reverse mode and no other. Reverse
# mode only transposes `_reverse_only`; forward mode has to evaluate it. A second derivative differentiates the launch.

_FORWARD = (
    "jvp, linearize and other forward-mode derivatives of a pallas_kernels function exist only with backend='xla'; "
    "backend 'pallas' and 'interpret' have the first reverse-mode derivative (jax.grad, jax.vjp)"
)
_NEVER = "this pallas_kernels function has derivatives only with backend='xla'"
_SECOND = (
    "second derivatives of a pallas_kernels function exist only with backend='xla'; "
    "backend 'pallas' and 'interpret' have the first reverse-mode derivative (jax.grad, jax.vjp)"
)


def _refuse_forward(*_: Any, **__: Any) -> NoReturn:
    raise ValueError(_FORWARD)


_reverse_only = Primitive("pallas_kernels_reverse_only")
_reverse_only.def_impl(_refuse_forward)
_reverse_only.def_abstract_eval(lambda x: x)
ad.deflinear2(_reverse_only, lambda cotangent, _: [cotangent])
batching.defvectorized(_reverse_only)
mlir.register_lowering(_reverse_only, _refuse_forward)


@jax.custom_jvp
def _identity(x: Array) -> Array:
    return x


@_identity.defjvp
def _identity_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return primals[0], _reverse_only.bind(tangents[0])


def reverse_mode_only(tree: Any) -> Any:
    """The tree unchanged; pushing a tangent through it forwards is an error that names `backend="xla"`."""
    return jax.tree.map(_identity, tree)


def first_order_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function unchanged; differentiating it is an error that names `backend="xla"`. For rules of a custom_vjp."""
    return _refusing(function, _SECOND)


def not_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function unchanged; differentiating it is an error that names `backend="xla"`."""
    return _refusing(function, _NEVER)


def _refusing(function: Callable[..., Any], message: str) -> Callable[..., Any]:
    guarded = jax.custom_jvp(function)

    @guarded.defjvp
    def refuse(primals: Any, tangents: Any) -> NoReturn:
        del primals, tangents
        raise ValueError(message)

    return lambda *args: guarded(*args)
