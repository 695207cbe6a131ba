"""Training on several devices: the agents' own update step, mapped over them."""

from jaxrl_trade.scale.modes import Program, data_parallel, seeds, share_of
from jaxrl_trade.scale.team import AXIS, SHARE, WHOLE, Executor, Team, check_replicas

__all__ = [
    "AXIS",
    "SHARE",
    "WHOLE",
    "Executor",
    "Program",
    "Team",
    "check_replicas",
    "data_parallel",
    "seeds",
    "share_of",
]
