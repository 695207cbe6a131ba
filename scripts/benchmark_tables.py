"""The tables of scripts/benchmark.py: Markdown that also reads well as plain text."""

from collections.abc import Iterator, Sequence
from typing import Any

HEADINGS = (
    "",
    "wall ms",
    "spread",
    "queued ms",
    "kernels ms",
    "launches",
    "floor ms",
    "bound by",
    "M steps/s",
    "memory MiB",
    "compile s",
)
COLUMNS = (
    "Wall: a call with its arguments on the device, launch included; spread: (largest − smallest) / median. Queued: one of "
    "many calls made without waiting for any to end, as a loop makes them. Kernels: the sum of kernel and copy durations "
    "in a profiler trace of one call. Floor: the larger of bytes over bandwidth (every array in or out once) and FLOP over "
    "rate (matrix products only), by the ceilings of the same run. Memory: arguments, results and temporaries of the "
    "compiled program. Compile: while all the others compile, too. The passes are those of the fused path; one without "
    "matrix products stands in the first table of its N only. One CUDA thread per episode is "
    "`scripts/thread_per_episode.cu`, float32, timed by CUDA's events, fewer times than the others."
)
COMPARED = ("", "N", "dtype", "equal actions", "lanes all equal", "advantages differ by")


def tables(record: dict[str, Any], episodes: Sequence[int]) -> str:
    """A table for every N and dtype; what has no dtype stands in that of the first."""
    parts = []
    for n in episodes:
        for i, dtype in enumerate(record["dtypes"]):
            here = [row for row in record["programs"] if row["lanes"] == n]
            rows = [row for row in here if row["dtype"] == dtype or (i == 0 and row["dtype"] not in record["dtypes"])]
            if rows:
                cells = [_cells(row, record["steps"]) for row in rows]
                parts.append(f"N = {n:,}, {dtype}:\n\n" + _table(HEADINGS, cells))
    return "\n\n".join(parts)


def summary(record: dict[str, Any]) -> str:
    """How the ways of collecting compare: as fast as the fused path, and with which results."""
    parts = [_ceilings(record)]
    if record["agreement"]:
        parts.append("Compared with the hoisted scan of the same dtype:\n\n" + _table(COMPARED, _compared(record)))
    ratios = list(_ratios(record))
    if ratios:
        parts.append(_table(("fused path against", "N", "dtype", "times faster, wall", "kernels"), ratios))
    return "\n\n".join(parts)


def markdown(record: dict[str, Any]) -> str:
    """The section of a page."""
    peak = f", at most {record['peak_mib']:,.0f} MiB held on the device" if record["peak_mib"] else ""
    head = (
        f"{record['device']}, JAX {record['jax']}, Python {record['python']}, {record['cpus']} CPU cores. "
        f"Collections of {record['steps']} steps on a random market of {record['bars']:,} bars and {record['features']} "
        f"features, preset plan, networks as shipped; medians of {record['repeats']} calls. `scripts/benchmark.py` made "
        f"these tables in {record['seconds']:.0f} s{peak}."
    )
    parts = [f"## {record['platform'].upper()}", head, COLUMNS, summary(record), tables(record, record["episodes"])]
    return "\n\n".join(parts) + "\n"


def _cells(row: dict[str, Any], steps: int) -> list[str]:
    name = row["name"] if not row["name"].startswith(" ") else f"– {row['name'].strip()}"
    if "wall_ms" not in row:
        return [name, row.get("error", "not measured"), *[""] * (len(HEADINGS) - 2)]
    wall = row["wall_ms"]
    return [
        name,
        _number(wall["median"]),
        f"{(wall['max'] - wall['min']) / wall['median']:.0%}",
        _number(row.get("queued_ms")),
        _number(row.get("kernels_ms")),
        _whole(row.get("launches")),
        _number(row.get("floor_ms")),
        "" if "floor_ms" not in row else "bytes" if row["floor_ms"] == row["bytes_ms"] else "FLOP",
        _number(row["lanes"] * steps / wall["median"] / 1e3),
        _whole(sum(row["memory_mib"].values()) if "memory_mib" in row else None),
        _number(row.get("compile_s")),
    ]


def _ceilings(record: dict[str, Any]) -> str:
    found = dict(record["ceilings"])
    memory = found.pop("bytes", None)
    parts = [f"{rate / 1e12:.3g} TFLOP/s {dtype}" for dtype, rate in found.items()]
    parts += [f"{memory / 1e12:.3g} TB/s of memory"] if memory else []
    return "Ceilings measured in the same run: " + (", ".join(parts) or "none") + "."


def _compared(record: dict[str, Any]) -> list[list[str]]:
    return [
        [
            row["name"],
            f"{row['lanes']:,}",
            row["dtype"],
            f"{row['same_actions']:.4%}",
            f"{row['same_lanes']:.1%}",
            "" if row["error"] is None else f"{row['error']:.0e}",
        ]
        for row in record["agreement"]
    ]


def _ratios(record: dict[str, Any]) -> Iterator[list[str]]:
    """How much longer the other ways of collecting take than the fused path; threads have no dtype but float32."""
    measured = [row for row in record["programs"] if "wall_ms" in row]
    for fused in (row for row in measured if row["name"] == "fused"):
        for row in (row for row in measured if row["lanes"] == fused["lanes"]):
            is_thread = "thread" in row["name"]
            if is_thread or ("scan" in row["name"] and row["dtype"] == fused["dtype"]):
                wall = row["wall_ms"]["median"] / fused["wall_ms"]["median"]
                kernels = row["wall_ms"]["median"] if is_thread else row.get("kernels_ms")
                busy = kernels / fused["kernels_ms"] if kernels and "kernels_ms" in fused else None
                yield [row["name"], f"{row['lanes']:,}", fused["dtype"], _number(wall), _number(busy)]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    lines = [
        "| "
        + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        + " |"
        for row in [headings, *rows]
    ]
    rule = "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths))
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def _number(x: float | None) -> str:
    """Three digits."""
    if x is None:
        return ""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def _whole(x: float | None) -> str:
    return "" if x is None else f"{x:,.0f}"
