"""The report in a real browser. Its content security policy turns any network access into a console error."""

import re
import shutil
import subprocess

import pytest

from tests.backtesting.test_report import PROVENANCE, TRAINING, report_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look at the report with")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The rendered document and what the browser logged."""
    folder = tmp_path_factory.mktemp("browser")
    path = report_of().to_html(folder / "r.html", training=TRAINING, provenance=PROVENANCE)
    return browse(path.as_uri(), folder)


def browse(address, folder):
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=20000"]
    command = [CHROMIUM, *options, f"--user-data-dir={folder / 'profile'}", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    return done.stdout, re.findall(r".*CONSOLE.*", done.stderr)


def test_the_page_logs_nothing_and_asks_for_nothing(page):
    assert page[1] == []


def test_every_chart_is_drawn(page):
    dom = page[0]
    for name in ("equity", "drawdown", "exposure", "actions", "training-0"):
        assert re.search(
            rf'<div class="(chart|small) js-plotly-plot" id="{name}"[^>]*>.{{0,400}}<svg class="main-svg"', dom, re.S
        ), name


def test_a_network_request_would_be_logged(tmp_path):
    report = report_of().to_html(tmp_path / "r.html")
    text = report.read_text(encoding="utf-8").replace("</main>", '<img src="https://example.invalid/x.png"></main>')
    report.write_text(text, encoding="utf-8")
    _, logged = browse(report.as_uri(), tmp_path)
    assert any("Content Security Policy" in line for line in logged)
