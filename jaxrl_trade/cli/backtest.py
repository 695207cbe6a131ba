"""`jaxrl-trade backtest RUN`: a trained run on its test bars or on another file; and what both commands do with a report."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxrl_trade.cli.data import ReadFlags, load_all
from jaxrl_trade.cli.recorded import load_again, options_like, recorded, recorded_ranges
from jaxrl_trade.cli.reports import as_json, backtest_each, save_all, shown
from jaxrl_trade.cli.seen import unseen_ranges, with_seen
from jaxrl_trade.cli.trials import check_trials
from jaxrl_trade.spelling import meant

if TYPE_CHECKING:
    import jax

    from jaxrl_trade.backtesting import BacktestReport
    from jaxrl_trade.bars import Bars


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backtest:
    """Backtests the policy of a run after costs: on the run's test bars, or on the bars of another file that the run has not seen.

    Where the file holds bars that the run was trained or chosen on, the backtest begins behind them and behind a gap like the one
    between the run's own splits. --start overrides it; the verdict then says how many bars the agent has seen.
    """

    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(name="run", metavar="RUN")]]
    """Folder of the run."""
    data: Annotated[
        tuple[Path, ...], tyro.conf.arg(metavar="FILE ...", help_behavior_hint="(default: the run's test bars)")
    ] = ()
    """Other price files, or folders of them; read as the run's own were, where no flag says otherwise."""
    read: ReadFlags = dataclasses.field(default_factory=ReadFlags)
    start: Annotated[str | None, tyro.conf.arg(metavar="DATE", help_behavior_hint="(default: the first unseen)")] = None
    """First bar, such as 2024-03-01; UTC."""
    end: Annotated[str | None, tyro.conf.arg(metavar="DATE", help_behavior_hint="(default: after the last)")] = None
    """End of the range, not part of it."""
    sampled: bool = False
    """Sample the actions instead of taking the likeliest."""
    seed: int = 0
    """Of the sampling, of the random-timing baseline and of the bootstrap."""
    trials: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: as training counted)")] = (
        None
    )
    """Settings and seeds tried on these bars, this one included: the more, the more of its Sharpe ratio is luck."""
    json: bool = False
    """Print JSON."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: nothing is written)")] = (
        None
    )
    """Write equity.parquet, trades.parquet, metrics.json and report.html there."""
    tearsheet: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Write a QuantStats tear sheet there, HTML (extra `tearsheet`)."""

    def run(self, command_line: str) -> int:
        """Prints the table and the verdict; the exit code."""
        from jaxrl_trade.train.logs import read_metrics
        from jaxrl_trade.train.run import load_choice, load_config, load_policy, read_facts

        key = key_of(self.seed)
        check_trials(self.trials)
        policy, config, facts = load_policy(self.folder), load_config(self.folder), read_facts(self.folder)
        ranges = self._ranges(facts)
        bars = {each.symbol: each for each, _, _ in ranges}
        reports = backtest_each(
            policy,
            config,
            ranges,
            greedy=not self.sampled,
            key=key if self.sampled else None,
            checkpoint=str(load_choice(self.folder)),
            seed=self.seed,
            trials=self.trials or (1 if self.data else facts.get("trials", 1)),
        )
        reports = {symbol: with_seen(report, facts, bars[symbol]) for symbol, report in reports.items()}
        pages = []
        if self.out is not None:
            history = read_metrics(self.folder / "metrics.jsonl")
            pages = save_all(reports, self.out, self.out, history, reproduction(facts, command_line))
        if self.tearsheet is not None:
            pages.append(self._write_tearsheet(reports))
        print(json.dumps(as_json(reports), indent=2) if self.json else shown(reports))
        for page in pages:
            print(page, file=sys.stderr if self.json else sys.stdout)
        return 0

    def _write_tearsheet(self, reports: Mapping[str, BacktestReport]) -> Path:
        if len(reports) > 1:
            raise ValueError(f"--tearsheet shows one instrument; choose among {', '.join(reports)} with --symbol")
        (report,) = reports.values()
        return report.to_tearsheet(self.tearsheet or "")

    def _ranges(self, facts: Mapping[str, Any]) -> list[tuple[Bars, str | int | None, str | int | None]]:
        """Bars of each instrument, and the range of them to trade.

        Raises:
          OSError, ValueError: as `load_again`, `load_all` and `unseen_ranges`, or a symbol that the run does not have.
        """
        if self.data:
            every = load_all(self.data, options_like(facts, self.read.options()), self.read.all_symbols)
            if self.start is None:
                return unseen_ranges(facts, every, self.end)
            return [(bars, self.start, self.end) for bars in every]
        found: list[tuple[Bars, str | int | None, str | int | None]] = []
        every = load_again(facts)
        for bars, test in zip(every, recorded_ranges(recorded(facts), "test"), strict=True):
            if test is not None and self.read.symbol in (None, bars.symbol):
                first, end = (given or test[name] for given, name in ((self.start, "first"), (self.end, "end")))
                found.append((bars, first, end))
        if not found:
            known = [bars.symbol for bars in every]
            raise ValueError(
                f"the run has no test bars of {self.read.symbol}; it was trained on {', '.join(known)}"
                f"{meant(str(self.read.symbol), known)}"
            )
        return found


def key_of(seed: Any) -> jax.Array:
    """The key of a run's or a backtest's draws; the first thing that asks JAX for a device.

    Raises:
      ValueError: a seed that is none, or platforms in the environment that JAX does not find.
    """
    import jax

    if not isinstance(seed, int) or not 0 <= seed < 2**32:  # beyond it, JAX would draw the same as for another seed
        raise ValueError(f"seed = {seed!r} must be a whole number of at least 0, and below 2**32")
    try:
        return jax.random.key(seed)
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # an assertion is all that JAX has where a platform's plugin is missing
        asked, reason = os.environ.get("JAX_PLATFORMS", ""), str(error).split("\n")[0]
        raise ValueError(
            f"JAX finds no device for JAX_PLATFORMS={asked!r}{reason and f' ({reason})'}; set it to cpu, or unset it"
        ) from None


def reproduction(facts: Mapping[str, Any], command_line: str) -> dict[str, Any]:
    """What somebody needs to come to the same report."""
    data = facts.get("data") or {}
    known = {
        "command": command_line,
        "commit": facts.get("commit"),
        "data": data.get("path") or ", ".join(data.get("paths", [])) or "the bundled sample",
        "data_sha256": data.get("sha256"),
        "seed": facts.get("seed"),
        "feature_version": facts.get("feature_version"),
        "device": facts.get("device"),
        "versions": facts.get("versions"),
    }
    return {name: value for name, value in known.items() if value is not None}
