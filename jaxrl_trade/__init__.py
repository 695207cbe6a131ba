"""Reinforcement-learning agents that trade an instrument bar by bar, trained at GPU speed and judged honestly."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_trade import env
    from jaxrl_trade.advantages import gae
    from jaxrl_trade.agents import Policy
    from jaxrl_trade.backtesting import backtest
    from jaxrl_trade.bars import Bars, load_bars, load_instruments, sample_bars
    from jaxrl_trade.config import DQNConfig, DQNHypers, EnvConfig, ExecutionTable, PPOConfig, PPOHypers, RewardScales
    from jaxrl_trade.market import Market, split
    from jaxrl_trade.networks import DQNParams, PPOParams, init_dqn, init_ppo, load_weights, save_weights
    from jaxrl_trade.rollout import DQNExperience, Experience, collect_dqn, collect_ppo
    from jaxrl_trade.train.dqn import make_train_dqn
    from jaxrl_trade.train.loop import load_policy, train_dqn, train_ppo
    from jaxrl_trade.train.ppo import make_train_ppo
    from jaxrl_trade.train.sweep import sweep
    from jaxrl_trade.train.walk_forward import walk_forward

__version__ = "0.1.0"
ENVIRONMENT = "jaxrl_trade/Trading-v0"  # its name in Gymnasium

# Imported on first use: what they need (JAX, pandas, Orbax, ...) must not slow down or break what does without, and the command
# line must be able to answer Ctrl-C before a second of imports is over.
_LAZY = {
    "Bars": "bars",
    "DQNConfig": "config",
    "DQNExperience": "rollout",
    "DQNHypers": "config",
    "DQNParams": "networks",
    "EnvConfig": "config",
    "ExecutionTable": "config",
    "Experience": "rollout",
    "Market": "market",
    "PPOConfig": "config",
    "PPOHypers": "config",
    "PPOParams": "networks",
    "Policy": "agents",
    "RewardScales": "config",
    "backtest": "backtesting",
    "collect_dqn": "rollout",
    "collect_ppo": "rollout",
    "gae": "advantages",
    "init_dqn": "networks",
    "init_ppo": "networks",
    "load_bars": "bars",
    "load_instruments": "bars",
    "load_policy": "train.loop",
    "load_weights": "networks",
    "make_train_dqn": "train.dqn",
    "make_train_ppo": "train.ppo",
    "sample_bars": "bars",
    "save_weights": "networks",
    "split": "market",
    "sweep": "train.sweep",
    "train_dqn": "train.loop",
    "train_ppo": "train.loop",
    "walk_forward": "train.walk_forward",
}

__all__ = [
    "Bars",
    "DQNConfig",
    "DQNExperience",
    "DQNHypers",
    "DQNParams",
    "EnvConfig",
    "ExecutionTable",
    "Experience",
    "Market",
    "PPOConfig",
    "PPOHypers",
    "PPOParams",
    "Policy",
    "RewardScales",
    "backtest",
    "collect_dqn",
    "collect_ppo",
    "env",
    "gae",
    "init_dqn",
    "init_ppo",
    "load_bars",
    "load_instruments",
    "load_policy",
    "load_weights",
    "make_train_dqn",
    "make_train_ppo",
    "sample_bars",
    "save_weights",
    "split",
    "sweep",
    "train_dqn",
    "train_ppo",
    "walk_forward",
]


def register_environment() -> None:
    """Makes the environment known to Gymnasium, where that has been imported; nobody else has to have it."""
    gymnasium: Any = sys.modules.get("gymnasium")
    registry = getattr(gymnasium, "registry", None)  # None while Gymnasium is still being imported
    if registry is not None and ENVIRONMENT not in registry:
        room = f"{__name__}.env.gymnasium"
        gymnasium.register(ENVIRONMENT, f"{room}:TradingEnv", vector_entry_point=f"{room}:TradingVectorEnv")


def __getattr__(name: str) -> Any:
    register_environment()  # Gymnasium may have been imported since
    if name == "env":  # a room, not a name in one
        return importlib.import_module(f"{__name__}.env")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_environment()
