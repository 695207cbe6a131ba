"""Local times to UTC: zone names and offsets, the hour that spring skips and the hour that autumn shows twice."""

from __future__ import annotations

import datetime
import re
import zoneinfo

import numpy as np
from numpy.typing import NDArray

from jaxrl_trade.bars.calendar_fields import DAY, BoolArray, IntArray
from jaxrl_trade.bars.options import SETTLE
from jaxrl_trade.bars.rolling import FloatArray


def to_utc(
    ns: IntArray, local: BoolArray, tz: str | None, said: str | None, content: FloatArray
) -> tuple[IntArray, dict[str, BoolArray], tuple[str, ...]]:
    """UTC nanoseconds of n rows in the file's order.

    Args:
      ns: `[n]` nanoseconds since 1970, on the file's own clock where `local`, else already in UTC.
      local: `[n]` the row carries no offset.
      tz: zone of the local rows as the user says it.
      said: zone as the file says it, where the user does not; UTC when both are None.
      content: `[n, k]` values of the rows; two rows of one local time that agree in them are copies, not the two bars of the
        hour that autumn shows twice.
    Returns:
      `[n]` nanoseconds; the rows that have no UTC time, by reason; what was assumed.
    Raises:
      ValueError: no such zone.
    """
    zone = parse_zone(tz or said or "UTC")
    if not local.any():
        return ns, {}, (f"the times say their own offset, so {tz} was not used",) if tz else ()
    if tz is None and not (ns[local] % DAY).any():
        return ns, {}, ()  # dates alone are days, wherever they were counted
    utc, skipped, unclear = _localise(ns, local, zone, content)
    reasons = {
        "of a local time that daylight saving skips": skipped,
        "of a local time that daylight saving repeats": unclear,
    }
    if tz is not None:
        assumed = ""
    elif said is not None:
        assumed = f"times are of {said}, as the file says"
    else:
        assumed = f"times carry no time zone and are taken as UTC; if they are not, say so with {SETTLE['tz']}"
    return utc, {reason: rows for reason, rows in reasons.items() if rows.any()}, (assumed,) if assumed else ()


def parse_zone(tz: str) -> datetime.tzinfo:
    """Zone of a name such as "Europe/Berlin", or of an offset such as "-05:00".

    Raises:
      ValueError: neither.
    """
    offset = re.fullmatch(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?", tz.strip())
    if offset:
        sign, hours, minutes = offset.groups()
        size = datetime.timedelta(hours=int(hours), minutes=int(minutes or 0))
        if size < datetime.timedelta(hours=24):
            return datetime.timezone(size if sign == "+" else -size)
    try:
        return zoneinfo.ZoneInfo(tz.strip())
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f'tz = {tz!r} is no time zone; write one such as "America/New_York" or "-05:00"') from None


def is_zone(name: str) -> bool:
    """Whether `parse_zone` knows the name."""
    try:
        parse_zone(name)
    except ValueError:
        return False
    return True


def wall_clock(times: NDArray[np.datetime64], tz: str) -> NDArray[np.datetime64]:
    """What a clock in `tz` shows at UTC times, `[n]` datetime64[ns]."""
    import pandas as pd

    index = pd.DatetimeIndex(times).tz_localize("UTC").tz_convert(parse_zone(tz)).tz_localize(None)
    return index.to_numpy().astype("datetime64[ns]")


def _localise(
    ns: IntArray, local: BoolArray, zone: datetime.tzinfo, content: FloatArray
) -> tuple[IntArray, BoolArray, BoolArray]:
    """UTC of the local rows; which of them no clock ever showed, and which may be either of two hours."""
    rows = np.flatnonzero(local)
    summer, never_shown = _as_utc(ns[rows], zone, is_summer=True)
    winter, _ = _as_utc(ns[rows], zone, is_summer=False)
    repeated = np.flatnonzero((summer != winter) & ~never_shown)
    second, unclear_here = _repeated_hour(rows[repeated], ns, content, _direction(rows, rows[repeated], ns, content))
    summer[repeated[second]] = winter[repeated[second]]
    utc, skipped, unclear = ns.copy(), np.zeros(len(ns), bool), np.zeros(len(ns), bool)
    utc[rows], skipped[rows] = summer, never_shown
    unclear[rows[repeated[unclear_here]]] = True
    return utc, skipped, unclear


def _as_utc(wall: IntArray, zone: datetime.tzinfo, is_summer: bool) -> tuple[IntArray, BoolArray]:
    """UTC of local times, those shown twice all read as one of the two; and which were never shown (0 there)."""
    import pandas as pd

    index = pd.DatetimeIndex(wall.astype("datetime64[ns]"))
    utc = index.tz_localize(zone, ambiguous=np.full(len(wall), is_summer), nonexistent="NaT").tz_convert("UTC")
    never_shown = np.asarray(utc.isna())
    return np.where(never_shown, 0, utc.as_unit("ns").asi8), never_shown


def _direction(rows: IntArray, repeated: IntArray, ns: IntArray, content: FloatArray) -> int:
    """1 where the rows without copies ascend in time, -1 where they descend, 0 where they do neither.

    A file of local times steps back once for every hour shown twice.
    """
    if not len(repeated):
        return 0
    steps = np.diff(ns[rows[_first_of_copies(rows, ns, content)]])
    falls, rises, hours = (steps < 0).sum(), (steps > 0).sum(), len(np.unique(ns[repeated] // DAY))
    return 0 if min(falls, rises) > hours else 1 if falls <= rises else -1


def _first_of_copies(rows: IntArray, ns: IntArray, content: FloatArray) -> BoolArray:
    """Which rows are not copies, time and content, of one before."""
    import pandas as pd

    return ~pd.DataFrame(content[rows]).assign(wall=ns[rows]).duplicated().to_numpy()


def _repeated_hour(rows: IntArray, ns: IntArray, content: FloatArray, direction: int) -> tuple[BoolArray, BoolArray]:
    """Of rows whose local time was shown twice: which are the second showing, and which could be either.

    Two different bars of one local time are the two showings, in order of time, where the rows have one. One bar alone could be
    either.
    """
    import pandas as pd

    second, unclear = np.zeros(len(rows), bool), np.ones(len(rows), bool)
    if not direction:
        return second, unclear
    order = np.arange(len(rows))[::direction]
    kept = order[_first_of_copies(rows[order], ns, content)]
    walls = pd.Series(ns[rows[kept]])
    showing, total = walls.groupby(walls).cumcount().to_numpy(), walls.groupby(walls).transform("size").to_numpy()
    second[kept[(total == 2) & (showing == 1)]] = True
    unclear[kept[total == 2]] = False
    return second, unclear
