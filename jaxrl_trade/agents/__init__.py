"""The agents: losses, updates, policies."""

from jaxrl_trade.agents.origin import Origin
from jaxrl_trade.agents.policy import Policy, actor_policy, q_policy

__all__ = ["Origin", "Policy", "actor_policy", "q_policy"]
