"""`jaxrl-trade inspect FILE`: what is in a price file, and whether the features look ahead."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxrl_trade.cli.data import ReadFlags, load_all
from jaxrl_trade.patience import working

if TYPE_CHECKING:
    from jaxrl_trade.bars import Bars, LookaheadReport

HISTORIES = 50  # truncated histories compared by --lookahead: each costs all features once


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspect:
    """Says what is in a price file: rows kept and dropped, range, bar size, gaps, warnings."""

    files: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]]
    """CSV (also compressed), Parquet, Arrow or JSON, or folders of them; each instrument is reported."""
    read: ReadFlags = dataclasses.field(default_factory=ReadFlags)
    lookahead: bool = False
    """Recompute the features on truncated histories and compare; exit code 1 if one of them knows the future."""
    json: bool = False
    """Print JSON."""

    def run(self, command_line: str) -> int:
        """Prints the report; the exit code."""
        del command_line
        if not self.files:
            raise ValueError(
                "inspect needs a FILE: name at least one price file or folder (see jaxrl-trade inspect --help)"
            )
        every = load_all(self.files, self.read.options(), self.read.all_symbols)
        checks = [self._check(bars) for bars in every]
        found = [_as_dict(bars, check) for bars, check in zip(every, checks, strict=True)]
        if self.json:
            print(json.dumps(found[0] if len(found) == 1 else found, indent=2))
        else:
            print("\n\n".join(_text(bars, check) for bars, check in zip(every, checks, strict=True)))
        return 0 if all(check is None or check.ok for check in checks) else 1

    def _check(self, bars: Bars) -> LookaheadReport | None:
        from jaxrl_trade.bars import check_lookahead

        if not self.lookahead:
            return None
        with working(f"computing the features of {bars.symbol} again on {HISTORIES} truncated histories"):
            return check_lookahead(bars, HISTORIES)


def _as_dict(bars: Bars, check: LookaheadReport | None) -> dict[str, Any]:
    found = {"symbol": bars.symbol, "sha256": bars.sha256, **bars.report.as_dict()}
    return found if check is None else {**found, "lookahead": {**dataclasses.asdict(check), "ok": check.ok}}


def _text(bars: Bars, check: LookaheadReport | None) -> str:
    lines = [*bars.report.lines(), f"symbol         {bars.symbol}", f"sha256         {bars.sha256}"]
    return "\n".join(lines if check is None else [*lines, *check.lines()])
