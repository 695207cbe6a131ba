"""What scripts/benchmark.py compiles: the ways of collecting, their passes, a PPO iteration, the chip's ceilings."""

import argparse
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmark_timing import Program, World

import pallas_kernels as pk
from jaxrl_trade import env, networks
from jaxrl_trade.advantages import gae
from jaxrl_trade.agents import curiosity, ppo
from jaxrl_trade.config import Backend, ComputeDtype, EnvConfig, PPOConfig
from jaxrl_trade.env import diversity
from jaxrl_trade.market import Market
from jaxrl_trade.networks import PPOParams, init_ppo
from jaxrl_trade.rollout import Experience, Transitions, collect_ppo, hoisted, lanes, sequential
from jaxrl_trade.train.ppo import PPOState, update_step
from pallas_kernels.rollout_plan import Tiles

Array = jax.Array

FEATURES = 51
ACTOR, CRITIC, CURIOSITY = (54, 128, 64, 45), (54, 512, 384, 256, 128, 64, 1), (35, 64, 32)  # widths, as shipped
BOUND = {"gpu": (8192, 1 << 28), "cpu": (256, 1 << 18)}  # matrix size and floats of the ceilings' operands
IN_LOOP, HOISTED, FUSED = "all in the loop, scan", "hoisted, scan", "fused"
PPO_ITERATION = "PPO iteration"
TILES = (
    Tiles(lanes=1, warps=2),
    Tiles(lanes=1, warps=4),
    Tiles(lanes=1, warps=8),
    *(
        Tiles(lanes=size, warps=warps, columns=columns)
        for size, warps, columns in (
            (8, 2, 64),
            (8, 4, 32),
            (8, 4, 64),
            (16, 2, 32),
            (16, 4, 32),
            (16, 4, 64),
            (32, 4, 32),
            (32, 4, 64),
            (64, 4, 32),
            (64, 4, 128),
            (64, 8, 32),
            (128, 4, 128),
            (128, 8, 32),
        )
    ),
)


def random_market(n_bars: int) -> Market:
    """Bars whose close wanders by 0.4 % a step, with features that mean nothing."""
    random = np.random.default_rng(0)
    close = 100.0 * np.exp(np.cumsum(0.004 * random.normal(size=n_bars)))
    return Market.from_arrays(random.normal(size=(n_bars, FEATURES)), close)


def random_weights() -> PPOParams:
    """Weights that keep the size of what goes through them; no orthogonal initialisation, which takes long to compile."""
    random = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda key: init_ppo(key, PPOConfig(), FEATURES), jax.random.key(0))

    def draw(leaf: Any) -> Array:
        scale = leaf.shape[0] ** -0.5 if len(leaf.shape) == 2 else 0.1
        return jnp.asarray(scale * random.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(draw, shapes)


def starting_world(market: Market, weights: PPOParams, n_episodes: int) -> World:
    """What stands before any program has run."""
    return {"market": market, "weights": weights, "key": jax.random.key(n_episodes)}


def ceilings(platform: str, dtypes: Sequence[ComputeDtype]) -> list[Program]:
    """A large matrix product in each dtype and a pass over memory."""
    size, floats = BOUND.get(platform, BOUND["cpu"])

    def operands(key: Array) -> tuple[Any, ...]:
        a, b = jax.random.normal(key, (2, size, size))
        return a, b, a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), jax.random.normal(key, (floats,))

    def product(precision: Any) -> Callable[[Array, Array], Array]:
        return lambda a, b: jnp.matmul(a, b, precision=precision)

    ways: dict[ComputeDtype, tuple[Any, slice]] = {
        "float32": (jax.lax.Precision.HIGHEST, slice(0, 2)),
        "tf32": (jax.lax.Precision.DEFAULT, slice(0, 2)),
        "bfloat16": (jax.lax.Precision.DEFAULT, slice(2, 4)),
    }
    found = [
        Program(
            name="operands",
            lanes=0,
            dtype=None,
            function=operands,
            inputs=lambda w: (w["key"],),
            keep="operands",
            is_timed=False,
        )
    ]
    for dtype in dtypes:
        precision, which = ways[dtype]
        inputs = lambda w, which=which: w["operands"][which]  # noqa: E731
        found.append(
            Program(
                name="product", lanes=0, dtype=dtype, function=product(precision), inputs=inputs, flop=2.0 * size**3
            )
        )
    found.append(
        Program(name="copy", lanes=0, dtype=None, function=lambda x: x + 1.0, inputs=lambda w: w["operands"][4:])
    )
    return found


