"""What reproduces a run: versions, commit, device, command line, and a fingerprint of the market's prices."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_trade import hosts
from jaxrl_trade.market import Market

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pandas", "TA-Lib")


def provenance(market: Market, key: jax.Array, devices: int) -> dict[str, Any]:
    """Facts about this process and what its run, on so many devices, is a function of, as JSON values."""
    return {
        **surroundings(devices),
        "x64": jax.numpy.result_type(float) == np.float64,
        "key": key_words(key),
        "market": {
            "instruments": list(market.instruments),
            "bars": [int(last - first + 1) for first, last in np.asarray(market.segments)],
            "sha256": market_digest(market),
        },
    }


def surroundings(devices: int) -> dict[str, Any]:
    """Facts about this process and the devices that its run takes, as JSON values."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "commit": git_commit(),
        "versions": versions(),
        "device": device(devices),
        "devices": devices,
    }


def key_words(key: jax.Array) -> list[int]:
    """The numbers behind a typed key."""
    return np.asarray(jax.random.key_data(key)).ravel().tolist()


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what the numbers depend on."""
    import jaxrl_trade

    found = {"python": platform.python_version(), "jaxrl_trade": jaxrl_trade.__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def device(count: int) -> str:
    """The devices that a run takes, in words."""
    first = jax.devices()[0]
    kind, backend = first.device_kind, first.platform
    of_processes = f" in {hosts.count()} processes" if hosts.count() > 1 else ""
    return f"{count} x {kind}" + (f" ({backend})" if backend.lower() != kind.lower() else "") + of_processes


def is_cpu_only() -> bool:
    """Whether JAX found no accelerator."""
    return all(d.platform == "cpu" for d in jax.devices())


def git_commit() -> str | None:
    """Commit of the checkout this package was imported from, `-dirty` if it has changes; None for an installed package."""
    folder = Path(__file__).parent
    try:
        if _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
            return None  # the repository around is somebody else's
        return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.TimeoutExpired):
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def market_digest(market: Market) -> str:
    """Hash of the prices and the split, and of features that are not this package's own, which follow from the prices."""
    from jaxrl_trade.bars import FEATURE_NAMES

    digest = hashlib.sha256()
    own = market.feature_names == FEATURE_NAMES
    for name in ("open", "high", "low", "close", "segments", *(() if own else ("features",))):
        digest.update(np.ascontiguousarray(getattr(market, name)).tobytes())
    return digest.hexdigest()
