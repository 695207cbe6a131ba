"""The runs of a sweep, group by group: each trains side by side in the one compiled program and is then judged on validation bars.

What a folder holds already is not done again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_trade.config import AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.scale.modes import seeds
from jaxrl_trade.scale.team import SHARE, Team
from jaxrl_trade.train import sweep_folder as kept
from jaxrl_trade.train.agent import agent_of
from jaxrl_trade.train.checkpoints import Checkpoints, DamagedCheckpointError
from jaxrl_trade.train.grid import Setting, stacked
from jaxrl_trade.train.logs import Row
from jaxrl_trade.train.progress import Progress
from jaxrl_trade.train.provenance import device, is_cpu_only
from jaxrl_trade.train.result import StoppedError
from jaxrl_trade.train.signals import StopRequest, stop_on_signals
from jaxrl_trade.train.validation import evaluator

Array = jax.Array
LOOKS = 100  # of the host while a group trains: how long Ctrl-C waits
SAVE_SECONDS = 60.0  # of training between checkpoints
FIGURES = ("total_return", "sharpe", "trades")  # of a run, on validation bars


@dataclasses.dataclass(frozen=True)
class Found:
    """Of every run, in order.

    Attributes:
      rows: see `SweepResult.runs`.
      params: weights after the last update, on the host.
    """

    rows: list[dict[str, Any]]
    params: list[Any]


def group_size(runs: int, at_once: int | None, devices: int) -> int:
    """Runs of a group, the same of all groups: as few as so many groups need, and divisible by the devices.

    Raises:
      ValueError: at_once is below 1, or the devices do not divide it.
    """
    if at_once is None:
        at_once = -(-runs // devices) * devices
    if not isinstance(at_once, int) or isinstance(at_once, bool) or at_once < 1 or at_once % devices:
        shared = f" and a multiple of {devices}, the devices" if devices > 1 else ""
        raise ValueError(f"at_once = {at_once!r} must be a whole number of runs, at least 1{shared}")
    groups = -(-runs // at_once)
    return -(-runs // (groups * devices)) * devices


class Groups:
    """Every setting with every key, those of a setting in a row, cut into groups of one size.

    Args:
      market, validation, config, keys: as for `sweep`.
      settings: of the grid.
      size: runs of a group; the last group is filled up with repetitions of its last run.
      devices: how many.
      folder: of the sweep, or None.
    Raises:
      ValueError: as `scale.seeds`, or devices that do not divide a group.
    """

    def __init__(
        self,
        market: Market,
        validation: Market,
        config: AgentConfig,
        settings: Sequence[Setting],
        keys: Array,
        size: int,
        devices: int,
        folder: Path | None,
    ) -> None:
        if size % devices:
            raise ValueError(
                f"the sweep trains {size} runs at once, which {devices} devices do not divide; take others"
            )
        self._config, self._settings, self._keys, self._size = config, settings, keys, size
        self._devices, self._folder, self._updates = devices, folder, config.updates
        self._runs = [(setting, seed) for setting in range(len(settings)) for seed in range(len(keys))]
        self._count = -(-len(self._runs) // size)
        self._program, self._team = seeds(config, market, devices), Team.of("shard_map", devices)
        self._evaluate = evaluator(validation, config)
        # a divisor: another number of updates would be another program
        self._step = max(n for n in range(1, max(1, self._updates // LOOKS) + 1) if self._updates % n == 0)
        self._is_compiled = False

    def run(self, quiet: bool) -> Found:
        """Trains and judges what is left to do.

        Raises:
          StoppedError: Ctrl-C or SIGTERM.
          OSError: the disk is full.
        """
        rows: list[dict[str, Any]] = []
        params: list[Any] = []
        steps = self._config.total_experiences * self._size
        with (
            Progress(self._count * self._updates, self._done(), steps, quiet=quiet) as progress,
            stop_on_signals() as stop,
        ):
            self._introduce(progress)
            for group in range(self._count):
                weights, diverged = self._weights(group, progress, stop)
                found = self._judge(group, weights, diverged, progress, stop)
                rows += found
                params += weights[: len(found)]
        return Found(rows, params)

    def _weights(self, group: int, progress: Progress, stop: StopRequest) -> tuple[list[Any], np.ndarray]:
        """The weights `[G]` of a group's runs after the last update, and the update in which each diverged, or -1."""
        members = self._members(group)
        members += members[-1:] * (self._size - len(members))
        keys = self._keys[jnp.array([seed for _, seed in members])]
        hypers = stacked(self._config, [self._settings[setting] for setting, _ in members])
        checkpoints = None if self._folder is None else kept.checkpoints_of(self._folder, group)
        done, tree, diverged = self._restored(checkpoints, jax.eval_shape(self._program.init, keys), progress)
        if done < self._updates:
            state = self._program.init(keys) if tree is None else self._team.place(tree, SHARE)
            tree, diverged = self._trained(state, hypers, done, diverged, checkpoints, progress, stop)
        host = jax.device_get(tree)
        return [jax.tree.map(lambda x, i=i: x[i], host) for i in range(self._size)], diverged

    def _restored(
        self, checkpoints: Checkpoints | None, shapes: Any, progress: Progress
    ) -> tuple[int, Any, np.ndarray]:
        """Updates done, the runs' state (after the last one their weights), and where they diverged; of the newest checkpoint."""
        if checkpoints is None:
            return 0, None, np.full(self._size, -1, np.int64)
        for done in reversed(checkpoints.updates()):
            try:
                tree, facts = checkpoints.restore(done, shapes.params if done == self._updates else shapes)
            except DamagedCheckpointError as error:
                progress.say(f"{error}; going on from the one before it, or from the beginning of these runs")
                continue
            return done, tree, np.array(facts["diverged"], np.int64)
        return 0, None, np.full(self._size, -1, np.int64)

    def _trained(
        self,
        state: Any,
        hypers: Any,
        done: int,
        diverged: np.ndarray,
        checkpoints: Checkpoints | None,
        progress: Progress,
        stop: StopRequest,
    ) -> tuple[Any, np.ndarray]:
        """The weights after the last update, which are saved, and where the runs diverged."""
        saved = time.monotonic()
        while done < self._updates:
            began = time.perf_counter()
            state, metrics = self._program.advance(state, hypers, self._step)
            metrics = jax.device_get(metrics)  # [G, updates]
            is_bad = metrics.nonfinite >= 0
            diverged = np.where((diverged < 0) & is_bad.any(1), done + 1 + is_bad.argmax(1), diverged)
            done += self._step
            rows = _means(metrics, diverged < 0, self._step)
            progress.advance(rows, time.perf_counter() - began, is_first=not self._is_compiled)
            self._is_compiled = True
            is_due = bool(stop) or time.monotonic() - saved > SAVE_SECONDS or done == self._updates
            if checkpoints is not None and is_due:
                tree = state.params if done == self._updates else state
                checkpoints.save(done, tree, {"diverged": diverged.tolist()})
                checkpoints.prune({done})
                saved = time.monotonic()
            if done < self._updates:
                self._check(stop)
        return state.params, diverged

    def _judge(
        self, group: int, weights: Sequence[Any], diverged: np.ndarray, progress: Progress, stop: StopRequest
    ) -> list[dict[str, Any]]:
        """The rows of a group's runs."""
        rows = None if self._folder is None else kept.read_validation(self._folder, group)
        if rows is not None and [(row.get("setting"), row.get("seed")) for row in rows] == self._members(group):
            return rows
        progress.say(f"backtesting {len(self._members(group))} runs on validation bars")
        rows, agent = [], agent_of(self._config)
        for (setting, seed), params, update in zip(self._members(group), weights, diverged.tolist(), strict=False):
            self._check(stop)
            figures = {} if update >= 0 else self._evaluate(agent.policy(params, self._config))
            own = {name: figures.get(name) for name in FIGURES}
            rows.append({"setting": setting, "seed": seed, "diverged": update if update >= 0 else None, **own})
        if self._folder is not None:
            kept.save_validation(self._folder, group, rows)
        return rows

    def _members(self, group: int) -> list[tuple[int, int]]:
        """(setting, seed) of a group's runs, without the repetitions."""
        return self._runs[group * self._size : (group + 1) * self._size]

    def _done(self) -> int:
        """Updates that the checkpoints of all groups hold."""
        if self._folder is None:
            return 0
        return sum(max(kept.checkpoints_of(self._folder, i).updates(), default=0) for i in range(self._count))

    def _check(self, stop: StopRequest) -> None:
        if stop.signal is not None:
            raise StoppedError(stop.signal, self._folder)

    def _introduce(self, progress: Progress) -> None:
        progress.say(f"device: {device(self._devices)}")
        if is_cpu_only():
            progress.say(
                "warning: only a CPU was found; a GPU trains many times faster (pip install 'jaxrl-trade[cuda12]')"
            )
        total = len(self._runs)
        progress.say(
            f"{len(self._settings)} settings x {len(self._keys)} seeds = {total} runs, {min(self._size, total)} at once"
        )
        if done := self._done():
            progress.say(f"resuming after update {done} of {self._count * self._updates}")


def _means(metrics: Any, is_sound: np.ndarray, updates: int) -> list[Row]:
    """A row for each update: the means over the runs that have not diverged."""
    names = [field.name for field in dataclasses.fields(metrics)]
    sound = {name: getattr(metrics, name)[is_sound] for name in names}
    return [
        {name: float(values[:, i].mean()) if len(values) else np.nan for name, values in sound.items()}
        for i in range(updates)
    ]
