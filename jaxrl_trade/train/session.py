"""One sitting of a run: its state on the device and what the host keeps beside it, from a beginning or from a checkpoint.

`train/loop.py` decides when to look, save and stop.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax

from jaxrl_trade import hosts
from jaxrl_trade.config import AgentConfig
from jaxrl_trade.market import Market
from jaxrl_trade.train import run as runs
from jaxrl_trade.train.agent import agent_of
from jaxrl_trade.train.checkpoints import Checkpoints, DamagedCheckpointError
from jaxrl_trade.train.choice import WEIGHTS, Choice, save_choice
from jaxrl_trade.train.config_json import differences
from jaxrl_trade.train.logs import Row
from jaxrl_trade.train.placement import MAX_CHUNK, Devices, Placement, check_devices
from jaxrl_trade.train.provenance import device, versions
from jaxrl_trade.train.validation import Chooser

Array = jax.Array
CHECKPOINTS_PER_RUN = 20
CHUNK_SECONDS = 1.0  # between two looks of the host: how stale the bar is, and how long Ctrl-C waits


@dataclasses.dataclass
class Session:
    """The loop's variables."""

    market: Market
    config: AgentConfig  # its `updates` are the schedules' length: those the run began with
    placement: Placement
    state: Any  # as the placement holds it
    chooser: Chooser
    folder: Path | None
    updates: int  # of the run in all
    checkpoint_every: int  # updates
    done: int = 0  # updates, an int of Python: environment steps outgrow int32 in minutes
    seconds: float = 0.0  # of training, earlier sessions included
    chunks: int = 0  # of this session
    pace: float | None = None  # seconds per update of the last chunk that held no compilation
    saved: int | None = None  # update of the last checkpoint
    notes: list[str] = dataclasses.field(default_factory=list)  # lines for people, before the first update

    def next_chunk(self) -> int:
        """Updates until the host looks again: about a second's, and none beyond a checkpoint or the end."""
        left = min(self.checkpoint_every - self.done % self.checkpoint_every, self.updates - self.done)
        affordable = 1 if self.pace is None else max(1, int(CHUNK_SECONDS / max(self.pace, 1e-9)))
        return min(left, affordable, MAX_CHUNK)

    def is_due(self) -> bool:
        """Whether this update is validated and saved."""
        return self.done % self.checkpoint_every == 0 or self.done == self.updates

    def advance(self, updates: int) -> tuple[list[Row], float]:
        """Runs some updates; their rows, and the seconds they took."""
        began = time.perf_counter()
        self.state, metrics = self.placement.advance(self.state, updates)
        took = time.perf_counter() - began
        rows = [
            {
                "update": self.done + i + 1,
                "env_steps": (self.done + i + 1) * self.config.total_experiences,
                "seconds": round(self.seconds + took * (i + 1) / updates, 3),
                **{f.name: getattr(metrics, f.name)[i].item() for f in dataclasses.fields(metrics)},
            }
            for i in range(updates)
        ]
        self.done, self.seconds, self.chunks = self.done + updates, self.seconds + took, self.chunks + 1
        if self.chunks > 1:
            self.pace = took / updates
        return rows, took

    @property
    def params(self) -> Any:
        """The weights, on one device of this process."""
        return self.placement.params(self.state)

    def last_checkpoint(self) -> Path | None:
        """Folder of the last checkpoint."""
        return None if self.folder is None or self.saved is None else _checkpoints(self.folder).path(self.saved)

    def save(self) -> None:
        """Writes a checkpoint and the chosen weights, unless this update has one; keeps the last two and the best."""
        if self.folder is None or self.saved == self.done:
            return
        self.placement.check(self.state)
        choice, params = self.chooser.choose(self.params, self.done)
        checkpoints = _checkpoints(self.folder)
        facts = {
            "update": self.done,
            "env_steps": self.done * self.config.total_experiences,
            "seconds": self.seconds,
            "choice": dataclasses.asdict(choice),
            "devices": self.placement.devices,
        }
        checkpoints.save(self.done, _kept(self.state, params), facts)
        with hosts.together():
            if hosts.is_first():
                save_choice(self.folder, params, choice)
                earlier = [update for update in checkpoints.updates() if update <= self.done]  # later: unreadable
                checkpoints.prune({*earlier[-2:], choice.update})
        self.saved = self.done


def begin(
    market: Market,
    config: AgentConfig,
    key: Array,
    validation: Market | None,
    folder: Path | None,
    checkpoint_every: int | None,
    devices: int,
    facts: dict[str, Any],
) -> Session:
    """A session at the start of a run, whose folder is written if there is one.

    Raises:
      OSError: the folder holds a run already, or cannot be written.
      ValueError: sizes that the number of devices does not divide.
    """
    every = checkpoint_every or _default_interval(config.updates)
    placement = Placement.of(config, market, devices)
    with hosts.together():
        if folder is not None and hosts.is_first():
            runs.create_run(folder, market, config, key, devices, {"checkpoint_every": every, **facts})
    with hosts.together():
        if folder is not None:
            runs.check_shared(folder)
    return _start(placement, market, key, validation, folder, config.updates, every)


