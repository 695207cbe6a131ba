"""Five tiny environments that isolate one part of an agent each (after Andy Jones, "Debugging RL, without the agonizing pain").

Each is a Market with a reward function of its own. Its `value` and `best` say what a solved one looks like, from the definition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_trade as jt

N_BARS = 64
SHORT, LONG = 0, 1
SHORT_OR_LONG = jt.ExecutionTable(
    exposure=(-1, 1), fee_rate=(0, 0), fill_ratio=(1, 1), price_offset=(0, 0), is_maker=(False, False)
)


@dataclasses.dataclass(frozen=True)
class Probe:
    """One probe: bars, rules, reward, and what is known of its solution, for observations `[K, F + 3]`."""

    market: jt.Market
    env: jt.EnvConfig
    reward_fn: Callable
    value: Callable  # (observations, gamma) -> value [K] of the best policy
    best: Callable | None = None  # observations -> best action [K]; None where any action will do

    def observations(self) -> np.ndarray:
        """Every observation that can occur: each bar, flat at an episode's first step, long or short at its second."""
        features = np.asarray(self.market.features)
        positions = (0, -1, 1) if self.env.episode_length > 1 else (0,)
        account = np.array([[1.0, position, self.env.spread] for position in positions])
        return np.concatenate([np.repeat(features, len(account), 0), np.tile(account, (len(features), 1))], axis=1)


def constant() -> Probe:
    """Reward 1, one step: the value is 1."""
    return _probe(lambda t, s, m, e: jnp.ones_like(t.base), lambda obs, gamma: np.ones(len(obs)))


def observation_dependent() -> Probe:
    """The reward is the feature, one step: the value is the feature."""
    return _probe(lambda t, s, m, e: m.features_at(t.bar)[..., 0], lambda obs, gamma: obs[:, 0])


def delayed() -> Probe:
    """Reward 1 at the second of two steps, where a position is open: the values are gamma while flat, then 1."""
    return _probe(
        lambda t, s, m, e: (t.step == 1).astype(t.base.dtype),
        lambda obs, gamma: np.where(obs[:, 2] == 0, gamma, 1.0),
        episode_length=2,
    )


def action_dependent() -> Probe:
    """Reward +1 for long and -1 for short, one step: long is best and worth 1."""
    return _probe(
        lambda t, s, m, e: jnp.sign(t.position),
        lambda obs, gamma: np.ones(len(obs)),
        lambda obs: np.full(len(obs), LONG),
    )


def action_and_observation_dependent() -> Probe:
    """Reward is the feature's sign times the position's: going with the feature is best and worth 1."""
    return _probe(
        lambda t, s, m, e: jnp.sign(t.position) * m.features_at(t.bar)[..., 0],
        lambda obs, gamma: np.ones(len(obs)),
        lambda obs: np.where(obs[:, 0] > 0, LONG, SHORT),
    )


ALL = (constant, observation_dependent, delayed, action_dependent, action_and_observation_dependent)


def oracle(n_bars: int = 2_000, seed: int = 0) -> jt.Market:
    """A walk that ends where it began, whose first feature is tomorrow's return in standard deviations."""
    rng = np.random.default_rng(seed)
    returns = 0.01 * rng.standard_normal(n_bars)
    close = 100 * np.exp(np.cumsum(returns - returns.mean()))
    tomorrow = np.append(np.diff(np.log(close)), 0) / 0.01
    return jt.Market.from_arrays(np.stack([tomorrow, rng.standard_normal(n_bars)], axis=1), close)


def growth(policy: Callable, market: jt.Market) -> tuple[float, float]:
    """Final over initial equity of the greedy policy in one episode over the whole split, and of the price."""
    first, last = (int(x) for x in market.segments[0])
    rules = jt.EnvConfig.net(episode_length=last - first)
    start = jnp.array([first])

    def step(state: jt.env.EnvState, _: None) -> tuple[jt.env.EnvState, jax.Array]:
        action = jnp.argmax(policy(jt.env.observe(state, market, rules)), -1)
        state, outcome = jt.env.step(state, action, start, market, rules)
        return state, outcome.equity_after

    _, equity = jax.lax.scan(step, jt.env.reset(market, rules, start), length=last - first)
    return float(equity[-1, 0]) / rules.initial_capital, float(market.close[last] / market.close[first])


def _probe(reward_fn: Callable, value: Callable, best: Callable | None = None, episode_length: int = 1) -> Probe:
    features = np.random.default_rng(7).choice([-1.0, 1.0], (N_BARS, 1))
    env = jt.EnvConfig(
        execution=SHORT_OR_LONG, episode_length=episode_length, reserve_fraction=None, diversity_window=4
    )
    return Probe(jt.Market.from_arrays(features, np.full(N_BARS, 100.0)), env, reward_fn, value, best)
