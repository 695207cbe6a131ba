"""The bundled sample is what its note says it is."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import jaxrl_trade.bars
from jaxrl_trade.bars import sample_bars

SAMPLES = Path(jaxrl_trade.bars.__file__).parent / "samples"


def test_the_sample_is_a_year_of_hourly_bars_with_the_hash_in_its_note():
    bars = sample_bars()
    assert bars.symbol == "EURUSD"
    assert len(bars) == 6225
    assert bars.report.rows_kept == bars.report.rows_read
    assert bars.report.bar_size == datetime.timedelta(hours=1)
    assert bars.report.first == datetime.datetime(2017, 1, 1, 22, tzinfo=datetime.UTC)
    assert bars.report.last == datetime.datetime(2017, 12, 29, 21, tzinfo=datetime.UTC)
    assert bars.report.gaps == 52
    assert bars.report.warnings == ()
    assert bars.frame.iloc[0].tolist() == [1.05236, 1.05253, 1.05221, 1.05227, 143539993.3]  # the source's first row
    assert bars.frame.iloc[-1].tolist() == [1.19984, 1.2013, 1.19931, 1.20075, 4885529785.0]  # and its last
    assert bars.sha256 in (SAMPLES / "eurusd_1h_2017.md").read_text()


def test_the_note_carries_the_licence_that_the_data_came_under():
    note = (SAMPLES / "eurusd_1h_2017.md").read_text()
    assert "Copyright (c) 2019 Mohammad Amin Haghpanah" in note
    assert "The above copyright notice and this permission notice shall be included" in note


def test_importing_the_bars_loads_neither_pandas_nor_talib_nor_pyarrow():
    code = "import sys, jaxrl_trade.bars; print(sorted({'pandas', 'talib', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
