"""The flags of training on several devices or hosts, the same for a new run and for one that goes on."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Annotated, Literal

import tyro

from jaxrl_trade import hosts


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalingFlags:
    """Several devices, several hosts: one run, its episodes divided (docs/scaling.md)."""

    devices: Annotated[
        int | Literal["all"] | None,
        tyro.conf.arg(metavar="N|all", help_behavior_hint="(default: 1, or as the run had; with --coordinator all)"),
    ] = None
    """Devices of this host to divide the episodes over."""
    coordinator: Annotated[
        str | None, tyro.conf.arg(metavar="HOST:PORT|auto", help_behavior_hint="(default: this process alone)")
    ] = None
    """Where process 0 listens for the others; auto: JAX asks the cluster (SLURM, Open MPI, ...) for all three."""
    num_processes: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(with HOST:PORT)")] = None
    """Processes that train together, one a host."""
    process_id: Annotated[int | None, tyro.conf.arg(metavar="I", help_behavior_hint="(with HOST:PORT)")] = None
    """Which of them this is, from 0; process 0 prints and writes the report."""

    def join(self) -> None:
        """Makes this process one of several, if it was asked for; before anything asks JAX for a device.

        Raises:
          ValueError, OSError: as `hosts.join`.
          ValueError: a process of several without a coordinator.
        """
        if self.coordinator is not None:
            hosts.join(self.coordinator, self.num_processes, self.process_id)
            return
        for flag, value in (("--num-processes", self.num_processes), ("--process-id", self.process_id)):
            if value is not None:
                raise ValueError(
                    f"{flag} {value} says which of several processes this is, but not where they meet; add --coordinator "
                    "HOST:PORT of process 0"
                )
        if os.environ.get("SLURM_PROCID") == "0" and (tasks := os.environ.get("SLURM_STEP_NUM_TASKS", "1")) != "1":
            print(
                f"note: SLURM runs this command {tasks} times, each a run of its own; --coordinator auto makes them one",
                file=sys.stderr,
            )
