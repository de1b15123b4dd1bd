"""The page of a report, as HTML and in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import made_reports
import pytest
from browser import Browser, Page
from made_reports import MARKUP, SCRIPT

from commhooks.conformance.cells import Failure, ImplementationResult
from commhooks.conformance.report.document import Report
from commhooks.conformance.report.page import page, write_page

Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Open:
    """Opens the page of some reports."""

    def open_page(*reports: Report, **how: object) -> Page:
        path = tmp_path / "index.html"
        write_page(reports or [made_reports.report()], path)
        return browser.open(path, **how)  # type: ignore[arg-type]

    return open_page


def _hostile() -> Report:
    """A report in which everything that an implementation says is markup."""
    failure = Failure(MARKUP, MARKUP, MARKUP, MARKUP, MARKUP, MARKUP, MARKUP, "repro/<b>.py")
    cells = [
        made_reports.cell("ALPHA-MEAN", "fail", failure, case=MARKUP),
        made_reports.cell("ALPHA-DTYPE", "deviation", failure, MARKUP, hook=MARKUP),
        made_reports.cell("BETA-NICE", "not run", reason=MARKUP),
        made_reports.cell("BETA-TRAFFIC", "pass", reason=MARKUP),
    ]
    facts = [MARKUP] * 7
    result = ImplementationResult(*facts, cells=cells, stale=[MARKUP], scripts={"repro/<b>.py": f"</pre>{MARKUP}"})
    return made_reports.report(result)


def test_page_has_the_verdict_and_every_finding() -> None:
    """The verdict comes first; then each failure with all that is known, the deviations, and what was left out."""
    text = page([made_reports.report()])
    places = [
        text.index(words)
        for words in ("1 failure in 1 clause besides 1 recorded deviation.", ">Failures<", ">Deviations, as recorded<",
                      ">Not run, and unsupported<", ">Clauses<", ">On the wire<", ">Slowest checks<")
    ]  # fmt: skip
    assert places == sorted(places)
    for words in ("MUST 0/2", "1e+07 times the bound", "repro/alpha-mean.py", "print(&#39;the failure shows&#39;)",
                  "It stays in float16.", "needs 2 CUDA devices", "two allreduces", "192", "0.50"):  # fmt: skip
        assert words in text, words


def test_sentences_of_the_verdict() -> None:
    """The verdict says whether anything failed, is stale, or could not be tried."""
    cases = {
        "Every clause that was tried holds.": [made_reports.cell("ALPHA-MEAN")],
        "Nothing could be tried.": [made_reports.cell("ALPHA-MEAN", "not run", reason="no device")],
        "Nothing was checked.": [],
        "No failure, and 1 recorded deviation.": [made_reports.cells()[7]],
    }
    for sentence, cells in cases.items():
        assert sentence in page([made_reports.report(made_reports.result(own=cells))]), sentence
    stale = replace(made_reports.result(own=[made_reports.cell("ALPHA-MEAN")]), stale=["the deviation matches no cell"])
    text = page([made_reports.report(stale)])
    assert "1 stale record." in text
    assert "the deviation matches no cell" in text


def test_nothing_from_outside() -> None:
    """The page loads nothing and forbids itself to."""
    text = page([made_reports.report()])
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*\"", text)
    assert "@import" not in text
    assert "url(" not in text


def test_markup_is_text() -> None:
    """Nothing that a report says becomes markup."""
    text = page([_hostile()])
    assert "<img" not in text
    assert text.count("<script>") == 1
    assert "</pre><script" not in text


def test_markup_does_nothing(opened: Open) -> None:
    """In a browser it stays a text that is read."""
    shown = opened(_hostile())
    assert "taken over" in shown.handle.title()
    assert shown.handle.title().startswith("<script>")
    assert shown.handle.locator("img").count() == 0
    assert shown.problems() == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("number", [1, 3])
def test_fits_the_window(opened: Open, width: int, number: int) -> None:
    """Opened all the way, nothing is wider than the window, and the browser has nothing to complain about."""
    report = made_reports.report(*(made_reports.result(f"vendor.with.a.long.name.hooks{n}") for n in range(number)))
    shown = opened(report, width=width)
    shown.handle.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert shown.overflow() == []
    assert shown.problems() == []


def _visible_clauses(shown: Page) -> list[str]:
    return shown.handle.locator(".clause:visible > summary .id").all_inner_texts()


def test_filters(opened: Open) -> None:
    """Level, hook, state and text leave what matches, alone and together; Clear brings all back."""
    shown = opened()
    form = shown.handle.locator("#filter")
    assert len(_visible_clauses(shown)) == 4
    form.locator("[name=level]").select_option("MUST")
    assert _visible_clauses(shown) == ["ALPHA-MEAN", "ALPHA-DTYPE"]
    form.locator("[name=state]").select_option("fail")
    assert _visible_clauses(shown) == ["ALPHA-MEAN"]
    assert shown.handle.locator(".finding:visible").count() == 1
    assert form.locator("output").inner_text() == "1 of 4 clauses"
    form.locator("[name=state]").select_option("not run")
    assert _visible_clauses(shown) == []
    form.locator("button").click()
    shown.handle.locator("#shown", has_text=re.compile("^4 clauses$")).wait_for()
    form.locator("[name=hook]").select_option("fp16_compress_hook")
    assert _visible_clauses(shown) == ["ALPHA-DTYPE", "BETA-TRAFFIC"]
    form.locator("[name=text]").fill("LIKES sends")
    assert _visible_clauses(shown) == ["BETA-TRAFFIC"]
    assert shown.problems() == []


def test_script_is_copied(opened: Open) -> None:
    """By keyboard alone a reader opens a finding's script and copies it, whole."""
    shown = opened()
    shown.handle.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.handle.locator(".script > summary").focus()
    shown.handle.keyboard.press("Enter")
    shown.handle.keyboard.press("Tab")
    assert shown.handle.evaluate("document.activeElement.className") == "copy"
    shown.handle.keyboard.press("Enter")
    shown.handle.locator(".copied", has_text="Copied.").first.wait_for()
    assert shown.handle.evaluate("navigator.clipboard.readText()") == SCRIPT


