"""The trading environment in plain Python floats, one lane and one bar at a time, from SPEC sections 1-8 alone.

It shares nothing with jaxrl_trade: no table of it, no formula, no order of operations. Where an arithmetic shortcut is
allowed (the equity reward as a log1p), this file takes the definition instead. Beside the outcome of each step it gives
`margin`: how far, relative to its scale, the closest yes/no decision of the step was from its threshold. Below 1e-6 a
float32 account may rightly decide otherwise (section 10), and a comparison has to stop there.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

FLAT = 0.01  # of max_position: below it a position counts as none
NO_TRADE = 1e-6  # of max_position: a smaller wish is no order
FLOOR = 0.001  # of initial_capital: the equity reward's floor when ruin_fraction is smaller


@dataclasses.dataclass
class Account:
    """Everything a lane hands on from one bar to the next."""

    bar: int
    cash: float
    max_position: float  # units
    position: float = 0.0  # units
    entry_price: float = 0.0
    cumulative_costs: float = 0.0  # currency
    step_in_episode: int = 0
    barrier_active: bool = False
    barrier_entry: float = 0.0
    barrier_upper: float = 0.0
    barrier_lower: float = 0.0
    barrier_entry_step: int = 0
    window: list[int] = dataclasses.field(default_factory=list)  # the episode's last W actions, oldest first


def sign(x: float) -> float:
    return float((x > 0) - (x < 0))


def fresh(bar: int, market: dict[str, np.ndarray], config: dict[str, Any]) -> Account:
    """An account at the start of an episode at `bar` (section 4, point 9 and Sizing)."""
    capital = config["initial_capital"]
    levered = config["leverage"] * capital / float(market["close"][bar])
    sizes = {"units": config["max_position"], "leverage": levered, "equity": levered}
    return Account(bar=int(bar), cash=capital, max_position=sizes[config["sizing"]])


def observe(account: Account, market: dict[str, np.ndarray], config: dict[str, Any]) -> np.ndarray:
    """`[F + 3]`: the market's features and the three portfolio values of section 2."""
    equity = account.cash + account.position * float(market["close"][account.bar])
    portfolio = [equity / config["initial_capital"], account.position / account.max_position, config["spread"]]
    return np.concatenate([market["features"][account.bar].astype(np.float64), portfolio])


