"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347): losses and the update of one collection.

Knows nothing of markets: rows of experience and a function that gives their observations, so that any environment can be solved
with it. `train/ppo.py` puts it together with collection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

import pallas_kernels as pk
from jaxrl_trade import collectives, networks
from jaxrl_trade.agents.optimisation import flatten, mean_in_chunks, optimiser, shuffle, side_by_side
from jaxrl_trade.config import PPOConfig, PPOHypers

Array = jax.Array
Network = Any  # parameters of one network
Observations = Array | pk.Gathered  # `[B, D]`


@struct.dataclass
class Rows:
    """M rows of experience, each leaf `[M]` but for what was seen."""

    actions: Array  # int32
    log_probs: Array  # under the policy that acted
    values: Array  # at collection
    advantages: Array
    returns: Array
    seen: Any = None  # what the observations are made of, a pytree of `[M, ...]`


@struct.dataclass
class Learner:
    """Actor and critic with their optimisers."""

    actor: Network
    critic: Network
    actor_opt: Any
    critic_opt: Any


@struct.dataclass
class Losses:
    """Scalars of one minibatch."""

    actor_loss: Array
    value_loss: Array
    entropy: Array  # nats
    kl: Array  # of the old policy from the new one, nats
    clip_fraction: Array
    ratio_deviation: Array  # largest |ratio - 1|
    actor_grad_norm: Array  # before clipping
    critic_grad_norm: Array


def init(actor: Network, critic: Network) -> Learner:
    """A learner at its beginning."""
    start = optimiser(0.0, 1.0).init
    return Learner(actor=actor, critic=critic, actor_opt=start(actor), critic_opt=start(critic))


def actor_loss(
    actor: Network, obs: Observations, rows: Rows, hypers: PPOHypers, config: PPOConfig
) -> tuple[Array, dict[str, Array]]:
    """Clipped surrogate minus the entropy bonus, and what it measures; advantages come normalised."""
    outcome = networks.actor(config).policy_loss(
        actor, obs, rows.actions, rows.log_probs, rows.advantages, hypers.clip, hypers.entropy_coef
    )
    measures = {name: value for name, value in outcome._asdict().items() if name != "loss"}
    return outcome.loss, {"actor_loss": outcome.loss, **measures}


def value_loss(critic: Network, obs: Observations, rows: Rows, hypers: PPOHypers, config: PPOConfig) -> Array:
    """value_coef times the mean squared error to the returns; with `value_clip`, of the worse of the clipped and the free value."""
    value = networks.critic(config).evaluate(critic, obs)[..., 0]
    error = (value - rows.returns) ** 2
    if config.value_clip is not None:
        near = rows.values + jnp.clip(value - rows.values, -config.value_clip, config.value_clip)
        error = jnp.maximum(error, (near - rows.returns) ** 2)
    return hypers.value_coef * error.mean()


