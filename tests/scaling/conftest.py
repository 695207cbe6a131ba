"""The tests in eight/ need eight devices, so a process that was started with them; `test_on_eight_devices` starts it."""

from __future__ import annotations

import os

DEVICES = "--xla_force_host_platform_device_count=8"

if DEVICES not in os.environ["XLA_FLAGS"]:
    collect_ignore_glob = ["eight/*"]
