"""The flags of every command that reads prices reach `load_bars`."""

from __future__ import annotations

import dataclasses

import pytest
import tyro

from jaxrl_trade.bars import Bars, LoadOptions
from jaxrl_trade.cli.data import ReadFlags, load
from jaxrl_trade.cli.recorded import load_again, recorded
from tests.bars.builders import random_frame
from tests.bars.vendor_files import AMBIGUOUS


def flags(*words):
    return tyro.cli(ReadFlags, args=words, config=(tyro.conf.FlagCreatePairsOff,)).options()


def test_every_option_has_a_flag():
    words = ("--symbol", "A", "--tz", "-05:00", "--day-first", "--columns", "close=C", "--decimal", ",", "--adjust")
    given = {
        "symbol": "A",
        "tz": "-05:00",
        "day_first": True,
        "columns": {"close": "C"},
        "decimal": ",",
        "adjust": True,
    }
    assert flags(*words) == given
    assert given.keys() == {field.name for field in dataclasses.fields(LoadOptions)}
    assert LoadOptions(**flags()) == LoadOptions()
    assert flags("--month-first")["day_first"] is False
    with pytest.raises(ValueError, match="--day-first and --month-first exclude each other"):
        flags("--day-first", "--month-first")


@pytest.mark.parametrize("shape", AMBIGUOUS)
def test_the_flag_that_a_refusal_names_settles_it(shape, tmp_path):
    text, _, options, *_ = AMBIGUOUS[shape]
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(ValueError, match="--") as caught:
        load(tmp_path / "p.csv", flags())
    words = {"day_first": ["--day-first"], "symbol": ["--symbol", options.get("symbol")], "decimal": ["--decimal", ","]}
    (name,) = options
    assert words[name][0] in str(caught.value)
    assert len(load(tmp_path / "p.csv", flags(*words[name]))) == 5


def test_bars_adjusted_for_splits_are_read_again_as_a_run_recorded_them(tmp_path):
    frame = random_frame(200, freq="D")
    frame.iloc[:90, :4] *= 3
    frame.to_csv(tmp_path / "p.csv")
    bars = load(tmp_path / "p.csv", flags("--adjust"))
    assert bars.sha256 != Bars.from_frame(frame).sha256
    place = {"first": 0, "end": 2, "start_time": "", "last_time": ""}
    data = {"path": str(tmp_path / "p.csv"), "options": flags("--adjust"), "sha256": bars.sha256}
    data["splits"] = dict.fromkeys(("train", "validation", "test"), place)
    assert [again.sha256 for again in load_again({"data": data})] == [bars.sha256]
    with pytest.raises(ValueError, match=r"no usable options\.undo"):
        recorded({"data": {**data, "options": {"undo": True}}})


def test_options_without_a_file_are_refused():
    with pytest.raises(ValueError, match="adjust says how to read a file, but no --data was given"):
        load(None, flags("--adjust"))
