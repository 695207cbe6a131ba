"""Flax modules of the agents and their weights on disk."""

from jaxrl_trade.networks.factory import actor, critic, curiosity, dueling
from jaxrl_trade.networks.mlp import MLP
from jaxrl_trade.networks.own import Own
from jaxrl_trade.networks.params import DQNParams, PPOParams, init_dqn, init_ppo
from jaxrl_trade.networks.q_network import Dueling, heads
from jaxrl_trade.networks.weights import load_weights, save_weights

__all__ = [
    "MLP",
    "DQNParams",
    "Dueling",
    "Own",
    "PPOParams",
    "actor",
    "critic",
    "curiosity",
    "dueling",
    "heads",
    "init_dqn",
    "init_ppo",
    "load_weights",
    "save_weights",
]
