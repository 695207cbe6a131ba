"""Reinforcement-learning agents that trade an instrument bar by bar, trained at the speed of a GPU and judged honestly."""

from jaxrl_trade import env
from jaxrl_trade.advantages import gae
from jaxrl_trade.config import EnvConfig, ExecutionTable, PPOConfig, PPOHypers, RewardScales
from jaxrl_trade.market import Market, split

__version__ = "0.1.0"

__all__ = [
    "EnvConfig",
    "ExecutionTable",
    "Market",
    "PPOConfig",
    "PPOHypers",
    "RewardScales",
    "env",
    "gae",
    "split",
]