def programs(n: int, options: argparse.Namespace) -> Iterator[Program]:
    """Everything that is compiled for N episodes, in an order in which each finds what it takes."""
    rows, bars = n * options.steps, options.bars
    yield begin_program(configured(options, n, options.dtypes[0]))
    per_row = actor_flop(rows, bars), critic_flop(rows + n), curiosity_flop(min(rows, 3 * bars))
    for dtype in options.dtypes:
        config = configured(options, n, dtype)
        ways: dict[str, Callable[..., Any]] = {
            IN_LOOP: functools.partial(collect_in_loop, config=config),
            HOISTED: collecting(config, "xla"),
            FUSED: collecting(config, "auto"),
        }
        for name, function in ways.items():
            yield Program(
                name=name,
                lanes=n,
                dtype=dtype,
                function=function,
                inputs=lambda w: (w["weights"], w["market"], w["state"].env, w["key"]),
                flop=sum(per_row),
                keep=f"{name} {dtype}",
                kept=lambda results: on_host(results[0]),
            )
        yield from passes(n, config, per_row, shared=dtype == options.dtypes[0])
        if n in options.trained:
            yield Program(
                name=PPO_ITERATION,
                lanes=n,
                dtype=dtype,
                function=lambda state, market, config=config: update_step(state, config.hypers, market, config),
                inputs=lambda w: (w["state"], w["market"]),
                flop=sum(per_row)
                + config.epochs * (training_flop(ACTOR, rows) + training_flop(CRITIC, rows))
                + training_flop(CURIOSITY, rows),
            )


def passes(n: int, config: PPOConfig, flop: tuple[float, ...], shared: bool) -> Iterator[Program]:
    """The passes of the fused path; those without matrix products only where `shared`."""
    rules, dtype = config.env, config.compute_dtype

    def rollout(actor: Any, market: Market, account: Any, draws: tuple[Array, Array]) -> Any:
        return sequential.rollout_actor(actor, market, account, *draws, config, "auto")

    def account(steps: pk.Steps, state: env.EnvState, market: Market) -> Transitions:
        return hoisted.transitions(steps, state.account, state.window, market, config, "auto")

    def penalties(t: Transitions, window: Array) -> Array:
        return diversity.penalties(t.action, t.step, window, rules.n_actions, t.base.dtype, "auto")

    def rewards(t: Transitions, model: Any, market: Market) -> tuple[Transitions, Array]:
        return hoisted.rewarded(t, model, market, config.hypers.reward, config)

    def critic(critic: Any, t: Transitions, market: Market) -> tuple[Array, Array]:
        return hoisted.values(critic, t, market, config, "auto")

    def advantages(rewarded: tuple[Transitions, Array], values: tuple[Array, Array]) -> tuple[Array, Array]:
        t, r = rewarded
        hypers = config.hypers
        return gae(r, *values, t.terminated | t.truncated, t.truncated, hypers.gamma, hypers.gae_lambda, "auto")

    def make(
        name: str, function: Callable[..., Any], inputs: Callable[[World], tuple[Any, ...]], **more: Any
    ) -> Program:
        return Program(name=f"  {name}", lanes=n, function=function, inputs=inputs, **more)

    if shared:
        yield draws_program(config)
    yield make(
        "rollout",
        rollout,
        lambda w: (w["weights"].actor, w["market"], w["state"].env.account, w["draws"]),
        keep="steps",
        dtype=dtype,
        flop=flop[0],
    )
    if shared:
        inputs = lambda w: (w["steps"][1], w["state"].env, w["market"])  # noqa: E731
        yield make("account and diversity", account, inputs, keep="transitions", dtype=None)
        yield make("of which diversity", penalties, lambda w: (w["transitions"], w["state"].env.window), dtype=None)
    yield make(
        "curiosity and reward",
        rewards,
        lambda w: (w["transitions"], w["weights"].curiosity, w["market"]),
        keep="rewarded",
        dtype=dtype,
        flop=flop[2],
    )
    yield make(
        "critic",
        critic,
        lambda w: (w["weights"].critic, w["transitions"], w["market"]),
        keep="values",
        dtype=dtype,
        flop=flop[1],
    )
    if shared:
        yield make("advantages", advantages, lambda w: (w["rewarded"], w["values"]), dtype=None)