def update(
    learner: Learner,
    rows: Rows,
    observe: Callable[[Any], Observations],
    key: Array,
    hypers: PPOHypers,
    config: PPOConfig,
    axis: str | None = None,
) -> tuple[Learner, Losses]:
    """`epochs` passes of shuffled minibatches over one collection.

    Args:
      learner: actor, critic and optimiser states.
      rows: the collection; advantages as estimated, they are normalised here over the whole batch.
      observe: what was seen in B rows to their observations.
      key: of the shuffles.
      hypers: traced; learning_rate already scaled by the schedule.
      config: of the run.
      axis: that the experience is divided over, see `collectives`: gradients, advantages and losses are of all of it, and
        minibatch k is that of every program together. None: it is all here.

    Returns:
      The learner, and its losses: means over the minibatches that were not skipped, `ratio_deviation` of the very first.
    """
    joined, separate = side_by_side(dataclasses.replace(rows, advantages=normalise(rows.advantages, axis)))
    keys = jax.vmap(lambda k: collectives.own_key(k, axis))(jax.random.split(key, config.epochs))
    orders = jax.vmap(lambda k: shuffle(k, len(rows.actions), config.minibatches))(keys)
    actor, actor_opt, restore_actor = flatten(learner.actor, learner.actor_opt)
    critic, critic_opt, restore_critic = flatten(learner.critic, learner.critic_opt)
    flat = Learner(actor=actor, critic=critic, actor_opt=actor_opt, critic_opt=critic_opt)

    def trees(flat: Learner) -> Learner:
        actor, actor_opt = restore_actor(flat.actor, flat.actor_opt)
        critic, critic_opt = restore_critic(flat.critic, flat.critic_opt)
        return Learner(actor=actor, critic=critic, actor_opt=actor_opt, critic_opt=critic_opt)

    def step(carry: tuple[Learner, Array], index: Array) -> tuple[tuple[Learner, Array], tuple[Array, Array]]:
        learner, is_stopped = carry
        chosen = jax.lax.optimization_barrier([x[index] for x in joined])  # else XLA chooses for each column anew
        batch = separate(chosen)
        moved, losses = _minibatch_step(learner, trees, observe, batch, hypers, config, axis)
        if config.target_kl is not None:
            is_stopped = is_stopped | (collectives.mean(losses.kl, axis) > config.target_kl)
            moved = jax.tree.map(lambda new, old: jnp.where(is_stopped, old, new), moved, learner)
        return (moved, is_stopped), (jnp.stack(jax.tree.leaves(losses)), jnp.logical_not(is_stopped))

    batches = orders.reshape(-1, orders.shape[-1])
    (flat, _), (stacked, is_used) = jax.lax.scan(step, (flat, jnp.zeros((), bool)), batches)
    losses = Losses(*stacked.T)  # one array through the scan: eight would take a launch each
    used = is_used.at[0].set(True)  # the first minibatch is reported even if its KL stopped the update
    mean = collectives.mean(jax.tree.map(lambda x: jnp.sum(jnp.where(used, x, 0.0)) / used.sum(), losses), axis)
    deviation = collectives.largest(losses.ratio_deviation[0], axis)
    return trees(flat), dataclasses.replace(mean, ratio_deviation=deviation)


def normalise(advantages: Array, axis: str | None = None) -> Array:
    """(A - mean) / (population standard deviation + 1e-8), both of all programs' advantages."""
    mean, variance = collectives.mean(advantages.mean(), axis), collectives.variance(advantages, axis)
    return (advantages - mean) / (jnp.sqrt(variance) + 1e-8)


def _minibatch_step(
    learner: Learner,
    trees: Callable[[Learner], Learner],
    observe: Callable[[Any], Observations],
    rows: Rows,
    hypers: PPOHypers,
    config: PPOConfig,
    axis: str | None,
) -> tuple[Learner, Losses]:
    """One step of both networks, whose weights and optimiser states are vectors; `trees` gives them their layers.

    The losses are of this program's rows alone, the norms of the gradients of all rows.
    """

    def loss_of_actor(vector: Array) -> tuple[Array, dict[str, Array]]:
        actor = trees(dataclasses.replace(learner, actor=vector)).actor
        return actor_loss(actor, observe(rows.seen), rows, hypers, config)

    def loss_of_critic(vector: Array, rows: Rows) -> Array:
        critic = trees(dataclasses.replace(learner, critic=vector)).critic
        return value_loss(critic, observe(rows.seen), rows, hypers, config)

    actor_gradient, report = jax.grad(loss_of_actor, has_aux=True)(learner.actor)
    loss, critic_gradient = mean_in_chunks(lambda rows: jax.value_and_grad(loss_of_critic)(learner.critic, rows), rows)
    # before they are clipped: one program with all rows would clip their mean, too
    actor_gradient, critic_gradient = collectives.mean((actor_gradient, critic_gradient), axis)
    adam = optimiser(hypers.learning_rate, hypers.max_grad_norm)
    actor_updates, actor_opt = adam.update(actor_gradient, learner.actor_opt)
    critic_updates, critic_opt = adam.update(critic_gradient, learner.critic_opt)
    moved = Learner(
        actor=optax.apply_updates(learner.actor, actor_updates),
        critic=optax.apply_updates(learner.critic, critic_updates),
        actor_opt=actor_opt,
        critic_opt=critic_opt,
    )
    return moved, Losses(
        value_loss=loss,
        actor_grad_norm=optax.tree.norm(actor_gradient),
        critic_grad_norm=optax.tree.norm(critic_gradient),
        **report,
    )