def test_matrix_leads_to_what_failed(opened: Open) -> None:
    """With several implementations a cell of the matrix opens the finding that explains it."""
    shown = opened(made_reports.report(made_reports.result("one"), made_reports.result("two")))
    assert shown.handle.locator("#shown").inner_text() == "4 clauses"
    row = shown.handle.locator(".matrix tbody tr", has_text="ALPHA-DTYPE")
    assert row.locator("td").all_inner_texts() == ["△ deviation", "△ deviation"]
    finding = shown.handle.locator("#i2-deviation-1")
    assert finding.get_attribute("open") is None
    row.locator("td a").nth(1).click()
    shown.handle.locator("#i2-deviation-1[open]").wait_for()
    assert "It stays in float16." in finding.inner_text()


def test_every_link_leads_somewhere(opened: Open) -> None:
    """Each link of the page is to a place that exists, and no id is used twice."""
    shown = opened(made_reports.report(made_reports.result("one"), made_reports.result("two")))
    dead = "[...document.links].map((a) => a.hash.slice(1)).filter((id) => !document.getElementById(id))"
    assert shown.handle.evaluate(dead) == []
    ids = shown.handle.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


def test_without_scripts(opened: Open) -> None:
    """Without JavaScript everything is there, the filter and the copy button are not, and a click opens a finding."""
    shown = opened(javascript=False)
    assert not shown.handle.locator("#filter").is_visible()
    assert len(_visible_clauses(shown)) == 4
    shown.handle.locator(".script > summary").click()
    assert shown.handle.locator(".script pre").is_visible()
    assert not shown.handle.locator(".copy").is_visible()


def test_printed(opened: Open) -> None:
    """On paper findings are shown in full, without the filter and the scripts."""
    shown = opened(printed=True)
    assert not shown.handle.locator("#filter").is_visible()
    assert not shown.handle.locator(".script").first.is_visible()
    assert shown.handle.locator("#i1-deviation-1 .message").is_visible()


def test_many_cells(opened: Open) -> None:
    """A page of ten implementations of three thousand cells each opens, and can be filtered."""
    shown = opened(made_reports.large(10, 3000))
    assert shown.handle.locator(".matrix tbody tr").count() == 200
    shown.handle.locator("#filter [name=state]").select_option("fail")
    assert 0 < shown.handle.locator(".matrix tbody tr:visible").count() < 200
    assert shown.problems() == []


def test_colours_can_be_read(opened: Open) -> None:
    """Text has a contrast of 4.5 to its ground, light and dark, and states are words besides colours."""
    for dark in (False, True):
        shown = opened(dark=dark)
        assert shown.handle.evaluate(CONTRASTS) == []
        signs = shown.handle.locator(".sign").all_inner_texts()
        assert all(re.search(r"pass|fail|deviation|unsupported|not run|no cell", text) for text in signs)


CONTRASTS = """() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
        .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, place) => sum + v * [0.2126, 0.7152, 0.0722][place], 0);
    const ground = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const colour = parts(getComputedStyle(one).backgroundColor);
            if (colour.length < 4 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    const bad = [];
    document.querySelectorAll("details").forEach((one) => { one.open = true; });
    for (const element of document.body.querySelectorAll("*")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || !element.getClientRects().length || element.matches("option")) continue;
        const [a, b] = [light(parts(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(`${element.className}: ${element.textContent.slice(0, 30)}`);
    }
    return bad;
}"""
