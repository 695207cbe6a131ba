"""The host's side of training: chunks of updates on the device; between them logs, validation, checkpoints and manners.

The mathematics is the agent's `update_step` (`train/ppo.py`, `train/dqn.py`); this loop only decides how often the host looks at
it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_trade.agents import Policy
from jaxrl_trade.config import AgentConfig, DQNConfig, PPOConfig
from jaxrl_trade.market import Market
from jaxrl_trade.train import run as runs
from jaxrl_trade.train.agent import agent_of
from jaxrl_trade.train.checkpoints import Checkpoints
from jaxrl_trade.train.logs import MetricsLog, Row
from jaxrl_trade.train.progress import Progress
from jaxrl_trade.train.provenance import device, is_cpu_only
from jaxrl_trade.train.run import Choice, load_policy
from jaxrl_trade.train.signals import stop_on_signals
from jaxrl_trade.train.validation import Chooser

__all__ = ["NonFiniteError", "TrainResult", "load_policy", "train_agent", "train_dqn", "train_ppo"]

Array = jax.Array
CHECKPOINTS_PER_RUN = 20
CHUNK_SECONDS = 1.0  # between two looks of the host: how stale the bar is, and how long Ctrl-C waits
MAX_CHUNK = 64  # updates whose scalars wait on the device


class NonFiniteError(FloatingPointError):
    """Training met a NaN or an infinity.

    Attributes:
      update: the update it came in, counted from 1.
      env_steps: environment steps taken by the end of it.
      term: what was not finite first.
      checkpoint: folder of the last good checkpoint, or None.
    """

    def __init__(self, update: int, env_steps: int, term: str, checkpoint: Path | None) -> None:
        self.update, self.env_steps, self.term, self.checkpoint = update, env_steps, term, checkpoint
        saved = f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint was written before it"
        super().__init__(
            f"NaN or infinity in the {term} at update {update} (environment step {env_steps:,}); {saved}. "
            "A lower learning_rate, or features without extremes, usually helps"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class TrainResult:
    """What training gives.

    Attributes:
      params: the last weights.
      policy: the chosen weights' policy: best on validation after costs, else the last.
      choice: which those are; `str(choice)` says it in words.
      state: all that a further update needs.
      history: a row of numbers by name for each update, as in metrics.jsonl.
      folder: of the run, or None.
      stopped_by: "SIGINT" or "SIGTERM" if that ended the run early.
    """

    params: Any
    policy: Policy
    choice: Choice
    state: Any
    history: list[Row]
    folder: Path | None
    stopped_by: str | None


def train_ppo(
    market: Market,
    config: PPOConfig,
    key: Array,
    validation: Market | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    facts: dict[str, Any] | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Trains PPO for `config.updates` updates, watched by a person.

    Ctrl-C and SIGTERM end it after the running chunk, with a checkpoint; the result's `stopped_by` says so.

    Args:
      market: the bars to train on, a split say.
      config: of the run.
      key: typed key; the run is a function of it, of the market and of the config.
      validation: bars to choose the policy on; the same ones to resume.
      folder: of the run's files (see `train/run.py`); None writes none.
      resume: go on from the last checkpoint in `folder` instead of beginning there.
      checkpoint_every: updates between checkpoints and between validations; None is a twentieth of the run.
      facts: JSON values added to run.json.
      quiet: prints nothing.
    Raises:
      ValueError: a market without a valid start, settings or bars that are not those of the run to resume.
      OSError: the folder holds a run already, or none to resume; a damaged checkpoint.
      NonFiniteError: a NaN or an infinity; what was saved before stays.
    """
    return train_agent(
        market,
        config,
        key,
        validation,
        folder=folder,
        resume=resume,
        checkpoint_every=checkpoint_every,
        facts=facts,
        quiet=quiet,
    )


