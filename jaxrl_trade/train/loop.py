"""The host's side of training: chunks of updates on the device; between them logs, validation, checkpoints and manners.

The mathematics is the agent's `update_step` (`train/ppo.py`, `train/dqn.py`), a run's state is `train/session.py`; this loop only
decides how often the host looks at it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp

from jaxrl_trade import hosts
from jaxrl_trade.agents import Origin
from jaxrl_trade.config import AgentConfig, DQNConfig, PPOConfig
from jaxrl_trade.market import Market
from jaxrl_trade.scale.modes import share_of
from jaxrl_trade.train import run as runs
from jaxrl_trade.train import session as sessions
from jaxrl_trade.train.agent import agent_of
from jaxrl_trade.train.arguments import check_alike, check_config, check_key, check_market, check_network
from jaxrl_trade.train.config_json import config_to_dict
from jaxrl_trade.train.files import locked
from jaxrl_trade.train.logs import MetricsLog, Row
from jaxrl_trade.train.placement import Devices, check_devices
from jaxrl_trade.train.progress import Progress
from jaxrl_trade.train.provenance import device, is_cpu_only, key_words, market_digest, versions
from jaxrl_trade.train.result import NonFiniteError, TrainResult
from jaxrl_trade.train.run import load_policy
from jaxrl_trade.train.session import Session
from jaxrl_trade.train.signals import stop_on_signals

__all__ = ["NonFiniteError", "TrainResult", "load_policy", "train_agent", "train_dqn", "train_ppo"]

Array = jax.Array


class Options(TypedDict, total=False):
    """What `train_ppo` and `train_dqn` take by name."""

    folder: str | Path | None
    resume: bool
    checkpoint_every: int | None
    devices: Devices
    facts: dict[str, Any] | None
    quiet: bool


def train_ppo(
    market: Market, config: PPOConfig, key: Array, validation: Market | None = None, **options: Unpack[Options]
) -> TrainResult:
    """Trains PPO for `config.updates` updates, watched by a person.

    Ctrl-C and SIGTERM end it after the running chunk, with a checkpoint; the result's `stopped_by` says so, and
    `resume=True` goes on from it.

    A resumed run goes on as if it had never stopped: bit for bit on a CPU of the same versions and on as many devices. More
    `config.updates` than it began with make it longer; the length of its schedules is the run's and stays. On another number of
    devices it goes on with the same weights, optimiser, episodes and replay, and draws other minibatches. A checkpoint that
    cannot be read is left aside with a line, for the newest one that can.

    Args:
      market: the bars to train on, a split say.
      config: of the run.
      key: typed key; the run is a function of it, of the market and of the config.
      validation: bars to choose the policy on; the same ones to resume.
      folder: of the run's files (see `train/run.py`); None writes none. One process at a time.
      resume: go on from the last checkpoint in `folder` instead of beginning there.
      devices: of this host, over which the episodes are divided, or "all"; None is 1, or as before. Processes that
        `jax.distributed` has brought together train one run on all their devices, and None says that, too.
      checkpoint_every: updates between checkpoints and between validations; None is a twentieth of the run, or as before.
      facts: JSON values added to run.json.
      quiet: prints nothing.
    Raises:
      ValueError: an argument of another kind, a market without a valid start, sizes that the devices do not divide; settings,
        bars or a key that are not those of the run to resume, fewer updates than it has done.
      OSError: the folder holds a run already, or none to resume; another process is at it; the disk is full.
      NonFiniteError: a NaN or an infinity; what was saved before stays.
    """
    check_config(config, PPOConfig)
    return train_agent(market, config, key, validation, **options)


def train_dqn(
    market: Market, config: DQNConfig, key: Array, validation: Market | None = None, **options: Unpack[Options]
) -> TrainResult:
    """Trains DQN; arguments, result and errors are those of `train_ppo`.

    A checkpoint holds the replay too, so that a resumed run goes on with what it remembers.
    """
    check_config(config, DQNConfig)
    return train_agent(market, config, key, validation, **options)


def train_agent(
    market: Market,
    config: AgentConfig,
    key: Array,
    validation: Market | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    devices: Devices = None,
    facts: dict[str, Any] | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Trains PPO or DQN, as the config says; see `train_ppo`."""
    with hosts.together():
        _check_arguments(market, config, key, validation, folder, resume, checkpoint_every)
    if hosts.count() > 1:
        check_alike(
            {
                "config": config_to_dict(config),
                "market": market_digest(market),
                "validation": None if validation is None else market_digest(validation),
                "key": key_words(key),
                **{"resume": resume, "checkpoint_every": checkpoint_every, "devices": devices},
                **{"has a folder": folder is not None, "versions": versions()},
            }
        )
    count = None if resume else check_devices(devices)
    if count is not None:
        share_of(config, count)  # before there is a folder
    with contextlib.ExitStack() as stack:
        place = None if folder is None else _enter(stack, folder, resume)
        if count is None:
            assert place is not None
            session = sessions.resume(market, config, key, validation, place, checkpoint_every, devices)
        else:
            session = sessions.begin(market, config, key, validation, place, checkpoint_every, count, facts or {})
        return _train(session, quiet or not hosts.is_first())


