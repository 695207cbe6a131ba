"""Text to numbers: decimal comma or point, thousands separators, currency signs, 1.2M, missing values. Never guesses a mark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from jaxrl_trade.bars.layout import MISSING
from jaxrl_trade.bars.options import SETTLE, LoadOptions, quoted

if TYPE_CHECKING:
    import pyarrow as pa

    from jaxrl_trade.bars.rolling import FloatArray

PLAIN = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
# how a number with a comma shows which mark is which; 1,234 shows nothing
SHOWS_COMMA = r"^[-+]?(\d*,(\d{1,2}|\d{4,})|0,\d{3}|\d{4,},\d{3}|\d{1,3}(\.\d{3})+,\d+)$"
SHOWS_POINT = r"^[-+]?(\d{1,3}(,\d{3})+\.\d*|\d{1,3}(,\d{3}){2,})$"
UNITS = {"K": 1e3, "M": 1e6, "B": 1e9}
GROUPED = {".": r"^[-+]?\d{1,3}(,\d{3})+(\.\d*)?$", ",": r"^[-+]?\d{1,3}(\.\d{3})+(,\d*)?$"}


def decimal_mark(columns: Iterable[pa.ChunkedArray], options: LoadOptions, origin: str) -> str:
    """The decimal mark of a file's numbers, from all its text columns together.

    Raises:
      ValueError: a comma is there and every number with one reads both ways, or they contradict each other.
    """
    import pyarrow.compute as pc

    if options.decimal is not None:
        return options.decimal
    with_comma = [_strip(column.filter(pc.match_substring(column, ","))) for column in columns if is_text(column)]
    found = [values for values in with_comma if len(values)]
    if not found:
        return "."
    comma, point = (
        any(pc.any(pc.match_substring_regex(values, shape)).as_py() for values in found)
        for shape in (SHOWS_COMMA, SHOWS_POINT)
    )
    if comma == point:
        example = found[0][0].as_py()
        how = (
            "some numbers use the comma as decimal mark, others for thousands"
            if comma
            else "every comma could be either"
        )
        raise ValueError(
            f"{origin}: is the comma in {quoted(example)} a decimal mark or a thousands separator? {how}; "
            f"settle it with {SETTLE['decimal']}"
        )
    return "," if comma else "."


def to_float(column: pa.ChunkedArray, mark: str, name: str, label: Callable[[int], str], origin: str) -> FloatArray:
    """`[n]` float64 of a text or numeric column, NaN where it says that it has no value.

    Raises:
      ValueError: a value is not a number; names its row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(column):
        kind = column.type
        if not (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_null(kind)
        ):
            raise ValueError(f"{origin}: column {name!r} should hold numbers, but its type is {kind}")
        return _as_float(column)
    if mark == ".":
        try:
            return _as_float(column)
        except pa.ArrowInvalid:
            pass  # missing values, separators, signs or worse: look closer
    text = _strip(column)
    text = pc.if_else(pc.is_in(pc.utf8_lower(text), pa.array(MISSING)), pa.scalar(None, pa.string()), text)
    thousands = "," if mark == "." else "."
    grouped = pc.fill_null(pc.match_substring_regex(text, GROUPED[mark]), False)
    text = pc.if_else(grouped, pc.replace_substring(text, thousands, ""), text)
    if mark == ",":
        text = pc.if_else(pc.fill_null(pc.match_substring(text, "."), False), "not a number", text)
        text = pc.replace_substring(text, ",", ".")
    text, factor = _without_units(text)
    bad = pc.invert(pc.fill_null(pc.match_substring_regex(text, PLAIN), True))
    if pc.any(bad).as_py():
        row = int(np.flatnonzero(bad.to_numpy(zero_copy_only=False))[0])
        raise ValueError(
            f"{origin}, {label(row)}: column {name!r} should hold a number, but has {quoted(column[row].as_py())}"
        )
    return _as_float(text) * factor


def _without_units(text: pa.ChunkedArray) -> tuple[pa.ChunkedArray, FloatArray | float]:
    """Numbers without the K, M or B behind them, and what to multiply them by."""
    import pyarrow.compute as pc

    parts = pc.extract_regex(text, r"^(?P<number>.*[0-9])(?P<unit>[KkMmBb])$")
    if parts.null_count == len(parts):
        return text, 1.0
    unit = pc.fill_null(pc.utf8_upper(pc.struct_field(parts, "unit")), "").to_numpy(zero_copy_only=False)
    factor = np.select([unit == name for name in UNITS], list(UNITS.values()), 1.0)
    return pc.coalesce(pc.struct_field(parts, "number"), text), factor


def _as_float(column: pa.ChunkedArray) -> FloatArray:
    """Rounded correctly from text and decimals; NaN where null."""
    import pyarrow as pa

    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.float64(), safe=is_text(column)).to_numpy(zero_copy_only=False).astype(np.float64)


def is_text(column: pa.ChunkedArray) -> bool:
    """Whether a column holds text."""
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def is_whole(column: pa.ChunkedArray) -> bool:
    """Whether a column holds whole numbers alone, and is written so."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(column):
        return bool(pa.types.is_integer(column.type))
    return not pc.any(pc.match_substring_regex(column, r"[.,]")).as_py()


def _strip(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without white space and currency signs around it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.utf8_trim(column.cast(pa.string()), " \t\u00a0$€£¥")