def train_dqn(
    market: Market,
    config: DQNConfig,
    key: Array,
    validation: Market | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    facts: dict[str, Any] | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Trains DQN; arguments, result and errors are those of `train_ppo`.

    A checkpoint holds the replay too, so that a resumed run goes on with what it remembers.
    """
    return train_agent(
        market,
        config,
        key,
        validation,
        folder=folder,
        resume=resume,
        checkpoint_every=checkpoint_every,
        facts=facts,
        quiet=quiet,
    )


def train_agent(
    market: Market,
    config: AgentConfig,
    key: Array,
    validation: Market | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    facts: dict[str, Any] | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Trains PPO or DQN, as the config says; see `train_ppo`."""
    agent = agent_of(config)
    market.valid_starts(config.env.episode_length)
    every = max(1, config.updates // CHECKPOINTS_PER_RUN) if checkpoint_every is None else checkpoint_every
    if every < 1:
        raise ValueError(f"checkpoint_every = {checkpoint_every} must be at least 1 update")
    folder = None if folder is None else Path(folder)
    session = _begin(market, config, key, validation, folder, resume, facts or {})
    with (
        Progress(config.updates, session.done, config.total_experiences, quiet=quiet) as progress,
        contextlib.closing(MetricsLog(folder, session.done, progress.say)) as log,
        stop_on_signals() as stop,
    ):
        _introduce(progress, session, config)
        while session.done < config.updates and not stop:
            left = min(every - session.done % every, config.updates - session.done)
            rows, seconds = session.advance(min(left, session.affordable(), MAX_CHUNK))
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
            is_due = session.done % every == 0 or session.done == config.updates
            if is_due:
                rows[-1] |= session.chooser.consider(session.state.params, session.done)
            log.write(rows)
            progress.advance(rows, seconds, is_first=session.chunks == 1)
            if is_due:
                session.save()
        if stop:
            session.save()
            progress.say(_farewell(stop.signal, session, config))
    return session.result(log.rows, stop.signal)


@dataclasses.dataclass
class _Session:
    """The loop's variables."""

    market: Market
    config: AgentConfig
    hypers: Any
    state: Any
    chooser: Chooser
    folder: Path | None
    done: int = 0  # updates, an int of Python: environment steps outgrow int32 in minutes
    seconds: float = 0.0  # of training, earlier sessions included
    chunks: int = 0  # of this session
    pace: float | None = None  # seconds per update of the last chunk that held no compilation
    saved: int | None = None  # update of the last checkpoint

    def affordable(self) -> int:
        """Updates that take about a second."""
        return 1 if self.pace is None else max(1, int(CHUNK_SECONDS / max(self.pace, 1e-9)))

    def advance(self, updates: int) -> tuple[list[Row], float]:
        """Runs some updates; their rows, and the seconds they took."""
        began = time.perf_counter()
        self.state, metrics = run_chunk(
            self.state, self.hypers, self.market, np.int32(updates), config=agent_of(self.config).static(self.config)
        )
        metrics = jax.device_get(metrics)
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

    def last_checkpoint(self) -> Path | None:
        """Folder of the last checkpoint."""
        return None if self.folder is None or self.saved is None else _checkpoints(self.folder).path(self.saved)

    def save(self) -> None:
        """Writes a checkpoint and the chosen weights, unless this update has one; keeps the last two and the best."""
        if self.folder is None or self.saved == self.done:
            return
        choice, params = self.chooser.choose(self.state.params, self.done)
        checkpoints = _checkpoints(self.folder)
        facts = {
            "update": self.done,
            "env_steps": self.done * self.config.total_experiences,
            "seconds": self.seconds,
            "choice": dataclasses.asdict(choice),
        }
        checkpoints.save(self.done, self.state, facts)
        runs.save_choice(self.folder, params, choice)
        checkpoints.prune({*checkpoints.updates()[-2:], choice.update})
        self.saved = self.done

    def result(self, history: list[Row], stopped_by: str | None) -> TrainResult:
        """The outcome."""
        choice, params = self.chooser.choose(self.state.params, self.done)
        return TrainResult(
            params=self.state.params,
            policy=agent_of(self.config).policy(jax.tree.map(jnp.asarray, params), self.config),
            choice=choice,
            state=self.state,
            history=history,
            folder=self.folder,
            stopped_by=stopped_by,
        )


def _begin(
    market: Market,
    config: AgentConfig,
    key: Array,
    validation: Market | None,
    folder: Path | None,
    resume: bool,
    facts: dict[str, Any],
) -> _Session:
    """A session at the start of a run, or at its last checkpoint."""
    hypers = jax.tree.map(lambda x: jnp.asarray(x, float), config.hypers)
    if not resume:
        if folder is not None:
            runs.create_run(folder, market, config, key, facts)
        state = _init(key, market, config=agent_of(config).static(config))
        return _Session(market, config, hypers, state, Chooser(validation, config), folder)
    if folder is None:
        raise ValueError("resume = True needs the folder of the run to resume")
    runs.check_same_run(folder, market, config)
    checkpoints = _checkpoints(folder)
    if not checkpoints.updates():
        raise FileNotFoundError(
            f"{folder} has no checkpoint to resume from: it ended before the first; remove it and start a new run"
        )
    done = checkpoints.updates()[-1]
    like = jax.eval_shape(lambda: agent_of(config).init_state(key, market, config))
    state, kept = checkpoints.restore(done, like), checkpoints.facts(done)
    choice = Choice(**kept["choice"])
    chosen = state if choice.update == done else checkpoints.restore(choice.update, like)
    chooser = Chooser(validation, config, choice, chosen.params)
    runs.save_choice(folder, chosen.params, choice)  # a killed process may have left those of an earlier checkpoint
    return _Session(market, config, hypers, state, chooser, folder, done=done, seconds=kept["seconds"], saved=done)


@functools.partial(jax.jit, static_argnames="config", donate_argnames="state")
def run_chunk(state: Any, hypers: Any, market: Market, updates: Array, *, config: AgentConfig) -> tuple[Any, Any]:
    """Some updates in one program.

    Args:
      state: donated.
      hypers: traced.
      market: the bars.
      updates: int32, at most MAX_CHUNK; traced, so that one program serves chunks of every length.
      config: of the run.
    Returns:
      The state after them, and metrics `[MAX_CHUNK]`, of which the first `updates` are filled.
    """
    update_step = agent_of(config).update_step

    def body(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        state, rows = carry
        state, metrics = update_step(state, hypers, market, config)
        return state, jax.tree.map(lambda row, value: row.at[i].set(value), rows, metrics)

    one = jax.eval_shape(lambda s: update_step(s, hypers, market, config)[1], state)
    rows = jax.tree.map(lambda x: jnp.zeros((MAX_CHUNK,), x.dtype), one)
    return jax.lax.fori_loop(0, updates, body, (state, rows))


@functools.partial(jax.jit, static_argnames="config")
def _init(key: Array, market: Market, *, config: AgentConfig) -> Any:
    return agent_of(config).init_state(key, market, config)


def _checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder / runs.CHECKPOINTS)


def _public(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "nonfinite"}


def _introduce(progress: Progress, session: _Session, config: AgentConfig) -> None:
    progress.say(f"device: {device()}")
    if is_cpu_only():
        progress.say(
            "warning: only a CPU was found; a GPU trains many times faster (pip install 'jaxrl-trade[cuda12]')"
        )
    if session.done:
        progress.say(f"resuming after update {session.done} of {config.updates}")


def _farewell(signal: str | None, session: _Session, config: AgentConfig) -> str:
    saved = session.last_checkpoint()
    place = (
        f"the checkpoint is {saved}, resume=True goes on from it" if saved else "nothing was saved: no folder was given"
    )
    return f"stopped by {signal} after update {session.done} of {config.updates}; {place}"