def resume(
    market: Market,
    config: AgentConfig,
    key: Array,
    validation: Market | None,
    folder: Path,
    checkpoint_every: int | None,
    devices: Devices,
) -> Session:
    """A session at the newest checkpoint of a run that can be read, or at its start where none was written yet.

    Args:
      market, key, validation: as the run began.
      config: as the run began; its `updates` are how far the run shall go in all, while its schedules stay as they were.
      folder: of the run.
      checkpoint_every, devices: None is as before; of several processes, all their devices.
    Raises:
      OSError: the folder holds no run, or no checkpoint that can be read.
      ValueError: something else than the run's own, fewer updates than are done, fewer devices here than it had.
    """
    with hosts.together():
        runs.check_same_run(folder, market, config, key)
        plan, updates = runs.read_plan(folder), config.updates
        is_young = not _checkpoints(folder).updates() and not (folder / WEIGHTS).exists()
    taken = _devices_again(folder, plan, devices)
    every = checkpoint_every or plan.checkpoint_every or _default_interval(updates)
    config = dataclasses.replace(config, updates=plan.schedule)
    continued = _start if is_young else _restore
    session = continued(Placement.of(config, market, taken), market, key, validation, folder, updates, every)
    if is_young:
        session.notes.append("the run ended before its first checkpoint: it begins again")
    session.notes += _changes(plan, config, updates, taken)
    with hosts.together():  # what is written now, others have read before
        if session.done < updates and hosts.is_first():
            runs.record_resumption(folder, session.done, updates, every, taken)
    return session


def _devices_again(folder: Path, plan: runs.Plan, devices: Devices) -> int:
    """How many devices a run goes on with."""
    if devices is not None or hosts.count() > 1:
        return check_devices(devices)
    if plan.devices > jax.device_count():
        raise ValueError(
            f"{folder} was trained on {plan.devices} devices, here JAX sees {jax.device_count()}; say on how many it shall go on "
            f"(--devices {jax.device_count()}): with the same parameters and optimiser, but other minibatches"
        )
    return plan.devices


def _start(
    placement: Placement,
    market: Market,
    key: Array,
    validation: Market | None,
    folder: Path | None,
    updates: int,
    every: int,
) -> Session:
    config = placement.config
    state = placement.begin(key, market)
    return Session(market, config, placement, state, Chooser(validation, config), folder, updates, every)


def _restore(
    placement: Placement,
    market: Market,
    key: Array,
    validation: Market | None,
    folder: Path,
    updates: int,
    every: int,
) -> Session:
    checkpoints, config, notes = _checkpoints(folder), placement.config, []
    for done in reversed(checkpoints.updates()):
        try:
            with hosts.together():
                devices = checkpoints.facts(done).get("devices", 1)
                like = placement.like(key, market, devices)
                kept, facts = checkpoints.restore(done, _kept(like, like.params))
        except (DamagedCheckpointError, hosts.OtherProcessError) as error:
            notes.append(f"{error}; going on from the one before it")
            continue
        if done > updates:
            raise ValueError(
                f"updates = {updates}, but {folder} has done {done} already; give a larger total, or {done} to add none"
            )
        choice = Choice(**facts["choice"])
        with hosts.together():
            if hosts.is_first():  # a killed process may have left those of an earlier checkpoint
                save_choice(folder, kept["chosen"], choice)
        return Session(
            market,
            config,
            placement,
            placement.place(kept["state"], devices),
            Chooser(validation, config, choice, kept["chosen"]),
            folder,
            updates,
            every,
            done=done,
            seconds=facts["seconds"],
            saved=done,
            notes=notes,
        )
    found = notes[0].split(";")[0] if notes else "there is none"
    raise OSError(f"{folder} has no checkpoint to resume from ({found}); start a new run")


def _changes(plan: runs.Plan, config: AgentConfig, updates: int, devices: int) -> list[str]:
    """What is not as it was when the run was left, in lines for people."""
    changed = differences({"device": plan.device, **plan.versions}, {"device": device(devices), **versions()})
    lines = []
    if changed:
        lines.append(
            f"not as before: {'; '.join(changed)}; parameters and optimiser are the run's, the rounding of sums may differ"
        )
    if devices != plan.devices:
        lines.append(
            f"{devices} x {config.n_episodes // devices} episodes instead of {plan.devices} x "
            f"{config.n_episodes // plan.devices}: minibatches are drawn in another order"
        )
    if updates > plan.schedule and (text := agent_of(config).after_schedule(config)):
        lines.append(f"schedules keep the length the run began with, {plan.schedule} updates: {text} after that")
    return lines


def _default_interval(updates: int) -> int:
    return max(1, updates // CHECKPOINTS_PER_RUN)


def _checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder / runs.CHECKPOINTS)


def _kept(state: Any, chosen: Any) -> dict[str, Any]:
    """What a checkpoint holds: a run goes on from it alone, whatever became of the one that wrote the chosen weights."""
    return {"state": state, "chosen": chosen}
