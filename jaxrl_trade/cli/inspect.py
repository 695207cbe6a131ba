"""`jaxrl-trade inspect FILE`: what is in a price file, and whether the features look ahead."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxrl_trade.cli.data import ReadFlags, load

HISTORIES = 50  # truncated histories compared by --lookahead: each costs all features once


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspect:
    """Says what is in a price file: rows kept and dropped, range, bar size, gaps, warnings."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """CSV (also compressed), Parquet, Arrow or JSON, or a folder of them."""
    read: ReadFlags = dataclasses.field(default_factory=ReadFlags)
    lookahead: bool = False
    """Recompute the features on truncated histories and compare; exit code 1 if one of them knows the future."""
    json: bool = False
    """Print JSON."""

    def run(self, command_line: str) -> int:
        """Prints the report; the exit code."""
        del command_line
        from jaxrl_trade.bars import check_lookahead

        bars = load(self.file, self.read.options())
        check = check_lookahead(bars, HISTORIES) if self.lookahead else None
        if self.json:
            found: dict[str, Any] = {"symbol": bars.symbol, "sha256": bars.sha256, **bars.report.as_dict()}
            if check is not None:
                found["lookahead"] = {**dataclasses.asdict(check), "ok": check.ok}
            print(json.dumps(found, indent=2))
        else:
            print("\n".join([*bars.report.lines(), f"symbol         {bars.symbol}", f"sha256         {bars.sha256}"]))
            print("\n".join(check.lines()) if check is not None else "", end="\n" if check is not None else "")
        return 0 if check is None or check.ok else 1
