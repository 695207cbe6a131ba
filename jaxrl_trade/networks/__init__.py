"""Flax modules of the agents and their weights on disk."""

from jaxrl_trade.networks.factory import actor, critic, curiosity
from jaxrl_trade.networks.mlp import MLP
from jaxrl_trade.networks.params import PPOParams, init_ppo
from jaxrl_trade.networks.weights import load_weights, save_weights

__all__ = ["MLP", "PPOParams", "actor", "critic", "curiosity", "init_ppo", "load_weights", "save_weights"]
