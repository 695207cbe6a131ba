"""Experience collection: the sequential loop, what is hoisted out of it, and the collectors of the agents."""

from jaxrl_trade.rollout.experience import Batch, Experience, Transitions
from jaxrl_trade.rollout.hoisted import spec_reward
from jaxrl_trade.rollout.ppo import collect_ppo

__all__ = ["Batch", "Experience", "Transitions", "collect_ppo", "spec_reward"]
