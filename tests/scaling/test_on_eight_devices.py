"""Runs the tests in eight/ in a process that simulates eight devices on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scaling.conftest import DEVICES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "which", ["not slow", pytest.param("slow", marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_on_eight_devices(which):
    flags = f"{os.environ['XLA_FLAGS']} {DEVICES}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, "tests/scaling/eight"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # not a worker of xdist
    environment = {**own, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
