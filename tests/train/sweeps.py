"""One compiled program for the sweeps of several tests: those on the same bars, settings and devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jaxrl_trade import scale
from jaxrl_trade.scale import modes
from jaxrl_trade.train import sweep_groups
from jaxrl_trade.train.provenance import market_digest

_PROGRAMS: dict[Any, scale.Program] = {}


@contextmanager
def remembered_programs() -> Iterator[list[tuple[int, int]]]:
    """Inside, sweeps use programs that were compiled before; gives a list of (runs, updates) of each call of one."""
    calls: list[tuple[int, int]] = []

    def seeds(config: Any, market: Any, devices: int) -> scale.Program:
        known = (config, market_digest(market), devices)
        program = _PROGRAMS.setdefault(known, modes.seeds(config, market, devices))

        def advance(states: Any, hypers: Any, updates: int) -> Any:
            calls.append((len(states.update), updates))
            return program.advance(states, hypers, updates)

        return scale.Program(program.config, program.init, advance)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_groups, "seeds", seeds)
        yield calls
