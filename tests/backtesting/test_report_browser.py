"""The report in a real browser. Its content security policy turns any network access into a console error."""

import shutil

import pytest

from tests.backtesting.test_report import PROVENANCE, TRAINING, report_of, walk_of

sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright to drive a browser with")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look at the report with")

CHARTS = ["equity", "price", "drawdown", "rolling", "exposure", "actions", "training-0"]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    return report_of(days=True).to_html(folder / "r.html", training=TRAINING, provenance=PROVENANCE)


@pytest.fixture(scope="module")
def page(browser, path):
    """The page on a desk, and all that it said or asked for while it was opened."""
    opened, said = look(browser, path, width=1200)
    yield opened, said
    opened.close()


def look(browser, path, width, scheme="light"):
    page, said = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request", lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:")) else 0
    )
    page.goto(path.as_uri())
    page.wait_for_function("document.querySelectorAll('svg.main-svg').length > 0")
    return page, said


def test_the_page_says_nothing_and_asks_for_nothing(page):
    assert page[1] == []


def test_every_chart_holds_data_titles_and_units(page):
    found = page[0].evaluate(
        """() => charts.map(({id}) => {
            const drawn = document.getElementById(id);
            return {id, points: drawn.data.filter(trace => trace.x.length > 1).length, svg: !!drawn.querySelector("svg"),
                    axes: [drawn.layout.xaxis.title.text, drawn.layout.yaxis.title.text],
                    title: drawn.closest("section").querySelector("h2, h3").textContent};
        })"""
    )
    assert [chart["id"] for chart in found] == CHARTS
    for chart in found:
        assert chart["points"] >= 1, chart
        assert chart["svg"], chart
        assert all(chart["axes"]), chart
        assert chart["title"], chart


@pytest.mark.parametrize(("name", "word"), [("equity", "agent"), ("price", "close"), ("actions", "flat")])
def test_hovering_over_a_chart_shows_its_figures(page, name, word):
    chart = page[0].locator(f"#{name}")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page[0].mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.6)
    shown = chart.locator(".hoverlayer")
    sync_api.expect(shown).to_contain_text(word)


def test_on_a_phone_nothing_is_wider_than_the_screen_and_the_dark_page_is_dark(browser, path):
    page, said = look(browser, path, width=390, scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(x) for x in background[4:-1].split(",")) < 40
    labels = page.evaluate("getComputedStyle(document.querySelector('#equity .xtick text')).fill")
    assert min(int(x) for x in labels[4:-1].split(",")) > 100
    assert said == []
    page.close()


def test_a_walk_forward_shows_its_folds_and_seeds(browser, tmp_path):
    page, said = look(browser, walk_of().to_html(tmp_path / "w.html"), width=390)
    for name in ("folds", "fan"):
        assert page.locator(f"#{name} svg.main-svg").count() > 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert said == []
    page.close()


def test_a_network_request_would_be_noticed(browser, path, tmp_path):
    text = path.read_text(encoding="utf-8").replace("</main>", '<img src="https://example.invalid/x.png"></main>')
    asking = tmp_path / "asking.html"
    asking.write_text(text, encoding="utf-8")
    page, said = look(browser, asking, width=1200)
    assert any("Content Security Policy" in line for line in said)
    page.close()
