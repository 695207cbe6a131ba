"""On driftless random walks nothing can be earned after costs, so an agent that seems to earn has looked ahead."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_trade as jt
from jaxrl_trade.agents import actor_policy
from jaxrl_trade.backtesting import evaluate
from jaxrl_trade.train.ppo import init_state, run_updates

WALKS, BARS = 16, 3_000
CONFIG = jt.PPOConfig.net(
    env=jt.EnvConfig.net(episode_length=100),
    n_episodes=16,
    timesteps_per_episode=100,
    updates=40,
    actor_hidden=(32,),
    critic_hidden=(32,),
    curiosity_hidden=(8,),
    hypers=jt.PPOHypers(reward=jt.RewardScales.net(), learning_rate=1e-3),
)


@pytest.mark.slow
def test_no_agent_earns_on_driftless_random_walks():
    splits = [jt.split(_walk(seed), (0.5, 0.5), embargo=32) for seed in range(WALKS)]
    markets = jax.tree.map(lambda *x: jnp.stack(x), *(train for train, _ in splits))

    def train(key, market):
        return run_updates(init_state(key, market, CONFIG), CONFIG.hypers, market, CONFIG, CONFIG.updates)[0]

    states = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), WALKS), markets)
    excess = []
    for i, (_, test) in enumerate(splits):
        actor = jax.tree.map(lambda x, i=i: x[i], states.params.actor)
        excess.append(evaluate(actor_policy(actor, CONFIG), test, CONFIG)["total_return"])
    mean, error = np.mean(excess), np.std(excess, ddof=1) / np.sqrt(WALKS)
    assert mean <= 2 * error
    assert np.count_nonzero(excess) >= WALKS // 2  # flat agents would prove nothing


def _walk(seed):
    """A martingale in price, hence log returns with a drift of minus half the variance; features are its past returns."""
    rng = np.random.default_rng(seed)
    returns = 0.01 * rng.standard_normal(BARS) - 0.5 * 0.01**2
    log_close = np.cumsum(returns)
    close = 100 * np.exp(log_close)
    path = log_close[:, None] - returns[:, None] * np.sort(rng.random((BARS, 4)), axis=1)[:, ::-1]
    low = np.minimum(close, 100 * np.exp(path.min(axis=1)))
    high = np.maximum(close, 100 * np.exp(path.max(axis=1)))
    open = np.append(close[0], close[:-1])
    low, high = np.minimum(low, open), np.maximum(high, open)
    lagged = np.stack([np.concatenate([np.zeros(k), returns[: BARS - k]]) for k in range(8)], axis=1) / 0.01
    return jt.Market.from_arrays(lagged, close, low=low, high=high, open=open)