def _enter(stack: contextlib.ExitStack, folder: str | Path, resume: bool) -> Path:
    """The folder of a run, which nobody else works in until the stack is left."""
    folder = Path(folder)
    with hosts.together():
        if hosts.is_first():
            if resume:
                runs.read_facts(folder)  # there is a run
            else:
                runs.make_folder(folder)
            stack.enter_context(locked(folder))
    return folder if hosts.count() == 1 else Path(hosts.from_first(lambda: str(folder.absolute())))


def _train(session: Session, quiet: bool) -> TrainResult:
    total, agent, stopped_by = session.updates, agent_of(session.config), None
    with (
        Progress(total, session.done, session.config.total_experiences, quiet=quiet) as progress,
        contextlib.ExitStack() as stack,
        stop_on_signals() as stop,
    ):
        with hosts.together():
            folder = session.folder if hosts.is_first() else None
            log = stack.enter_context(contextlib.closing(MetricsLog(folder, session.done, progress.say)))
        _introduce(progress, session)
        while session.done < total and stopped_by is None:
            rows, seconds = session.advance(hosts.from_first(session.next_chunk))
            bad = next((i for i, row in enumerate(rows) if row["nonfinite"] >= 0), None)
            if bad is not None:
                log.write([_public(row) for row in rows[: bad + 1]])
                raise NonFiniteError(
                    rows[bad]["update"],
                    rows[bad]["env_steps"],
                    agent.terms[rows[bad]["nonfinite"]],
                    session.last_checkpoint(),
                )
            rows = [_public(row) for row in rows]
            if session.is_due():
                rows[-1] |= session.chooser.consider(session.params, session.done)
            with hosts.together():
                log.write(rows)
                progress.advance(rows, seconds, is_first=session.chunks == 1)
            if session.is_due():
                session.save()
            stopped_by = next(filter(None, hosts.exchange(stop.signal)), None)  # whichever of them was asked to
        if stopped_by is not None:
            session.save()
            progress.say(_farewell(stopped_by, session))
    return _result(session, log.rows, stopped_by)


def _check_arguments(
    market: Market,
    config: AgentConfig,
    key: Array,
    validation: Market | None,
    folder: str | Path | None,
    resume: bool,
    checkpoint_every: int | None,
) -> None:
    agent_of(config)
    check_market("market", market)
    if validation is not None:
        check_market("validation", validation)
    check_key(key)
    market.valid_starts(config.env.episode_length)
    check_network(market, config)
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ValueError(f"checkpoint_every = {checkpoint_every} must be at least 1 update")
    if resume and folder is None:
        raise ValueError("resume = True needs the folder of the run to resume")
    if folder == "":
        raise ValueError("folder = '' names no folder; None writes no files")


def _result(session: Session, history: list[Row], stopped_by: str | None) -> TrainResult:
    choice, params = session.chooser.choose(session.params, session.done)
    return TrainResult(
        params=session.params,
        policy=dataclasses.replace(
            agent_of(session.config).policy(jax.tree.map(jnp.asarray, params), session.config),
            origin=Origin.of_market(session.market, session.config.env),
        ),
        choice=choice,
        state=session.state,
        history=history,
        folder=session.folder,
        stopped_by=stopped_by,
    )


def _public(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "nonfinite"}


def _introduce(progress: Progress, session: Session) -> None:
    devices, there = session.placement.devices, jax.device_count()
    progress.say(f"device: {device(devices)}")
    if devices < there:
        progress.say(f"{there - devices} more stand idle; --devices all divides the episodes over all {there}")
    if is_cpu_only():
        progress.say(
            "warning: only a CPU was found; a GPU trains many times faster (pip install 'jaxrl-trade[cuda12]')"
        )
    for note in session.notes:
        progress.say(note)
    if session.done:
        progress.say(f"resuming after update {session.done} of {session.updates}")


def _farewell(signal: str | None, session: Session) -> str:
    saved = session.last_checkpoint()
    place = f"the checkpoint is {saved}" if saved else "nothing was saved: no folder was given"
    return f"stopped by {signal} after update {session.done} of {session.updates}; {place}"
