"""What run.json says of a run's data, and the bars read again by it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_trade.cli.data import SPLITS, ReadFlags, load
from jaxrl_trade.patience import working

if TYPE_CHECKING:
    from jaxrl_trade.bars import Bars


def load_again(facts: Mapping[str, Any], paths: Sequence[Path] = ()) -> list[Bars]:
    """The bars a run was trained on.

    Args:
      facts: of run.json.
      paths: where the files are now, if they were moved.
    Raises:
      OSError: a file is not there any more.
      ValueError: the run does not say, or a file has changed.
    """
    from jaxrl_trade.bars import load_instruments

    saved = recorded(facts)
    if "instruments" in saved:
        options = {name: value for name, value in saved["options"].items() if name != "symbol"}
        with working("reading the run's price files"):
            found = load_instruments(list(paths) or saved["paths"], list(saved["instruments"]), **options)
        wanted = [record["sha256"] for record in saved["instruments"].values()]
    else:
        places = list(paths) or ([Path(saved["path"])] if saved["path"] else [])
        if len(places) > 1:
            raise ValueError(f"the run was trained on one file, but --data names {len(places)}")
        found = [load(places[0] if places else None, saved["options"])]
        wanted = [saved["sha256"]]
    for bars, sha256 in zip(found, wanted, strict=True):
        if bars.sha256 != sha256:
            raise ValueError(f"{bars.source} does not hold the bars that the run was trained on: it has changed since")
    return found


def options_like(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """How to read other files than a run's: as was said, else as its own were read; a line on stderr says what was taken over.

    Args:
      facts: of run.json.
      given: as `ReadFlags.options` gives them. The symbol is never taken over.
    Raises:
      ValueError: a record of the data that is damaged.
    """
    own = {} if facts.get("data") is None else recorded(facts)["options"]
    taken = {k: value for k, value in own.items() if k != "symbol" and value is not None and given.get(k) is None}
    if taken:
        print(f"note: read as the run's own bars were, with {', '.join(map(_flag, taken.items()))}", file=sys.stderr)
    return {**given, **taken}


def _flag(option: tuple[str, Any]) -> str:
    """An option as it is written on the command line."""
    name, value = option
    if name == "columns":
        return f"--columns {','.join(f'{role}={column}' for role, column in value.items())}"
    if name == "day_first":
        return "--day-first" if value else "--month-first"
    return f"--{name}" if value is True else f"--{name} {value}"


def recorded_ranges(saved: Mapping[str, Any], name: str) -> list[dict[str, Any] | None]:
    """One split of each instrument that `load_again` gives, None of one that has no bars there.

    Args:
      saved: of `recorded`.
      name: of the split.
    """
    each = saved.get("instruments", {"": saved}).values()
    return [record["splits"][name] for record in each]


def recorded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json says of the data, as `Prepared.facts` wrote it.

    Raises:
      ValueError: it says nothing, or something else.
    """
    saved = facts.get("data")
    if saved is None:
        raise ValueError(
            "run.json names no price file: the run began in Python; resume it there, or backtest it on a file with --data"
        )
    is_several = isinstance(saved, dict) and "instruments" in saved
    place: dict[str, Any] = {"paths": list, "instruments": dict} if is_several else {"path": (str, type(None))}
    wrong = _misfits(saved, {**place, "options": dict, "sha256": str, "splits": dict})
    if not wrong:
        known = ReadFlags(adjust=True).options()
        wrong += [f"options.{name}" for name in saved["options"] if name not in known]
        if is_several:
            wrong += [f"splits.{name}" for name in SPLITS if not _is_time(saved["splits"].get(name))]
            wrong += [f"instruments.{symbol}" for symbol, one in saved["instruments"].items() if not _is_record(one)]
        else:
            wrong += [f"splits.{name}" for name in SPLITS if not _is_range(saved["splits"].get(name))]
    if wrong:
        raise ValueError(f"run.json is damaged: its record of the data has no usable {', '.join(wrong)}")
    return saved


def _misfits(value: Any, kinds: Mapping[str, Any]) -> list[str]:
    return [k for k, kind in kinds.items() if not (isinstance(value, dict) and isinstance(value.get(k, ...), kind))]


def _is_time(value: Any) -> bool:
    return not _misfits(value, {"start_time": str, "last_time": str})


def _is_range(value: Any) -> bool:
    return not _misfits(value, {"first": int, "end": int}) and _is_time(value)


def _is_record(value: Any) -> bool:
    if _misfits(value, {"sha256": str, "splits": dict}):
        return False
    return all(name in value["splits"] and _is_none_or_range(value["splits"][name]) for name in SPLITS)


def _is_none_or_range(value: Any) -> bool:
    return value is None or _is_range(value)
