"""Every kernel lowers for CUDA on a machine without a GPU: to Triton's IR, and on Hopper some to Mosaic's."""

from __future__ import annotations

import os
import subprocess
import sys


def test_every_kernel_lowers_for_cuda():
    command = [sys.executable, "-m", "tests.pallas_kernels.lower_for_cuda"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    lowered = [line for line in run.stdout.splitlines() if line.startswith("lowered ")]
    assert len(lowered) == 66, run.stdout
    launches = dict(line.removeprefix("lowered ").split(": ") for line in lowered)
    assert launches["td_loss A=45 B=70000 H=128"] == "3 launches"  # prepare, the pass over the batch, finish
    assert launches["mlp critic bfloat16 B=128000 gradients"] == "16 launches"  # 5 forward, 5 backward, 6 weights
    assert launches["mlp critic bfloat16 B=128000 on Hopper"] == "0 launches and 1 of Hopper's"
    # 5 forward, 4 backward and the first one's own, 4 weights; the output's two are too narrow
    hoppers = "2 launches and 14 of Hopper's"
    assert launches["mlp critic bfloat16 B=128000 gradients on Hopper"] == hoppers
    assert launches["td_loss with targets"] == "3 launches"
    rollouts = {name: count for name, count in launches.items() if name.startswith("rollout")}
    assert len(rollouts) == 25
    assert set(rollouts.values()) == {"1 launches"}  # all steps in one
