"""The environment for Gymnasium: `jaxrl_trade/Trading-v0`, one episode at a time or N side by side, on the step functions of `env`.

Importing this module needs Gymnasium (`pip install 'jaxrl-trade[gym]'`) and registers the environment; so does using
`jaxrl_trade` once Gymnasium has been imported.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from jaxrl_trade import ENVIRONMENT, register_environment
from jaxrl_trade.config import EnvConfig, RewardScales
from jaxrl_trade.env import reward, trading
from jaxrl_trade.market import Market

__all__ = ["ENVIRONMENT", "TradingEnv", "TradingVectorEnv"]

ROUNDING = 0.01  # beyond which no position, a fraction of max_position, is out of its bounds by rounding alone
INFO = (
    *("base", "barrier_label", "diversity_penalty", "drawdown"),
    *("equity_before", "equity_after", "cost", "slippage", "trade", "position"),
)

_step = jax.jit(trading.step, static_argnames="config")
_observe = jax.jit(trading.observe, static_argnames="config")


class TradingEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One account that trades bar by bar. An episode begins at a random bar and lasts `config.episode_length` bars, unless ruined.

    Observations `[F + 3]` and actions are those of `env.observe` and `env.step`. The reward is SPEC's without the curiosity bonus,
    which needs a network: 1000 is one unit of log return. `info` holds the parts of the reward and of the account by the names of
    `env.Outcome`, and `bar`, that of the observation.

    Args:
      bars: `Bars`, several of them, or a `Market` (one split of it, say, or one to share between environments).
      config: the account's rules; None is `EnvConfig.net()`.
      scales: of the reward's parts; None is `RewardScales.net()`. curiosity_scale has no effect.
    Raises:
      ValueError: bars of another kind, or too few for one episode.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, as Gymnasium declares it

    def __init__(self, bars: Any, config: EnvConfig | None = None, scales: RewardScales | None = None) -> None:
        self._rules = _Rules(bars, config, scales)
        self.observation_space = self._rules.observation_space
        self.action_space = gymnasium.spaces.Discrete(self._rules.config.n_actions)
        self._state: trading.EnvState | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins an episode, at a random bar or at `options={"start": bar}`.

        Raises:
          ValueError: an unknown option, or a bar from which an episode would leave its instrument or split.
        """
        super().reset(seed=seed)
        start = _option(options, "start")
        start = self._rules.draw(self.np_random, ()) if start is None else start
        self._state, obs, info = self._rules.reset(start)
        return obs, info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One bar.

        Raises:
          ValueError: an action outside the table, or an episode that is over.
        """
        if self._state is None:
            raise ValueError("the episode is over, or none has begun; call reset")
        self._state, out = self._rules.step(self._state, action, self._rules.starts[0])
        terminated, truncated = bool(out["terminated"]), bool(out["truncated"])
        info = {name: value.item() for name, value in self._rules.info(out).items()}
        if terminated or truncated:
            self._state = None
        return out["next_obs"], float(self._rules.reward(out)), terminated, truncated, info


class TradingVectorEnv(gymnasium.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """N episodes of `TradingEnv` in one compiled step. One that ends begins afresh at a random bar in the same step.

    Where an episode ended, `info["final_obs"]` and `info["final_info"]` hold what it ended with, and the observation is that of the
    next one (`AutoresetMode.SAME_STEP`).

    Args:
      num_envs: N.
      bars, config, scales: as for `TradingEnv`.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self, num_envs: int, bars: Any, config: EnvConfig | None = None, scales: RewardScales | None = None
    ) -> None:
        self._rules, self.num_envs = _Rules(bars, config, scales), num_envs
        self.single_observation_space = self._rules.observation_space
        self.single_action_space = gymnasium.spaces.Discrete(self._rules.config.n_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._state: trading.EnvState | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins N episodes, at random bars or at `options={"starts": [N] bars}`; raises as `TradingEnv.reset`."""
        super().reset(seed=seed)
        starts = _option(options, "starts")
        starts = self._rules.draw(self.np_random, (self.num_envs,)) if starts is None else np.asarray(starts)
        if starts.shape != (self.num_envs,):
            raise ValueError(f"starts has shape {starts.shape}; there are {self.num_envs} episodes")
        self._state, obs, info = self._rules.reset(starts)
        return obs, info

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One bar of every episode; raises as `TradingEnv.step`."""
        if self._state is None:
            raise ValueError("no episode has begun; call reset")
        restarts = self._rules.draw(self.np_random, (self.num_envs,))
        self._state, out = self._rules.step(self._state, np.asarray(actions), restarts)
        obs, info, done = out["next_obs"], self._rules.info(out), out["terminated"] | out["truncated"]
        if done.any():
            info |= {"final_obs": obs, "_final_obs": done, "final_info": dict(info), "_final_info": done}
            obs = np.where(done[:, None], self._rules.observe(self._state), obs)
            info["bar"] = np.where(done, restarts, info["bar"])
        return obs, self._rules.reward(out), out["terminated"], out["truncated"], info


class _Rules:
    """The market and the account's rules, and their functions from and to NumPy, of one episode or of `[N]`."""

    def __init__(self, bars: Any, config: EnvConfig | None, scales: RewardScales | None) -> None:
        self.market = bars if isinstance(bars, Market) else Market.from_bars(bars)
        self.config = EnvConfig.net() if config is None else config
        self.scales = RewardScales.net() if scales is None else scales
        self.starts = self.market.valid_starts(self.config.episode_length)

    @functools.cached_property
    def observation_space(self) -> gymnasium.spaces.Box:
        """What the market's features reach; equity without bounds, position within its own, spread."""
        features = np.asarray(self.market.features)
        most = np.finfo(features.dtype).max
        position = (
            most if self.config.sizing == "equity" else 1.0 + ROUNDING
        )  # an equity that falls leaves too large a one
        low = np.append(features.min(axis=0), [-most, -position, 0.0])
        high = np.append(features.max(axis=0), [most, position, 1.0])
        return gymnasium.spaces.Box(low.astype(features.dtype), high.astype(features.dtype), dtype=features.dtype.type)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Valid starts."""
        return self.starts[rng.integers(len(self.starts), size=shape)]

    def reset(self, starts: Any) -> tuple[trading.EnvState, np.ndarray, dict[str, Any]]:
        state = trading.reset(self.market, self.config, starts)
        bar = np.array(state.account.bar)
        return state, self.observe(state), {"bar": bar if bar.ndim else bar.item()}

    def observe(self, state: trading.EnvState) -> np.ndarray:
        return np.array(_observe(state, self.market, config=self.config))

    def step(self, state: trading.EnvState, actions: Any, restarts: Any) -> tuple[trading.EnvState, dict[str, Any]]:
        """The state, restarted where it was due, and the outcome by name, with the `bar` it ended on."""
        actions = np.asarray(actions)
        trading.check_actions(actions, self.config.n_actions)
        if actions.shape != np.shape(state.account.bar):
            raise ValueError(f"action has shape {actions.shape}, the episodes {np.shape(state.account.bar)}")
        bar = np.asarray(state.account.bar) + 1
        state, outcome = _step(state, actions.astype(np.int32), restarts, self.market, config=self.config)
        return state, {"bar": bar, **{name: np.array(value) for name, value in vars(outcome).items()}}

    def reward(self, out: Mapping[str, Any]) -> Any:
        return reward.total(
            out["base"],
            out["barrier_label"],
            out["diversity_penalty"],
            np.zeros_like(out["base"]),
            out["drawdown"],
            self.scales,
        )

    def info(self, out: Mapping[str, Any]) -> dict[str, Any]:
        return {name: out[name] for name in ("bar", *INFO)}


def _option(options: Mapping[str, Any] | None, name: str) -> Any:
    """The one option there is, or None."""
    given = dict(options or {})
    value = given.pop(name, None)
    if given:
        raise ValueError(f"reset knows no option {', '.join(sorted(given))}; it takes {name}")
    return value


register_environment()
