"""PPO on a Market: one `update_step` (collect, update, measure), shared by the pure `make_train_ppo` and the host's loop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

import pallas_kernels as pk
from jaxrl_trade import collectives, env
from jaxrl_trade.agents import curiosity, ppo
from jaxrl_trade.agents.optimisation import shuffle
from jaxrl_trade.config import Backend, PPOConfig, PPOHypers, Scalar
from jaxrl_trade.market import Market
from jaxrl_trade.networks import PPOParams, init_ppo
from jaxrl_trade.rollout import Experience, collect_ppo, hoisted
from jaxrl_trade.rollout.experience import account_values
from jaxrl_trade.train import measures, pure

Array = jax.Array

# What a NaN is traced to, in the order of computation: the first of these that is not finite is its origin.
TERMS = (
    "log_probs of the actor",
    "equity of the account",
    "curiosity bonus",
    "rewards",
    "values of the critic",
    "advantages",
    "loss of the actor",
    "loss of the critic",
    "loss of the curiosity model",
    "weights",
)


@struct.dataclass
class PPOState:
    """All that a run needs to go on."""

    learner: ppo.Learner
    curiosity: Any  # weights of the curiosity model
    curiosity_opt: Any
    env: env.EnvState
    key: Array
    update: Array  # int32, updates done

    @property
    def params(self) -> PPOParams:
        """The weights of the three networks."""
        return PPOParams(actor=self.learner.actor, critic=self.learner.critic, curiosity=self.curiosity)

    @classmethod
    def layout(cls, whole: Any, share: Any) -> PPOState:
        """Of several programs: what each holds `whole` and alike, and what holds the `share` of its own episodes."""
        return cls(learner=whole, curiosity=whole, curiosity_opt=whole, env=share, key=whole, update=whole)


@struct.dataclass
class PPOMetrics:
    """Scalars of one update."""

    episode_return: Array  # fraction of initial_capital, mean of the episodes that ended (0 when none did)
    episodes: Array  # that ended
    reward: Array  # mean per step, reward units
    equity: Array  # mean over all steps, fraction of initial_capital
    cost: Array  # cost + slippage, mean per step, fraction of initial_capital
    exposure: Array  # mean |position| / max_position
    entropy: Array  # nats
    kl: Array  # nats
    clip_fraction: Array
    explained_variance: Array  # 1 - var(return - value) / var(return)
    actor_loss: Array
    value_loss: Array
    curiosity_loss: Array
    actor_grad_norm: Array  # before clipping
    critic_grad_norm: Array
    nonfinite: Array  # index of the first of TERMS that is not finite, or -1


def init_state(key: Array, market: Market, config: PPOConfig, axis: str | None = None) -> PPOState:
    """Fresh weights, optimisers and episodes; `axis` is that of `update_step`."""
    key_params, key_starts, key_run = jax.random.split(key, 3)
    params = init_ppo(key_params, config, market.n_features)
    starts = collectives.share(
        lambda whole: market.draw_starts(key_starts, whole, config.env.episode_length), (config.n_episodes,), 0, axis
    )
    return PPOState(
        learner=ppo.init(params.actor, params.critic),
        curiosity=params.curiosity,
        curiosity_opt=curiosity.optimiser(0.0).init(params.curiosity),
        env=env.reset(market, config.env, starts),
        key=key_run,
        update=jnp.zeros((), jnp.int32),
    )


def update_step(
    state: PPOState,
    hypers: PPOHypers,
    market: Market,
    config: PPOConfig,
    actions: Array | None = None,
    backend: Backend = "auto",
    axis: str | None = None,
) -> tuple[PPOState, PPOMetrics]:
    """One collection and the updates of the three networks on it.

    Args:
      state: weights, optimisers and N episodes.
      hypers: traced.
      market: the bars.
      config: of the run, or of this program's share of it.
      actions: `[L, N]` int32, forces the actions (tests).
      backend: of the collection.
      axis: name of a mapped axis of programs like this one, each with N episodes of the run; they take the step together, see
        `collectives`. None: the run is here.
    """
    key, key_collect, key_update, key_curiosity = jax.random.split(state.key, 4)
    experience, env_state = collect_ppo(
        state.params, market, state.env, key_collect, config, hypers, backend, actions, axis=axis
    )
    rate = scheduled(state.update, config)
    learner, losses = ppo.update(
        state.learner,
        _rows(experience),
        lambda seen: pk.Gathered(market.features, *seen),  # a minibatch's features, never those of the whole collection
        key_update,
        dataclasses.replace(hypers, learning_rate=hypers.learning_rate * rate),
        config,
        axis,
    )
    t = experience.transitions
    model, model_opt, model_loss = curiosity.update(
        state.curiosity,
        state.curiosity_opt,
        market,
        t.bar.reshape(-1),
        hoisted.directions(t, config).reshape(-1),
        shuffle(collectives.own_key(key_curiosity, axis), t.bar.size, config.minibatches),
        hypers.curiosity_learning_rate * rate,
        config,
        axis,
    )
    after = PPOState(
        learner=learner,
        curiosity=model,
        curiosity_opt=model_opt,
        env=env_state,
        key=key,
        update=state.update + 1,
    )
    return after, measure(experience, losses, model_loss, after.params, axis)


def make_train_ppo(
    config: PPOConfig, market: Market
) -> Callable[[Array, PPOHypers | None], tuple[PPOState, PPOMetrics]]:
    """A pure `train(key, hypers=None) -> state, metrics [updates]`; jit it, or vmap it over keys and hypers.

    Raises:
      ValueError: arguments of another kind, or a market without a valid start for the config's episodes.
    """
    return pure.make_train(PPOConfig, init_state, update_step, config, market)


run_updates = functools.partial(pure.run_updates, update_step)  # for a state and a market that are traced themselves


def scheduled(update: Array, config: PPOConfig) -> Scalar:
    """The learning rates' factor at an update: 1, a line to 0 over `config.updates`, or half a cosine to 0."""
    progress = jnp.minimum(update / config.updates, 1.0)
    match config.schedule:
        case "linear":
            return 1.0 - progress
        case "cosine":
            return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
        case _:
            return 1.0


def measure(
    experience: Experience, losses: ppo.Losses, curiosity_loss: Array, params: PPOParams, axis: str | None
) -> PPOMetrics:
    """The update's scalars."""
    t = experience.transitions
    terms = (
        t.log_prob,
        t.equity_after,
        t.curiosity_bonus,
        experience.rewards,
        experience.values,
        experience.advantages,
        losses.actor_loss,
        losses.value_loss,
        curiosity_loss,
        params,
    )
    return PPOMetrics(
        **measures.account(experience, axis),
        entropy=losses.entropy,
        kl=losses.kl,
        clip_fraction=losses.clip_fraction,
        explained_variance=measures.explained_variance(experience.values, experience.returns, axis),
        actor_loss=losses.actor_loss,
        value_loss=losses.value_loss,
        curiosity_loss=curiosity_loss,
        actor_grad_norm=losses.actor_grad_norm,
        critic_grad_norm=losses.critic_grad_norm,
        nonfinite=measures.first_nonfinite(terms, axis),
    )


def _rows(experience: Experience) -> ppo.Rows:
    t = experience.transitions
    rows = ppo.Rows(
        actions=t.action,
        log_probs=t.log_prob,
        values=experience.values,
        advantages=experience.advantages,
        returns=experience.returns,
    )
    rows = jax.tree.map(lambda x: x.reshape(-1), rows)
    seen = t.bar.reshape(-1), account_values(t, experience.env).reshape(t.bar.size, -1)
    return dataclasses.replace(rows, seen=seen)
