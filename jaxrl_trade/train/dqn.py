"""DQN on a Market: one `update_step` (collect, replay, learn, measure), shared by the pure `make_train_dqn` and the host's loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_trade import collectives, env, replay
from jaxrl_trade.agents import curiosity, dqn
from jaxrl_trade.agents.optimisation import shuffle
from jaxrl_trade.config import DQNConfig, DQNHypers
from jaxrl_trade.market import Market
from jaxrl_trade.networks import DQNParams, init_dqn
from jaxrl_trade.replay import Replay
from jaxrl_trade.rollout import Memory, collect_dqn, hoisted
from jaxrl_trade.rollout.memory import Reference
from jaxrl_trade.train import measures, pure

Array = jax.Array

# What a NaN is traced to, in the order of computation: the first of these that is not finite is its origin.
TERMS = (
    "equity of the account",
    "curiosity bonus",
    "rewards",
    "TD errors of the dueling network",
    "loss of the dueling network",
    "loss of the curiosity model",
    "weights",
)


@struct.dataclass
class DQNState:
    """All that a run needs to go on."""

    learner: dqn.Learner
    curiosity: Any  # weights of the curiosity model
    curiosity_opt: Any
    replay: Replay  # of `Memory` rows
    env: env.EnvState
    key: Array
    update: Array  # int32, updates done

    @property
    def params(self) -> DQNParams:
        """The weights of the two networks."""
        return DQNParams(dueling=self.learner.dueling, curiosity=self.curiosity)

    @classmethod
    def layout(cls, whole: Any, share: Any) -> DQNState:
        """Of several programs: what each holds `whole` and alike, and what holds the `share` of its own episodes."""
        held = Replay(rows=share, sums=share, next=whole, size=whole)  # one each, all filled alike
        return cls(learner=whole, curiosity=whole, curiosity_opt=whole, replay=held, env=share, key=whole, update=whole)


@struct.dataclass
class DQNMetrics:
    """Scalars of one update."""

    episode_return: Array  # fraction of initial_capital, mean of the episodes that ended (0 when none did)
    episodes: Array  # that ended
    reward: Array  # mean per step, reward units
    equity: Array  # mean over all steps, fraction of initial_capital
    cost: Array  # cost + slippage, mean per step, fraction of initial_capital
    exposure: Array  # mean |position| / max_position
    epsilon: Array  # probability of a random action
    importance: Array  # exponent of the importance weights
    replay: Array  # fraction of the replay that is filled
    q: Array  # mean Q of the actions taken, reward units
    explained_variance: Array  # 1 - var(y - Q) / var(y), over the collection
    loss: Array  # mean over the gradient steps; 0 while there are none
    td_error: Array  # mean |Q - y| in the batches, reward units
    curiosity_loss: Array
    grad_norm: Array  # before clipping
    nonfinite: Array  # index of the first of TERMS that is not finite, or -1


def init_state(key: Array, market: Market, config: DQNConfig, axis: str | None = None) -> DQNState:
    """Fresh weights, optimisers and episodes, and an empty replay; `axis` is that of `update_step`."""
    key_params, key_starts, key_run = jax.random.split(key, 3)
    params = init_dqn(key_params, config, market.n_features)
    starts = collectives.share(
        lambda whole: market.draw_starts(key_starts, whole, config.env.episode_length), (config.n_episodes,), 0, axis
    )
    return DQNState(
        learner=dqn.init(params.dueling),
        curiosity=params.curiosity,
        curiosity_opt=curiosity.optimiser(0.0).init(params.curiosity),
        replay=replay.init(_row(market), config.replay_capacity),
        env=env.reset(market, config.env, starts),
        key=key_run,
        update=jnp.zeros((), jnp.int32),
    )


def update_step(
    state: DQNState,
    hypers: DQNHypers,
    market: Market,
    config: DQNConfig,
    actions: Array | None = None,
    axis: str | None = None,
) -> tuple[DQNState, DQNMetrics]:
    """One collection into the replay and the updates of both networks.

    Args:
      state: weights, optimisers, replay and N episodes.
      hypers: traced.
      market: the bars.
      config: of the run, or of this program's share of it.
      actions: `[L, N]` int32, forces the actions (tests).
      axis: name of a mapped axis of programs like this one, each with N episodes of the run and their replay; they take the step
        together, see `collectives`. None: the run is here.
    """
    key, key_collect, key_update, key_curiosity = jax.random.split(state.key, 4)
    epsilon = dqn.epsilon(state.update, hypers, config)
    beta = dqn.importance(state.update, hypers, config)
    experience, env_state = collect_dqn(
        state.params, market, state.env, key_collect, config, hypers, state.learner.target, epsilon, actions, axis=axis
    )
    rows, errors = jax.tree.map(jnp.ravel, (experience.memory, experience.td_errors))
    filled = replay.add(state.replay, rows, errors, hypers.priority_exponent)
    learner, filled, losses = _learn(state.learner, filled, market, key_update, beta, hypers, config, axis)
    t = experience.transitions
    model, model_opt, model_loss = curiosity.update(
        state.curiosity,
        state.curiosity_opt,
        market,
        t.bar.reshape(-1),
        hoisted.directions(t, config).reshape(-1),
        shuffle(collectives.own_key(key_curiosity, axis), t.bar.size, config.gradient_steps),
        hypers.curiosity_learning_rate,
        config,
        axis,
    )
    after = DQNState(
        learner=learner,
        curiosity=model,
        curiosity_opt=model_opt,
        replay=filled,
        env=env_state,
        key=key,
        update=state.update + 1,
    )
    terms = (
        t.equity_after,
        t.curiosity_bonus,
        experience.rewards,
        experience.td_errors,
        losses.loss,
        model_loss,
        (learner.dueling, learner.target, model),
    )
    return after, DQNMetrics(
        **measures.account(experience, axis),
        epsilon=epsilon,
        importance=beta,
        replay=filled.size / config.replay_capacity,
        q=collectives.mean((experience.targets + experience.td_errors).mean(), axis),
        explained_variance=measures.explained_variance(
            experience.targets + experience.td_errors, experience.targets, axis
        ),
        loss=losses.loss,
        td_error=losses.td_error,
        curiosity_loss=model_loss,
        grad_norm=losses.grad_norm,
        nonfinite=measures.first_nonfinite(terms, axis),
    )


def regroup(state: DQNState, before: int, after: int) -> DQNState:
    """The state of `before` programs as `after` hold it together: the replay is dealt out anew."""
    if before == after:
        return state
    return dataclasses.replace(state, replay=replay.regroup(state.replay, before, after))


def make_train_dqn(
    config: DQNConfig, market: Market
) -> Callable[[Array, DQNHypers | None], tuple[DQNState, DQNMetrics]]:
    """A pure `train(key, hypers=None) -> state, metrics [updates]`; jit it, or vmap it over keys and hypers.

    Raises:
      ValueError: arguments of another kind, or a market without a valid start for the config's episodes.
    """
    return pure.make_train(DQNConfig, init_state, update_step, config, market)


def _learn(
    learner: dqn.Learner,
    filled: Replay,
    market: Market,
    key: Array,
    beta: Array,
    hypers: DQNHypers,
    config: DQNConfig,
    axis: str | None,
) -> tuple[dqn.Learner, Replay, dqn.Losses]:
    """The gradient steps, once the replay holds `learning_starts` rows."""

    def gather(rows: Memory) -> dqn.Batch:
        return dqn.Batch(
            obs=rows.seen.observe(market, config.env),
            actions=rows.action,
            rewards=rows.reward,
            discounts=rows.discount,
            next_obs=rows.then.observe(market, config.env),
        )

    def learn(learner: dqn.Learner, filled: Replay) -> tuple[dqn.Learner, Replay, dqn.Losses]:
        return dqn.update(learner, filled, gather, key, beta, hypers, config, axis)

    def wait(learner: dqn.Learner, filled: Replay) -> tuple[dqn.Learner, Replay, dqn.Losses]:
        zero = jnp.zeros((), filled.sums[0].dtype)
        return learner, filled, dqn.Losses(loss=zero, td_error=zero, grad_norm=zero)

    return jax.lax.cond(filled.size >= config.learning_starts, learn, wait, learner, filled)


def _row(market: Market) -> Memory:
    """A row of the replay, for its shapes and dtypes."""
    index, number = jnp.zeros((), jnp.int32), jnp.zeros((), market.close.dtype)
    observed = Reference(bar=index, equity=number, position=number)
    return Memory(seen=observed, action=index, reward=number, discount=number, then=observed)
