"""The trading environment: an account that trades bar by bar. `reset`, `observe`, `step`; the arithmetic is in `account`."""

from jaxrl_trade.env.account import Account, StepOutcome, advance
from jaxrl_trade.env.trading import EnvState, Outcome, observe, reset, step

__all__ = ["Account", "EnvState", "Outcome", "StepOutcome", "advance", "observe", "reset", "step"]
