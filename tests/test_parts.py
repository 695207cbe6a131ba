"""Parts of the user's own: found by file and name, known again by hash, and every mistake is one line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from jaxrl_trade.parts import Part, record

SOURCE = """
from beside import OFFSET

FACTOR = 3

def scale(x):
    return FACTOR * x + OFFSET

def broken(x):
    return x.nothing
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("OFFSET = 100\n")
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_part_is_what_it_names_and_equal_to_itself_read_again(file: Path) -> None:
    part = Part.of(f"{file}:scale")
    assert part(2) == 106
    assert part == Part.of(f"{file}:scale")
    assert hash(part) == hash(Part.of(f"{file}:scale"))
    assert part.sha256 == hashlib.sha256(SOURCE.encode()).hexdigest()
    assert Part.of(f"{file}:FACTOR").load() == 3


def test_a_part_comes_back_from_json_and_reads_its_file_only_when_used(file: Path) -> None:
    data = json.loads(json.dumps(dataclasses.asdict(Part.of(f"{file}:scale"))))
    assert Part.of_json(data, "x")(1) == 103
    file.unlink()
    gone = Part.of_json(data, "x")  # nothing is read yet
    with pytest.raises(ValueError, match=r"mine.py cannot be read \(No such file"):
        gone(1)
    with pytest.raises(ValueError, match=r"reward_fn is 3, not the record of a part \(name, path, sha256\)"):
        Part.of_json(3, "reward_fn")


def test_a_changed_file_is_refused(file: Path) -> None:
    part = Part.of(f"{file}:scale")
    file.write_text(SOURCE + "# another line\n")
    with pytest.raises(
        ValueError, match=r"mine.py has changed since the run began \(sha256 .* instead of .*\); restore it"
    ):
        part(1)
    file.write_text(SOURCE)
    assert part(1) == 103


def test_a_function_at_the_top_of_a_file_is_a_part_and_another_is_a_name(file: Path) -> None:
    def inner() -> None: ...

    own = Part.of_function(test_a_changed_file_is_refused)
    assert own == Part(
        __file__, "test_a_changed_file_is_refused", hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    )
    assert Part.of_function(inner) is None
    assert Part.of_function(len) is None
    assert record(len) == "builtins:len"
    assert record(Part.of(f"{file}:scale")) == dataclasses.asdict(Part.of(f"{file}:scale"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.py", r"'.*mine.py' names no part; write it as file.py:NAME"),
        ("mine.py:a b", r"names no part"),
        ("mine.txt:scale", r"names no part"),
        ("none.py:scale", r"none.py cannot be read \(No such file or directory\)"),
        ("mine.py:scales", r"mine.py has no scales; it has OFFSET, FACTOR, scale, broken"),
    ],
)
def test_what_names_no_part_is_said(file: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Part.of(f"{file.parent / name}")


def test_an_error_of_the_file_is_one_line_with_the_line_of_the_file(file: Path) -> None:
    with pytest.raises(
        ValueError, match=r"mine.py:broken fails in line 10: AttributeError: 'int' object has no"
    ) as error:
        Part.of(f"{file}:broken")(1)
    assert isinstance(error.value.__cause__, AttributeError)  # what --debug shows
    file.write_text("x = 1\ny = x +\n")
    with pytest.raises(ValueError, match=r"mine.py fails: SyntaxError"):
        Part.of(f"{file}:x")
    file.write_text("x = 1\nimport nothing_of_that_name\n")
    with pytest.raises(ValueError, match=r"mine.py fails in line 2: ModuleNotFoundError"):
        Part.of(f"{file}:x")
