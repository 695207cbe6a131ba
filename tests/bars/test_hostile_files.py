"""Random, cut off, damaged and hostile files end in bars or in one line, soon and in little memory."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import re
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.feather import write_feather

from jaxrl_trade.bars import load_bars, load_instruments
from tests.bars.vendor_files import AMBIGUOUS, FILES

MB = 1_000_000
MOST_SECONDS, MOST_MIB = 10, 2048
HEADER = b"time,open,high,low,close,volume\n"
ROWS = b"".join(b"%d,1.1,1.2,1.05,1.11,100\n" % (1614556800 + 3600 * i) for i in range(20))


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("prices.csv", content)
    return file.getvalue()


def parquet(**columns: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd")
    return file.getvalue()


def feather(**columns: object) -> bytes:
    file = io.BytesIO()
    write_feather(pa.table(columns), file, compression="lz4")
    return file.getvalue()


# a file and what is said of it; made when it is needed, since some are large
HOSTILE = {
    "random bytes": (lambda: random.Random(1).randbytes(MB), "holds binary data"),
    "a line of 100 MB of fields": (lambda: b"1," * (50 * MB), "a line of more than 1,048,576 characters"),
    "a gzip bomb": (lambda: gzip.compress(b"0" * (100 * MB)), "unpacks to more than 200 times its size"),
    "a zstd bomb": (
        lambda: pa.compress(b"0" * (100 * MB), codec="zstd", asbytes=True),
        "unpacks to more than 200 times its size",
    ),
    "a Parquet bomb": (
        lambda: parquet(time=np.zeros(10 * MB), close=np.zeros(10 * MB)),
        "unpacks to more than 200 times its size",
    ),
    "a Parquet bomb of two rows": (
        lambda: parquet(time=["2021-01-01", "2021-01-02" + "0" * (100 * MB)], close=[1.0, 2.0]),
        "unpacks to more than 200 times its size",
    ),
    "NaN alone": (
        lambda: HEADER + b"".join(b"%d,NaN,NaN,NaN,NaN,NaN\n" % (1614556800 + 60 * i) for i in range(100_000)),
        r"no usable row \(100000 without a price\)",
    ),
    "a formula for a price": (
        lambda: HEADER + ROWS + b"1614656800,=1+1,1,1,1,1\n",
        "line 22: column 'open' .* '=1\\+1'",
    ),
    "a formula for a time": (lambda: HEADER + ROWS + b"=cmd|x,1,1,1,1,1\n", "line 22: column 'time' has '=cmd|x'"),
    "symbols that move the cursor": (
        lambda: parquet(time=["2021-01-01", "2021-01-02"], close=[1.0, 2.0], symbol=["a\nb", "c\x1b[2Jd" + "x" * 9999]),
        "holds 2 symbols \\(a\ufffdb, c\ufffd\\[2Jdx+\\.\\.\\.\\); choose one",
    ),
    "a column of lists": (lambda: parquet(time=["2021-01-01"], close=[[1.0]]), "should hold numbers, but its type is"),
    "JSON nested without end": (lambda: b"[" * (10 * MB), "JSON nested too deep"),
    "100,000 columns": (lambda: (b",".join([b"1"] * 100_000) + b"\n") * 3, "has 100,000 columns"),
    "100,000 symbols": (
        lambda: b"symbol," + HEADER + b"".join(b"S%d,%d,1,1,1,1,1\n" % (i, 1614556800) for i in range(100_000)),
        r"holds 100,000 symbols \(S0, S1, .* \(100,000 in all\)\); choose one",
    ),
}
HUGE = {
    "a line of 100 MB of commas": (lambda: b"," * (100 * MB), "a line of more than 1,048,576 characters"),
    "a line of 100 MB of spaces": (lambda: b" " * (100 * MB) + b"x", "begins with blank lines alone"),
    "a line of 100 MB behind rows": (lambda: HEADER + ROWS + b"1," * (50 * MB), "a line of more than 1,048,576"),
    "a field of 100 MB": (lambda: HEADER + ROWS + b"1" * (100 * MB) + b",1,1,1,1,1\n", "a line of more than 1,048,576"),
    "a bzip2 bomb": (lambda: bz2.compress(b"0" * (100 * MB)), "unpacks to more than 200 times its size"),
    "an xz bomb": (lambda: lzma.compress(b"0" * (200 * MB), preset=0), "unpacks to more than 200 times its size"),
    "a zip bomb": (lambda: zipped(b"0" * (200 * MB)), "unpacks to more than 200 times its size"),
    "a bomb in a bomb": (lambda: gzip.compress(gzip.compress(b"0" * (200 * MB))), "unpacks to more than 200 times"),
    "JSON of one list": (lambda: b"[[" + b"10," * (8 * MB) + b"1]]", "JSON without a table of bars"),
    "JSON of 100 MB": (lambda: b"[[1,1,1,1,1],[" + b"1," * (50 * MB), "JSON of more than 32 MiB"),
    "a quotation mark that hides 100 MB": (lambda: HEADER + ROWS + b'"' + b"1,2\n" * (25 * MB), "rows have 2|fields"),
}

READ_ALL = """
import json, re, sys, time
from pathlib import Path
from jaxrl_trade.bars import load_bars, sample_bars