class Step:
    """One bar of one account; the methods follow the points of section 4 in order."""

    def __init__(self, before: Account, action: int, market: dict[str, np.ndarray], config: dict[str, Any]):
        self.before, self.action, self.market, self.config = before, int(action), market, config
        self.close = float(market["close"][before.bar])
        self.next_close = float(market["close"][before.bar + 1])
        self.row = {name: column[self.action] for name, column in config["execution"].items()}
        self.equity_before = before.cash + before.position * self.close
        self.margin = math.inf

    def decide(self, distance: float, scale: float) -> None:
        """Note how near a decision was to its threshold."""
        self.margin = min(self.margin, abs(distance) / scale)

    def flat(self, position: float) -> bool:
        limit = FLAT * self.before.max_position
        self.decide(abs(position) - limit, self.before.max_position)
        return abs(position) < limit

    def run(self) -> tuple[Account, dict[str, Any]]:
        self.order()
        self.settle()
        after = dataclasses.replace(
            self.before,
            bar=self.before.bar + 1,
            cash=self.cash,
            position=self.position,
            entry_price=self.entry_price(),
            cumulative_costs=self.before.cumulative_costs + self.cost,
            step_in_episode=self.before.step_in_episode + 1,
            window=(self.before.window + [self.action])[-self.config["diversity_window"] :],
        )
        label = self.barrier(after)
        capital = self.config["initial_capital"]
        if self.config["sizing"] == "equity":  # of the equity at the new close, or of the floor under it
            floor = max(self.config["ruin_fraction"], FLOOR) * capital
            levered = self.config["leverage"] * max(self.equity_after, floor)
            after = dataclasses.replace(after, max_position=levered / self.next_close)
        ruin = self.config["ruin_fraction"] * capital
        self.decide(self.equity_after - ruin, capital)
        terminated = self.equity_after <= ruin
        outcome = {
            "base": self.base(),
            "barrier_label": label,
            "diversity_penalty": self.diversity(after.window),
            "drawdown": max(0.0, 1.0 - self.equity_before / capital),
            "equity_before": self.equity_before,
            "equity_after": self.equity_after,
            "cost": self.cost,
            "slippage": self.slippage,
            "trade": self.trade,
            "position": self.position,
            "terminated": terminated,
            "truncated": after.step_in_episode >= self.config["episode_length"] and not terminated,
            "next_obs": observe(after, self.market, self.config),
            "margin": self.margin,
        }
        return after, outcome

    def order(self) -> None:
        """Points 1 to 3: what is wanted, at which price, whether it fills, and what the reserve leaves of it."""
        before, row, t = self.before, self.row, self.before.bar
        target = row["exposure"] * before.max_position
        want = target - before.position
        side = 1.0 if want > 0 else -1.0
        at_close = row["is_maker"] or self.config["fill"] == "close"
        self.quote = self.close if at_close else float(self.market["open"][t + 1])
        self.price = self.quote * (1.0 + side * row["price_offset"] * self.config["spread"])
        self.trade, self.position = 0.0, before.position
        if abs(want) < NO_TRADE * before.max_position or row["fill_ratio"] == 0.0 or not self.fills(side):
            return
        full = row["fill_ratio"] == 1.0
        trade = want if full else row["fill_ratio"] * want
        position = target if full else before.position + trade
        if self.config["reserve_fraction"] is not None and position > max(before.position, 0.0):
            covering = max(-before.position, 0.0)
            spare = before.cash - self.config["reserve_fraction"] * self.config["initial_capital"]
            allowed = max(spare / (self.price * (1.0 + row["fee_rate"])), covering)
            if allowed < trade:
                trade, position = allowed, before.position + allowed
        self.trade, self.position = trade, position

    def fills(self, side: float) -> bool:
        """Takers always; makers when the next bar trades through their price."""
        if not self.row["is_maker"]:
            return True
        extreme = float(self.market["low" if side > 0 else "high"][self.before.bar + 1])
        self.decide(extreme - self.price, self.price)
        return extreme < self.price if side > 0 else extreme > self.price

    def settle(self) -> None:
        """Points 4 and 5: the trade is paid for, then the market moves."""
        fee = abs(self.trade) * self.price * self.row["fee_rate"]
        self.cash = self.before.cash - (self.trade * self.price + fee)
        self.cost = fee + self.trade * (self.price - self.quote)
        self.slippage = self.trade * (self.quote - self.close)
        self.equity_after = self.cash + self.position * self.next_close

    def opens(self) -> bool:
        """Whether this trade opens a position from flat or flips one."""
        if self.trade == 0.0 or self.flat(self.position):
            return False
        return self.flat(self.before.position) or sign(self.before.position) != sign(self.position)

    def entry_price(self) -> float:
        """Point 6: the average execution price of the open position, fees left out."""
        if self.flat(self.position):
            return 0.0
        if self.opens():
            return self.price
        adding = self.trade * self.position > 0
        if not adding:
            return self.before.entry_price
        paid = self.before.entry_price * abs(self.before.position) + self.price * abs(self.trade)
        return paid / abs(self.position)

    def barrier(self, after: Account) -> float:
        """Section 5: opens, checks and closes the barrier of `after` in place; returns the label."""
        if self.flat(self.position):
            after.barrier_active = False
            return 0.0
        if self.opens():
            after.barrier_active = True
            after.barrier_entry = self.close
            after.barrier_upper = self.close * self.config["barrier_profit_mult"]
            after.barrier_lower = self.close * self.config["barrier_loss_mult"]
            after.barrier_entry_step = self.before.step_in_episode
        if not after.barrier_active:
            return 0.0
        close, direction = self.next_close, sign(self.position)
        self.decide(close - after.barrier_upper, close)
        self.decide(close - after.barrier_lower, close)
        held = self.before.step_in_episode + 1 - after.barrier_entry_step
        if close >= after.barrier_upper:
            label = direction
        elif close <= after.barrier_lower:
            label = -direction
        elif held >= self.config["barrier_max_bars"]:
            label = direction * sign(close - after.barrier_entry)
        else:
            return 0.0
        after.barrier_active = False
        return label

    def diversity(self, window: Sequence[int]) -> float:
        """Section 6: the entropy of the window against the most it could be, less one."""
        n = len(window)
        most = min(n, len(self.config["execution"]["exposure"]))
        if most < 2:
            return 0.0
        entropy = -sum(count / n * math.log(count / n) for count in Counter(window).values())
        return min(0.0, max(-1.0, entropy / math.log(most) - 1.0))

    def base(self) -> float:
        """Section 8, the part of the reward that needs neither a scale nor a network."""
        if self.config["reward_base"] == "directional":
            move = math.log1p((self.next_close - self.close) / self.close)
            return 0.0 if self.flat(self.position) else 1000.0 * move * sign(self.position)
        floor = max(self.config["ruin_fraction"], FLOOR) * self.config["initial_capital"]
        return 1000.0 * math.log(max(self.equity_after, floor) / max(self.equity_before, floor))


def simulate(
    market: dict[str, np.ndarray],
    config: dict[str, Any],
    start: int,
    actions: Sequence[int] | np.ndarray,
    restart_bars: Sequence[int] | np.ndarray,
) -> tuple[dict[str, np.ndarray], list[Account]]:
    """One lane through `L` bars, restarting where an episode ends.

    Args:
      market: `features [T, F]`, `open`, `high`, `low`, `close [T]`.
      config: one of tests.reference.presets, or a variation of it.
      start: the bar of the first episode's first observation.
      actions, restart_bars: `[L]`.
    Returns:
      outcome: `[L]` (`[L, F + 3]` for obs and next_obs), named as in `jaxrl_trade`'s outcome, and `obs`, `margin`.
      accounts: `L + 1` of them; `accounts[l]` is the state before step l, the last one is the state handed on.
    """
    account = fresh(start, market, config)
    accounts, outcomes = [account], []
    for action, restart_bar in zip(actions, restart_bars, strict=True):
        after, outcome = Step(account, action, market, config).run()
        outcome["obs"] = observe(account, market, config)
        done = outcome["terminated"] or outcome["truncated"]
        account = fresh(restart_bar, market, config) if done else after
        accounts.append(account)
        outcomes.append(outcome)
    return {name: np.asarray([outcome[name] for outcome in outcomes]) for name in outcomes[0]}, accounts
