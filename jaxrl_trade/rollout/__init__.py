"""Experience collection: the sequential loop, what is hoisted out of it, and the collectors of the agents."""

from jaxrl_trade.rollout.dqn import collect_dqn
from jaxrl_trade.rollout.experience import Batch, Experience, Transitions
from jaxrl_trade.rollout.hoisted import spec_reward
from jaxrl_trade.rollout.memory import DQNExperience, Memory
from jaxrl_trade.rollout.ppo import collect_ppo

__all__ = [
    "Batch",
    "DQNExperience",
    "Experience",
    "Memory",
    "Transitions",
    "collect_dqn",
    "collect_ppo",
    "spec_reward",
]