sample_bars()  # pandas and Arrow are loaded
for path in map(Path, sys.argv[1:]):
    start = time.perf_counter()
    try:
        message = repr(load_bars(path))
    except (ValueError, OSError) as error:
        message = str(error)
    print(json.dumps([path.name, message, time.perf_counter() - start]), flush=True)
status = Path("/proc/self/status")
peak = re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text()) if status.exists() else None
print(json.dumps(int(peak[1]) // 1024 if peak else 0))
"""


@pytest.mark.parametrize("files", [HOSTILE, pytest.param(HUGE, marks=pytest.mark.slow)], ids=["hostile", "huge"])
def test_hostile_files_end_in_one_line_soon_and_in_little_memory(files, tmp_path):
    for name, (content, _) in files.items():
        (tmp_path / name).write_bytes(content())
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, *(str(tmp_path / name) for name in files)], capture_output=True, text=True
    )
    assert done.stderr == ""
    *results, peak = map(json.loads, done.stdout.splitlines())
    assert [name for name, _, _ in results] == list(files)
    for name, message, seconds in results:
        assert message.startswith(str(tmp_path / name))
        assert message.isprintable()  # one line, and nothing that a terminal would obey
        assert len(message) < 600
        assert re.search(files[name][1], message)
        assert seconds < MOST_SECONDS
    assert peak < MOST_MIB


def test_a_symbol_that_is_html_is_a_symbol(tmp_path):
    symbol = "<script>alert(1)</script>"
    rows = ROWS.replace(b"\n1", b"\n" + symbol.encode() + b",1")
    (tmp_path / "p.csv").write_bytes(b"symbol," + HEADER + symbol.encode() + b"," + rows)
    assert load_bars(tmp_path / "p.csv").symbol == symbol
    assert [bars.symbol for bars in load_instruments(tmp_path)] == [symbol]


def test_a_symbol_is_shown_without_what_a_terminal_would_obey(tmp_path):
    (tmp_path / "p.parquet").write_bytes(
        parquet(time=["2021-01-01", "2021-01-02"], close=[1.0, 2.0], ticker=["a\x1b[2J"] * 2)
    )
    assert load_bars(tmp_path / "p.parquet").symbol == "a\ufffd[2J"


def test_a_device_without_an_end_is_not_read():
    with pytest.raises(ValueError, match="/dev/zero is a device, not a file"):
        load_bars("/dev/zero")


PIECES = [
    b"\n",
    b",",
    b";",
    b'"',
    b"\t",
    b"NaN",
    b"-",
    b"=1+1",
    b"\0",
    b"\xff",
    b"1e5",
    b"0",
    b"9" * 20,
    b"[",
    b"{",
    b"}",
]
PIECES += [
    b"<script>",
    b"/",
    b" ",
    b"\r",
    b"|",
    b"2024-02-30",
    b":",
    b"AM",
    b"1,000.5",
    b"UTC",
    b"PAR1",
    b"\xef\xbb\xbf",
]


def damaged(rng: random.Random, files: list[bytes]) -> bytes:
    """One of the files cut off, or with bytes changed, put in, left out, repeated, or taken from another."""
    data = bytearray(rng.choice(files))
    for _ in range(rng.choice([1, 1, 1, 2, 4, 12])):
        at = rng.randrange(len(data) + 1)
        end = at + rng.randrange(100)
        other = rng.choice(files)
        start = rng.randrange(len(other))
        data[at : rng.choice([at, at, end])] = rng.choice(
            [
                b"",
                bytes([rng.randrange(256)]),
                rng.choice(PIECES),
                data[at:end],
                other[start : start + rng.randrange(100)],
            ]
        )
        if rng.random() < 0.2:
            del data[at:]
    return bytes(data)


def read_damaged(seed: int, count: int, path) -> int:
    """Reads that many damaged files; how many of them gave bars."""
    rng = random.Random(seed)
    files = [text.encode() for _, _, text in FILES.values()] + [case[0].encode() for case in AMBIGUOUS.values()]
    files += [pack(files[0]) for pack in (gzip.compress, bz2.compress, lzma.compress, zipped)]
    times = pa.array([1705329000, 1705329060], pa.timestamp("s", "Asia/Tokyo"))
    table = {"time": times, "close": [1.5, 1.6], "symbol": ["A", "A"]}
    files += [files[3].decode().encode("utf-16"), *[parquet(**table), feather(**table)] * 3]
    given = 0
    for _ in range(count):
        path.write_bytes(damaged(rng, files))
        try:
            bars = load_bars(path)
        except ValueError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            assert len(str(error)) < 1500  # noqa: PT017
        else:
            given += 1
            open, high, low, close, volume = bars.frame.to_numpy().T
            assert np.isfinite(bars.frame.to_numpy()).all()
            assert (low > 0).all()
            assert (low <= np.minimum(open, close)).all()
            assert (high >= np.maximum(open, close)).all()
            assert (volume >= 0).all()
            assert bars.index.is_monotonic_increasing
            assert bars.index.is_unique
    return given


def test_damaged_files_give_bars_that_can_be_or_one_line(tmp_path):
    assert 30 < read_damaged(1, 300, tmp_path / "p.csv") < 270


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_damaged_files_give_bars_that_can_be_or_one_line(tmp_path):
    assert read_damaged(random.randrange(2**32), 10_000, tmp_path / "p.csv") > 0
