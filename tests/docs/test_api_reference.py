"""The reference that `make docs` writes: a page for each room, of public names alone, without a warning."""

import re
import subprocess
import sys

import pytest

import jaxrl_trade as jt
from tests.docs.pages import ROOT

pytest.importorskip("pdoc", reason="the extra `docs` is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("api")
    script = [sys.executable, "scripts/api_reference.py", str(out)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return out


@pytest.mark.slow
def test_every_public_name_is_there_and_no_other_module(folder):
    rooms = {"agents", "backtesting", "bars", "env", "networks", "rollout", "scale"}
    pages = {str(path.relative_to(folder)) for path in folder.rglob("*.html")}
    assert pages == {"index.html", "jaxrl_trade.html", "pallas_kernels.html"} | {f"jaxrl_trade/{x}.html" for x in rooms}
    described = set(re.findall(r'<section id="(\w+)">', (folder / "jaxrl_trade.html").read_text()))
    assert described == set(jt.__all__) - {"env"}


@pytest.mark.slow
def test_no_private_name_is_shown(folder):
    for path in folder.rglob("*.html"):
        shown = re.sub(r"<(style|script).*?</\1>|<[^>]+>", "", path.read_text(), flags=re.DOTALL)
        assert not re.findall(r"(?<![\w`}])_[a-z]\w+", shown), path.name
