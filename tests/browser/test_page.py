"""The page in a browser: on a desk, on a phone, in the dark, in print. Without a browser this is untested, and fails.

Screenshots and a print go to --artifacts, to be looked at.
"""

import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from nvfp4_suite.ci.report import page

from ..report import fleet, shown
from ..report.test_page import write_evil

NAMES = ("chromium", "chromium-browser", "google-chrome")
VARIABLE = "NVFP4_SUITE_BROWSER"  # the path of another Chromium
SCREENS = {"desk": (1280, "light"), "phone": (390, "light"), "dark": (1280, "dark")}


@pytest.fixture(scope="session")
def browser() -> Browser:
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        places = [os.environ.get(VARIABLE), *map(shutil.which, NAMES), own if Path(own).exists() else None]
        found = next(filter(None, places), None)
        if found is None:
            how = f"apt-get install chromium, playwright install chromium, or {VARIABLE}"
            pytest.fail(f"UNTESTED: there is no Chromium on this host: {how}")
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def night(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("night")
    report = shown.made(fleet.write(folder / "runs"), "b200-3.8.0")
    (folder / "report.html").write_text(page.page(report, shown.NIGHT))
    return folder / "report.html"


@pytest.fixture(params=SCREENS)
def opened(request, browser, night) -> Page:
    """The page from its file; what the console says, or what is fetched beside it, fails the test."""
    width, scheme = SCREENS[request.param]
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened, said, fetched = context.new_page(), [], []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda one: fetched.append(one.url))
    opened.goto(night.as_uri())
    if artifacts := request.config.getoption("artifacts"):
        opened.screenshot(path=artifacts / f"report-{request.param}.png", full_page=True)
    yield opened
    assert (said, fetched) == ([], [night.as_uri()])
    context.close()


def test_nothing_reaches_beyond_the_screen(opened):
    width = opened.viewport_size["width"]
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    wide = """width => [...document.querySelectorAll("body *")]
        .filter(one => one.getClientRects().length && !one.closest("pre, .scroll, .sr, svg"))
        .filter(one => one.getBoundingClientRect().right > width + 0.5).map(one => one.outerHTML.slice(0, 80))"""
    assert opened.evaluate(wide, width) == []


def test_every_link_goes_to_its_place(opened):
    links = opened.locator("a[href]:visible")
    assert links.count() > 20
    for place in {links.nth(n).get_attribute("href") for n in range(links.count())}:
        links.locator(f"xpath=self::*[@href='{place}']").first.click()
        top = opened.evaluate("id => document.getElementById(id).getBoundingClientRect().top", place[1:])
        assert -2 <= top < opened.viewport_size["height"], place


def test_tables_have_heads_for_every_cell(opened):
    wrong = """() => [...document.querySelectorAll("table")].filter(table => {
        const heads = table.tHead.rows[0].cells.length, rows = [...table.tBodies[0].rows];
        const named = rows.every(row => row.cells[0].scope === "row" && row.cells.length === heads);
        return !named || ![...table.tHead.rows[0].cells].every(cell => cell.scope === "col");
    }).map(table => table.outerHTML.slice(0, 80))"""
    assert opened.locator("table").count() >= 12
    assert opened.evaluate(wrong) == []


def test_headings_are_in_order(opened):
    levels = opened.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map(one => Number(one.tagName[1]))"
    )
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


# The contrast of WCAG 2: of each text with the first background behind it that is not transparent.
_FAINT = """() => {
    const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const behind = one => {
        for (; one; one = one.parentElement) {
            const found = numbers(getComputedStyle(one).backgroundColor);
            if (found.length < 4 || found[3] > 0) return found;
        }
        return [255, 255, 255];
    };
    const texts = [...document.querySelectorAll("body *:not(svg, svg *)")].filter(one =>
        one.getClientRects().length && [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
    return texts.map(one => {
        const [a, b] = [numbers(getComputedStyle(one).color), behind(one)].map(light);
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.outerHTML.slice(0, 90)];
    }).filter(([ratio, text]) => ratio < 4.5);
}"""


def test_every_text_stands_out_from_what_is_behind_it(opened):
    assert opened.evaluate(_FAINT) == []


def test_a_picture_is_as_wide_as_its_column_and_has_a_name(opened):
    picture = opened.locator("svg.where").first
    box = picture.bounding_box()
    assert 200 < box["width"] <= opened.viewport_size["width"] - 32 and 100 < box["height"] < 600
    assert "1,024 of 8,976 elements are wrong" in picture.get_attribute("aria-label")
    wrong, grid = picture.locator("path.s4").bounding_box(), picture.locator("path.grid").bounding_box()
    assert grid["x"] < wrong["x"] and wrong["x"] + wrong["width"] < grid["x"] + grid["width"]
    assert abs(wrong["width"] / grid["width"] - 64 / 272) < 0.01


def test_what_is_folded_unfolds(opened):
    folded = opened.locator("article:has(> details > summary > h3)").last
    assert not folded.locator("pre").first.is_visible()
    folded.locator("summary").first.click()
    assert folded.locator("pre").first.is_visible()


def test_the_print_has_what_is_folded(browser, night, request):
    context = browser.new_context()
    printed = context.new_page()
    printed.goto(night.as_uri())
    printed.emulate_media(media="print")
    assert printed.locator("article > details > .told pre").last.is_visible()
    assert not printed.locator("details.whole").last.is_visible()  # pages of traceback
    assert not printed.locator("nav").is_visible()
    if artifacts := request.config.getoption("artifacts"):
        printed.pdf(path=artifacts / "report.pdf", format="A4")
    context.close()


def test_hostile_texts_do_nothing(browser, tmp_path):
    write_evil(tmp_path / "runs")
    (tmp_path / "report.html").write_text(page.page(shown.made(tmp_path / "runs"), shown.NIGHT))
    opened, said = browser.new_page(), []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("dialog", lambda dialog: said.append(dialog.message) or dialog.dismiss())
    opened.goto((tmp_path / "report.html").as_uri())
    assert said == [] and opened.locator("script, img").count() == 0
    assert opened.evaluate("document.documentElement.scrollWidth") <= opened.viewport_size["width"]
    opened.close()
