"""What the host's loop and a run's folder need to know of each agent, found by the type of its config or by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxrl_trade.agents import Policy, actor_policy, q_policy
from jaxrl_trade.config import AgentConfig, DQNConfig, DQNHypers, PPOConfig, PPOHypers
from jaxrl_trade.networks import init_dqn, init_ppo
from jaxrl_trade.train import dqn, ppo


@dataclasses.dataclass(frozen=True)
class Agent:
    """One way to train."""

    name: str  # in run.json and on the command line
    config: type[AgentConfig]
    init_params: Callable[..., Any]  # (key, config, n_features) -> weights
    init_state: Callable[..., Any]  # (key, market, config) -> state; its `params` are the weights
    update_step: Callable[..., Any]  # (state, hypers, market, config) -> state, metrics
    layout: Callable[[Any, Any], Any]  # (whole, share) -> a state of these: how several programs hold it together
    regroup: Callable[[Any, int, int], Any]  # (state, before, after) -> the state as `after` devices hold it together
    terms: tuple[str, ...]  # what a metric `nonfinite` counts
    policy: Callable[[Any, Any], Policy]  # of weights and config
    static: Callable[[Any], Any]  # a config without what its program does not read
    after_schedule: Callable[
        [Any], str
    ]  # what becomes of the scheduled in a run longer than its schedules; "" without any


def agent_of(config: AgentConfig) -> Agent:
    """The agent that a config is for.

    Raises:
      ValueError: something else than a config of a run.
    """
    for agent in AGENTS.values():
        if isinstance(config, agent.config):
            return agent
    kinds = " or ".join(agent.config.__name__ for agent in AGENTS.values())
    raise ValueError(f"config is a {type(config).__name__}; give a {kinds}")


# another learning rate, or where no schedule depends on it a longer run, is the same program
def _static_ppo(config: PPOConfig) -> PPOConfig:
    updates = 1 if config.schedule == "constant" else config.updates
    return dataclasses.replace(config, hypers=PPOHypers(), updates=updates)


def _static_dqn(config: DQNConfig) -> DQNConfig:
    return dataclasses.replace(config, hypers=DQNHypers())


AGENTS = {
    agent.name: agent
    for agent in (
        Agent(
            name="ppo",
            config=PPOConfig,
            init_params=init_ppo,
            init_state=ppo.init_state,
            update_step=ppo.update_step,
            layout=ppo.PPOState.layout,
            regroup=lambda state, before, after: state,
            terms=ppo.TERMS,
            policy=lambda params, config: actor_policy(params.actor, config),
            static=_static_ppo,
            after_schedule=lambda config: "" if config.schedule == "constant" else "the learning rates are 0",
        ),
        Agent(
            name="dqn",
            config=DQNConfig,
            init_params=init_dqn,
            init_state=dqn.init_state,
            update_step=dqn.update_step,
            layout=dqn.DQNState.layout,
            regroup=dqn.regroup,
            terms=dqn.TERMS,
            policy=lambda params, config: q_policy(params.dueling, config),
            static=_static_dqn,
            after_schedule=lambda config: "epsilon and the importance exponent stay at their ends",
        ),
    )
}
