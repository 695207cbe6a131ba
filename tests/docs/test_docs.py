"""Every block of README.md and docs/*.md runs, or says why not and is parsed; every link leads somewhere."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxrl_trade as jt
from jaxrl_trade.cli import COMMANDS, main
from tests.docs.pages import LANGUAGES, MARKERS, PAGES, ROOT, Block, blocks
from tests.docs.runner import commands, run, small

EVERY = [block for page in PAGES for block in blocks(page)]
NOT_RUN = [block for block in EVERY if not block.runs]
RUN_PAGES = [page for page in PAGES if any(block.runs and block.language != "text" for block in blocks(page))]
BARS = 2600  # a little more than the least that can be split
EVERYWHERE = {"--help", "--debug", "--json"}  # flags that every command takes
OTHERS = {"--gpus-per-task"}  # of SLURM


def ids(value: Any) -> str:
    return str(value) if isinstance(value, Block) else value.name


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run on the bundled bars."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main([*small(["train", "ppo"]), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory):
    """A store of compiled programs: most commands compile what another has compiled."""
    options = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    jax.experimental.compilation_cache.compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    jax.experimental.compilation_cache.compilation_cache.reset_cache()


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_PAGES, ids=ids)
def test_the_blocks_of_a_page_run_from_top_to_bottom(page, tmp_path, monkeypatch, trained):
    monkeypatch.chdir(tmp_path)
    for name in ("scripts", "examples"):
        os.symlink(ROOT / name, name)
    names: dict[str, Any] = {"__name__": page.stem}
    for block in filter(lambda block: block.runs, blocks(page)):
        for file in block.markers.get("files", "").split():
            make(tmp_path / file, trained)
        run(block, tmp_path, names)


def make(path: Path, trained: Path) -> None:
    """A file of prices or a trained run, as a page's marker names them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        jt.sample_bars().frame.iloc[:BARS].to_csv(path)
    else:
        shutil.copytree(trained, path)


@pytest.mark.parametrize("block", EVERY, ids=ids)
def test_a_block_names_its_language_and_its_comments_are_known(block):
    assert block.language in LANGUAGES, f"{block}: a fence with {block.language!r}"
    assert set(block.markers) <= set(MARKERS)
    if block.language == "text":
        assert not block.markers, f"{block}: nothing of it is run"


@pytest.mark.parametrize("block", NOT_RUN, ids=ids)
def test_a_block_that_is_not_run_says_why_and_is_parsed(block):
    assert len(block.markers["not run"]) > 10, f"{block}: a reason"
    if block.language == "python":
        ast.parse(block.code)
        return
    parsed = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, check=False)
    assert parsed.returncode == 0, parsed.stderr


@pytest.mark.parametrize("block", [block for block in NOT_RUN if block.language == "shell"], ids=ids)
def test_the_flags_and_targets_of_a_block_that_is_not_run_exist(block):
    text = block.code.replace("\\\n", " ")
    for words in re.findall(r"jaxrl-trade ((?:(?!#|;|&|\|).)+)", text):
        check_command(shlex.split(words), block)
    for script, words in re.findall(r"python (scripts/\w+\.py)([^#\n]*)", text):
        unknown = flags(shlex.split(words)) - script_flags(script)
        assert not unknown, f"{block}: {script} has no {unknown}"
    for line in commands(text):
        program, *words = shlex.split(line, comments=True)
        if program == "make":
            targets = [word for word in words if "=" not in word]
            subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True)
        for extras in re.findall(r"\[([\w,]+)\]", line) if program == "pip" else []:
            assert set(extras.split(",")) <= project_extras(), f"{block}: {extras}"


def check_command(words: list[str], block: Block) -> None:
    command = next((name for name in COMMANDS if tuple(words[: len(name)]) == name), None)
    assert command is not None, f"{block}: no command {words}"
    resumes = "--resume" in words
    unknown = flags(words) - help_flags(command, resumes) - EVERYWHERE
    assert not unknown, f"{block}: {' '.join(command)} has no {unknown}"


@functools.cache
def help_flags(command: tuple[str, ...], resumes: bool) -> set[str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        main([*command, *(["--resume", "run"] if resumes else []), "--help"])
    return set(re.findall(r"--[a-z][\w-]*", said.getvalue()))


@functools.cache
def script_flags(script: str) -> set[str]:
    """Read off the source, since a script's imports take seconds."""
    return set(re.findall(r"add_argument\(\s*\"(--[a-z][\w-]*)", (ROOT / script).read_text()))


@functools.cache
def project_extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_flags_in_the_text_of_a_page_exist(page):
    text = "".join(
        re.findall(r"`[^`\n]+`", re.sub("^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))
    )
    known = set().union(*(help_flags(command, resumes) for command in COMMANDS for resumes in (False, True)))
    known |= set().union(*(script_flags(f"scripts/{path.name}") for path in (ROOT / "scripts").glob("*.py")))
    unknown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - known - EVERYWHERE - OTHERS
    assert not unknown, unknown


def flags(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=ids)
def test_links_and_pages_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:docs|scripts|tests|examples|jaxrl_trade)/[\w./-]+\.(?:md|py|png))`", text)
    for link in filter(None, links):
        assert (page.parent / link).exists(), link
    for name in named:
        assert (ROOT / name).exists(), name


def test_every_page_is_in_the_index():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert page.name == "index.md" or f"]({page.name})" in text, page.name


@pytest.mark.slow
def test_the_errors_in_troubleshooting_are_those_that_are_printed(tmp_path, monkeypatch, capsys, trained):
    monkeypatch.chdir(tmp_path)
    jt.sample_bars().frame.iloc[:800].to_csv("short.csv")
    make(tmp_path / "my.csv", trained)
    train = small(["train", "ppo", "--data", "my.csv", "--out", "runs/first"])
    assert main(train) == 0
    for words in (
        ["train", "ppo", "--data", "short.csv"],
        train,
        ["train", "ppo", "--resume", "runs/first", "--updates", "1"],
        [*train, "--out", "runs/nan", "--learning-rate", "1e30", "--max-grad-norm", "1e30"],
    ):
        assert_in_troubleshooting(words, capsys)
    with Path("my.csv").open("a") as file:
        file.write("2017-12-31 00:00:00+00:00,1,1,1,1,1\n")
    assert_in_troubleshooting(["train", "ppo", "--resume", "runs/first", "--data", "my.csv"], capsys)


def assert_in_troubleshooting(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake's line stands on the page, whatever its numbers."""
    capsys.readouterr()
    assert main(words) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert line.startswith("error: ")
    assert re.sub(r"\d+", "0", line) in re.sub(r"\d+", "0", page)
