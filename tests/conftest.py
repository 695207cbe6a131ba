"""Settings of the whole suite. They must stand before JAX is imported, so nothing here imports it at the top."""

from __future__ import annotations

import os
from importlib.metadata import version

import pytest

# Most of the suite's time is compilation of programs that then run for milliseconds. JAX 0.11 no longer knows the second
# flag, and an unknown one ends the process.
is_old = version("jax").startswith("0.10.")
quick = " --xla_cpu_use_fusion_emitters=false" if is_old else ""
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0" + quick)
# On a GPU, JAX's default for float32 products is TF32, off by 1e-3; references here are float64.
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
# Commands run as processes of their own must neither use nor fill the cache of whoever runs the tests.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")
if not is_old:  # the simulator of a GPU blocks threads of XLA's pool: with few of them it waits for itself
    os.environ.setdefault("NPROC", "64")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` where JAX sees no GPU."""
    if not any("gpu" in item.keywords for item in items):
        return
    import jax

    if jax.default_backend() != "gpu":
        skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)
