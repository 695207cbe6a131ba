"""Experience collection for DQN: the same rollout as PPO's with an epsilon-greedy choice, then rewards, bundles and TD errors.

The kernels are those of `config.backend`, the rollout's too.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

import pallas_kernels as pk
from jaxrl_trade import networks
from jaxrl_trade.config import DQNConfig, DQNHypers, Scalar
from jaxrl_trade.env import diversity
from jaxrl_trade.env.trading import EnvState
from jaxrl_trade.market import Market
from jaxrl_trade.networks import DQNParams
from jaxrl_trade.nstep import bundle
from jaxrl_trade.rollout import hoisted, sequential
from jaxrl_trade.rollout.draws import check_draws, complete
from jaxrl_trade.rollout.memory import DQNExperience, Memory, seen, then

Array = jax.Array


def collect_dqn(
    params: DQNParams,
    market: Market,
    state: EnvState,
    key: Array,
    config: DQNConfig,
    hypers: DQNHypers | None = None,
    target: Any = None,
    epsilon: Scalar | None = None,
    actions: Any = None,
    uniforms: Any = None,
    restart_bars: Any = None,
    axis: str | None = None,
) -> tuple[DQNExperience, EnvState]:
    """L = `config.timesteps_per_episode` steps of the N episodes in `state`, complete with targets and TD errors.

    Args:
      params: weights of dueling network and curiosity model.
      market: the bars.
      state: where the episodes stand, from `env.reset` or the last collection.
      key: typed key of the draws; `split(key, 2)` gives the uniforms and the restart bars.
      config: of the run.
      hypers: traced hyperparameters; None takes the config's.
      target: weights of the target network; None takes `params.dueling`, as at a run's beginning.
      epsilon: probability of a random action; None takes `hypers.epsilon_start`.
      actions: `[L, N]` int32, forces the actions; None chooses them.
      uniforms: `[L, N, 2]` in [0, 1), instead of drawing them: whether to explore, and where to.
      restart_bars: `[L, N]` int32 valid starts, instead of drawing them.
      axis: that all episodes are divided over, see `collectives`; these N get the draws they would get beside the others.

    Returns:
      The experience, and the state to go on from.

    Raises:
      ValueError: draws of another shape, or concrete actions or restart bars that are out of range; a market without a valid
        start.
    """
    check_draws(actions, uniforms, restart_bars, state, market, config, per_choice=(2,))
    hypers = config.hypers if hypers is None else hypers
    target = params.dueling if target is None else target
    epsilon = hypers.epsilon_start if epsilon is None else epsilon
    return _collect(
        params, market, state, key, hypers, target, epsilon, actions, uniforms, restart_bars, config=config, axis=axis
    )


@functools.partial(jax.jit, static_argnames=("config", "axis"))
def _collect(
    params: DQNParams,
    market: Market,
    state: EnvState,
    key: Array,
    hypers: DQNHypers,
    target: Any,
    epsilon: Scalar,
    actions: Array | None,
    uniforms: Array | None,
    restart_bars: Array | None,
    *,
    config: DQNConfig,
    axis: str | None,
) -> tuple[DQNExperience, EnvState]:
    env = config.env
    uniforms, restart_bars = complete(uniforms, restart_bars, key, state, market, config, axis, per_choice=(2,))
    draws = explore(uniforms, epsilon, env.n_actions) if actions is None else jnp.asarray(actions, jnp.int32)
    account, steps = sequential.rollout_network(
        networks.dueling(config),
        "greedy",
        params.dueling,
        market,
        state.account,
        draws,
        restart_bars,
        config,
        config.backend,
    )
    steps = steps._replace(log_probs=explored(steps.log_probs, epsilon, env.n_actions))
    t = hoisted.transitions(steps, state.account, state.window, market, config, config.backend)
    t, rewards = hoisted.rewarded(t, params.curiosity, market, hypers.reward, config)
    ends = t.terminated if env.time_limit == "bootstrap" else t.terminated | t.truncated
    bundles = bundle(rewards, ends, t.truncated, hypers.gamma, config.n_step)
    memory = Memory(
        seen=seen(t, env),
        action=t.action,
        reward=bundles.rewards,
        discount=bundles.discounts,
        then=then(t, bundles.last, market, env),
    )
    targets, errors = td_errors(params.dueling, target, memory, market, config)
    experience = DQNExperience(
        transitions=t, rewards=rewards, memory=memory, targets=targets, td_errors=errors, env=env
    )
    window = diversity.window_after(t.action, account.step, state.window)
    return experience, EnvState(account=account, window=window)


def explore(uniforms: Array, epsilon: Scalar, n_actions: int) -> Array:
    """Draws of a greedy choice, `[...]` int32: where u1 < epsilon the action min(floor(u2 A), A - 1), else -1, the greedy one.

    Args:
      uniforms: `[..., 2]` in [0, 1), u1 and u2.
      epsilon: probability of a random action.
      n_actions: A.
    """
    random = jnp.minimum(jnp.floor(uniforms[..., 1] * n_actions).astype(jnp.int32), n_actions - 1)
    return jnp.where(uniforms[..., 0] < epsilon, random, -1)


def explored(log_probs: Array, epsilon: Scalar, n_actions: int) -> Array:
    """Log-probabilities of the policy that explores, from those of the greedy one: epsilon / A for each action, the rest its."""
    return jnp.log((1.0 - epsilon) * jnp.exp(log_probs) + epsilon / n_actions)


def td_errors(dueling: Any, target: Any, memory: Memory, market: Market, config: DQNConfig) -> tuple[Array, Array]:
    """Targets y and TD errors Q(seen, action) - y, in the shape of the memory's leaves."""
    rows = jax.tree.map(jnp.ravel, memory)
    q = networks.dueling(config).evaluate(dueling, rows.seen.observe(market, config.env))
    next_obs = rows.then.observe(market, config.env)
    y = bellman_targets(dueling, target, next_obs, rows.reward, rows.discount, config)
    _, errors = pk.huber_td_loss(q, rows.action, y, backend=config.backend)
    return y.reshape(memory.action.shape), errors.reshape(memory.action.shape)


def bellman_targets(
    dueling: Any, target: Any, next_obs: Array, rewards: Array, discounts: Array, config: DQNConfig
) -> Array:
    """Y = r + discount max_a Q_target(s', a) `[B]`; with `double`, the action is the online network's (van Hasselt et al. 2016).

    Args:
      dueling, target: weights of the online and the target network.
      next_obs: `[B, K]`.
      rewards, discounts: `[B]`, of the bundles.
      config: of the networks.
    """
    network = networks.dueling(config)
    online = network.evaluate(dueling, next_obs) if config.double else None
    return pk.bellman_target(network.evaluate(target, next_obs), rewards, discounts, online, backend=config.backend)