def tile_programs(n: int, options: argparse.Namespace) -> Iterator[Program]:
    """The rollout kernel with every tile size that it may be given."""
    plain = configured(options, n, options.dtypes[0])
    yield begin_program(plain)
    yield draws_program(plain)
    for dtype, tiles in itertools.product(options.dtypes, TILES):
        yield Program(
            name=f"{tiles.lanes} lanes, {tiles.warps} warps, {tiles.columns} columns",
            lanes=n,
            dtype=dtype,
            function=functools.partial(tiled_rollout, config=configured(options, n, dtype), tiles=tiles),
            inputs=lambda w: (w["weights"].actor, w["market"], w["state"].env.account, w["draws"]),
            flop=actor_flop(n * options.steps, options.bars),
        )


def tiled_rollout(
    actor: Any, market: Market, account: Any, draws: tuple[Array, Array], config: PPOConfig, tiles: Tiles
) -> Any:
    """`sequential.rollout_actor` with the kernel cut in this way."""
    return pk.rollout(
        lanes.environment(config.env),
        networks.actor(config).split(actor, market.features, lanes.constants(config.env)),
        lanes.tables(market),
        config.env.execution.arrays(market.close.dtype),
        account,
        *draws,
        negative_slope=config.negative_slope,
        products=config.compute_dtype,
        backend="pallas",
        tiles=tiles,
    )


