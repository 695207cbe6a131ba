"""Double and plain DQN with prioritised replay (Mnih et al. 2015; Schaul et al. 2016): the loss and a collection's gradient steps.

Knows nothing of markets: a replay of rows, and a function that makes batches of them. `train/dqn.py` puts it together with
collection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

import pallas_kernels as pk
from jaxrl_trade import collectives, networks
from jaxrl_trade import replay as replays
from jaxrl_trade.agents.optimisation import optimiser
from jaxrl_trade.config import DQNConfig, DQNHypers, Scalar
from jaxrl_trade.networks.precision import plain_products
from jaxrl_trade.replay import Replay
from jaxrl_trade.rollout.dqn import bellman_targets

Array = jax.Array
Network = Any  # parameters of one network


class Batch(NamedTuple):
    """B rows to learn from."""

    obs: Array  # [B, K]
    actions: Array  # [B] int32
    rewards: Array  # [B], of the bundles
    discounts: Array  # [B], gamma^m, 0 where the last step of the bundle terminated
    next_obs: Array  # [B, K], after the last step of the bundle


@struct.dataclass
class Learner:
    """The online and the target network, and the optimiser of the former."""

    dueling: Network
    target: Network
    opt: Any


@struct.dataclass
class Losses:
    """Scalars of one gradient step, or means over several."""

    loss: Array
    td_error: Array  # mean |Q - y|, reward units
    grad_norm: Array  # before clipping


def init(dueling: Network) -> Learner:
    """A learner at its beginning; the target network equals the online one."""
    return Learner(dueling=dueling, target=jax.tree.map(jnp.copy, dueling), opt=optimiser(0.0, 1.0).init(dueling))


def td_loss(
    dueling: Network, target: Network, batch: Batch, weights: Array, hypers: DQNHypers, config: DQNConfig
) -> tuple[Array, Array]:
    """The mean of weight x Huber(Q(s, a) - y), and the TD errors `[B]`.

    y = r + discount max_a Q_target(s', a), or with `double` Q_target of the online network's best action.
    """
    network = networks.dueling(config)
    if isinstance(network, networks.Own):
        return _td_loss_of_own(network, dueling, target, batch, weights, hypers, config)
    h_v, h_a = network.streams(dueling, batch.obs)
    if config.double:
        online = jax.lax.stop_gradient(dueling)
        targets = bellman_targets(online, target, batch.next_obs, batch.rewards, batch.discounts, config)
        th_v = th_a = None
    else:
        targets = None
        th_v, th_a = network.streams(target, batch.next_obs)
    with plain_products(config.compute_dtype):
        return pk.dueling_q_td_loss(
            networks.heads(dueling),
            networks.heads(target),
            h_v,
            h_a,
            th_v,
            th_a,
            batch.actions,
            batch.rewards,
            batch.discounts,
            weights,
            delta=hypers.huber_delta,
            targets=targets,
            backend=config.backend,
        )


def _td_loss_of_own(
    network: networks.Own,
    params: Network,
    target: Network,
    batch: Batch,
    weights: Array,
    hypers: DQNHypers,
    config: DQNConfig,
) -> tuple[Array, Array]:
    """`td_loss` of a network without the streams of a dueling one."""
    online = jax.lax.stop_gradient(params)
    targets = bellman_targets(online, target, batch.next_obs, batch.rewards, batch.discounts, config)
    q = network.evaluate(params, batch.obs)
    losses, errors = pk.huber_td_loss(q, batch.actions, targets, hypers.huber_delta, weights, config.backend)
    return losses.mean(), jax.lax.stop_gradient(errors)


def update(
    learner: Learner,
    replay: Replay,
    gather: Callable[[Any], Batch],
    key: Array,
    beta: Scalar,
    hypers: DQNHypers,
    config: DQNConfig,
    axis: str | None = None,
) -> tuple[Learner, Replay, Losses]:
    """`config.gradient_steps` steps on batches from the replay; each renews its rows' priorities and moves the target network.

    Args:
      learner: networks and optimiser.
      replay: what to learn from.
      gather: rows of the replay to a batch.
      key: of the draws.
      beta: exponent of the importance weights.
      hypers: traced.
      config: of the run.
      axis: that replay and batches are divided over, see `collectives`: every program draws an equal part of each batch from
        its own replay. None: they are here.

    Returns:
      The learner, the replay, and the losses' means over the steps.
    """

    def step(carry: tuple[Learner, Replay], key: Array) -> tuple[tuple[Learner, Replay], Losses]:
        learner, replay = carry
        drawn = replays.sample(replay, collectives.own_key(key, axis), config.batch_size, beta, axis)
        learner, errors, losses = gradient_step(learner, gather(drawn.rows), drawn.weights, hypers, config, axis)
        replay = replays.set_priorities(replay, drawn.index, errors, hypers.priority_exponent)
        return (learner, replay), losses

    (learner, replay), losses = jax.lax.scan(step, (learner, replay), jax.random.split(key, config.gradient_steps))
    return learner, replay, jax.tree.map(jnp.mean, losses)


def gradient_step(
    learner: Learner, batch: Batch, weights: Array, hypers: DQNHypers, config: DQNConfig, axis: str | None = None
) -> tuple[Learner, Array, Losses]:
    """The learner after one step on a batch, the TD errors `[B]` before it, and its losses.

    Along `axis` every program has an equal part of the batch; the step and the losses are those of all of it.
    """
    (loss, errors), gradient = jax.value_and_grad(td_loss, has_aux=True)(
        learner.dueling, learner.target, batch, weights, hypers, config
    )
    gradient, loss, td_error = collectives.mean((gradient, loss, jnp.abs(errors).mean()), axis)
    updates, opt = optimiser(hypers.learning_rate, hypers.max_grad_norm).update(gradient, learner.opt)
    dueling = optax.apply_updates(learner.dueling, updates)
    moved = Learner(dueling=dueling, target=soft_update(learner.target, dueling, hypers.tau), opt=opt)
    losses = Losses(loss=loss, td_error=td_error, grad_norm=optax.tree.norm(gradient))
    return moved, errors, losses


def soft_update(target: Network, online: Network, tau: Scalar) -> Network:
    """Tau theta + (1 - tau) theta' for every weight."""
    return optax.incremental_update(online, target, tau)


def epsilon(update: Array, hypers: DQNHypers, config: DQNConfig) -> Array:
    """Probability of a random action at an update: a line from start to end over the first `epsilon_fraction` of the run."""
    ramp = jnp.maximum(hypers.epsilon_fraction * config.updates, 1.0)
    return _line(update / ramp, hypers.epsilon_start, hypers.epsilon_end)


def importance(update: Array, hypers: DQNHypers, config: DQNConfig) -> Array:
    """Exponent beta of the importance weights at an update: a line from start to end over the whole run."""
    return _line(update / config.updates, hypers.importance_start, hypers.importance_end)


def _line(progress: Array, start: Scalar, end: Scalar) -> Array:
    return start + (end - start) * jnp.clip(progress, 0.0, 1.0)
