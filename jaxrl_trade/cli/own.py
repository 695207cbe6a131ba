"""The flags that put parts of the user's own in the place of the package's."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tyro

from jaxrl_trade.config import AgentConfig, ExecutionTable
from jaxrl_trade.market import Market
from jaxrl_trade.parts import Part

PartName = tyro.conf.arg(metavar="FILE.py:NAME", help_behavior_hint="(default: the package's)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnFlags:
    """Parts of your own, by file and name; a run keeps the hash of the file, and a changed one is refused (docs/own_parts.md)."""

    reward_fn: Annotated[
        str | None,
        tyro.conf.arg(name="reward", metavar="FILE.py:NAME", help_behavior_hint="(default: the package's)"),
    ] = None
    """Function (transitions, scales, market, env) -> rewards [L, N]."""
    features: Annotated[str | None, PartName] = None
    """Function of Bars -> table of features, its last row the last bar's."""
    actions: Annotated[str | None, PartName] = None
    """ExecutionTable, or a function of the preset's table that returns one."""
    network: Annotated[str | None, PartName] = None
    """flax.linen.Module class of the number of outputs; actor and critic each, or Q."""
    mask: Annotated[str | None, PartName] = None
    """Function (account, execution, close) -> bool: whether an order may be placed."""
    long_only: bool = False
    """Leave out the actions that want a short position."""

    def applied(self, config: AgentConfig) -> AgentConfig:
        """The config with these parts.

        Raises:
          ValueError: a part that is not there, or of another kind.
        """
        table = config.env.execution
        if self.actions is not None:
            table = _table(Part.of(self.actions), table)
        if self.long_only:
            table = table.long_only()
        return dataclasses.replace(
            config,
            env=dataclasses.replace(config.env, execution=table, mask=_function(self.mask)),
            reward_fn=_function(self.reward_fn),
            network=_function(self.network),
        )

    def features_by(self) -> Part | None:
        """The function of features.

        Raises:
          ValueError: as `applied`.
        """
        return _function(self.features)


def try_parts(config: AgentConfig, market: Market) -> None:
    """Traces an update if parts of the user's own are in it, so that their mistakes come before there is a run.

    Raises:
      ValueError: of what is wrong with one.
    """
    import jax

    from jaxrl_trade.train.agent import agent_of

    if config.reward_fn is None and config.network is None and config.env.mask is None:
        return
    agent = agent_of(config)
    state = jax.eval_shape(lambda: agent.init_state(jax.random.key(0), market, config))
    jax.eval_shape(lambda state: agent.update_step(state, config.hypers, market, config), state)


def _function(text: str | None) -> Part | None:
    if text is None:
        return None
    part = Part.of(text)
    if not callable(part.load()):
        raise ValueError(f"{part} is a {type(part.load()).__name__}; it must be a function or a class")
    return part


def _table(part: Part, preset: ExecutionTable) -> ExecutionTable:
    found = part.load()
    table = part(preset) if callable(found) else found
    if not isinstance(table, ExecutionTable):
        raise ValueError(f"{part} gives a {type(table).__name__}; it must be, or return, a jaxrl_trade.ExecutionTable")
    return table