def configured(options: argparse.Namespace, n: int, dtype: ComputeDtype) -> PPOConfig:
    """Preset plan with N episodes: 4 minibatches an epoch, from 1,024 episodes on one for every 256 of them, at most 32."""
    return PPOConfig(
        env=EnvConfig(episode_length=options.steps),
        n_episodes=n,
        timesteps_per_episode=options.steps,
        compute_dtype=dtype,
        minibatches=math.gcd(n * options.steps, min(32, max(4, n // 256))),
    )


def begin_program(config: PPOConfig) -> Program:
    """Where all that is measured begins: fresh episodes and optimisers, and the given weights."""

    def begin(key: Array, weights: PPOParams, market: Market) -> PPOState:
        starts = market.draw_starts(key, (config.n_episodes,), config.env.episode_length)
        return PPOState(
            learner=ppo.init(weights.actor, weights.critic),
            curiosity=weights.curiosity,
            curiosity_opt=curiosity.optimiser(0.0).init(weights.curiosity),
            env=env.reset(market, config.env, starts),
            key=key,
            update=jnp.zeros((), jnp.int32),
        )

    return Program(
        name="begin",
        lanes=config.n_episodes,
        dtype=None,
        function=begin,
        inputs=lambda w: (w["key"], w["weights"], w["market"]),
        keep="state",
        is_timed=False,
    )


def draws_program(config: PPOConfig) -> Program:
    """Uniform numbers and restart bars, as `collect_ppo` draws them."""
    shape = (config.timesteps_per_episode, config.n_episodes)

    def draws(key: Array, market: Market) -> tuple[Array, Array]:
        uniforms, restarts = jax.random.split(key, 2)
        return jax.random.uniform(uniforms, shape), market.draw_starts(restarts, shape, config.env.episode_length)

    return Program(
        name="  draws",
        lanes=config.n_episodes,
        dtype=None,
        function=draws,
        inputs=lambda w: (w["key"], w["market"]),
        keep="draws",
    )


def collecting(config: PPOConfig, backend: Backend) -> Callable[..., tuple[Experience, env.EnvState]]:
    """`collect_ppo` of (weights, market, state, key)."""
    return lambda weights, market, state, key: collect_ppo(weights, market, state, key, config, backend=backend)


def collect_in_loop(
    weights: PPOParams, market: Market, state: env.EnvState, key: Array, config: PPOConfig
) -> tuple[Experience, env.EnvState]:
    """The same experience by one scan whose step does everything but the advantages, as one writes it down."""
    rules, scales = config.env, config.hypers.reward
    shape = (config.timesteps_per_episode, config.n_episodes)
    key_uniforms, key_restarts = jax.random.split(key, 2)
    restarts = market.draw_starts(key_restarts, shape, rules.episode_length)
    actor, critic = networks.actor(config), networks.critic(config)
    direction = jnp.sign(rules.execution.arrays().exposure).astype(jnp.int32) + 1

    def value(state: env.EnvState) -> Array:
        return critic.evaluate(weights.critic, env.observe(state, market, rules), "xla")[..., 0]

    def step(state: env.EnvState, draw: tuple[Array, Array]) -> tuple[env.EnvState, tuple[Transitions, Array, Array]]:
        account = state.account
        logits = actor.evaluate(weights.actor, env.observe(state, market, rules), "xla")
        action = pk.sample(logits, draw[0])
        after, out = env.step(state, action, draw[1], market, rules)
        errors = hoisted.prediction_errors(weights.curiosity, market, account.bar, direction[action], config)
        transitions = Transitions(
            bar=account.bar,
            step=account.step,
            action=action,
            log_prob=pk.log_prob(logits, action),
            position_before=account.position,
            max_position=account.max_position,
            curiosity_bonus=jnp.minimum(errors, scales.curiosity_max_reward),
            **{
                f.name: getattr(out, f.name)
                for f in dataclasses.fields(out)
                if f.name in Transitions.__dataclass_fields__
            },
        )
        return after, (transitions, hoisted.spec_reward(transitions, scales, market, rules), value(state))

    uniforms = jax.random.uniform(key_uniforms, shape, market.close.dtype)
    after, (t, rewards, values) = jax.lax.scan(step, state, (uniforms, restarts))
    next_values = jnp.concatenate([values[1:], value(after)[None]])  # plan: read only where no episode ended
    ends = t.terminated | t.truncated
    advantages, returns = gae(
        rewards, values, next_values, ends, t.truncated, config.hypers.gamma, config.hypers.gae_lambda, "xla"
    )
    experience = Experience(
        transitions=t,
        rewards=rewards,
        values=values,
        next_values=next_values,
        advantages=advantages,
        returns=returns,
        env=rules,
    )
    return experience, after


def on_host(experience: Any) -> tuple[np.ndarray, np.ndarray]:
    """Actions and advantages."""
    return np.asarray(experience.actions), np.asarray(experience.advantages)


def actor_flop(rows: int, bars: int) -> float:
    """Of the actor's products, the features' part of the first layer once a bar; 2 account values change with the row."""
    hidden = ACTOR[1]
    return 2.0 * (rows * (2 * hidden + multiplications(ACTOR[1:])) + bars * FEATURES * hidden)


def critic_flop(rows: int) -> float:
    """Of the critic's products."""
    return 2.0 * rows * multiplications(CRITIC)


def curiosity_flop(rows: int) -> float:
    """Of the curiosity model's products."""
    return 2.0 * rows * multiplications(CURIOSITY)


def training_flop(widths: Sequence[int], rows: int) -> float:
    """Of one pass forward and backward; nobody needs the gradient at the inputs."""
    return 2.0 * rows * (3 * multiplications(widths) - widths[0] * widths[1])


def multiplications(widths: Sequence[int]) -> int:
    """Of one row through dense layers of these widths."""
    return sum(a * b for a, b in itertools.pairwise(widths))
