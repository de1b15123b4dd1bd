"""The documentation: it builds without a warning, its links lead somewhere, and it can be read on any screen."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from browser import Browser

from commhooks.conformance.clauses import all_clauses

pytest.importorskip("sphinx_needs", reason="the documentation is built with sphinx-needs, which needs Python 3.11")

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
WIDTHS = (1280, 390)
# One of each kind of page that only shows source; all others are opened.
SOURCE_PAGES = ("source/test_compress.html", "_modules/commhooks/reference/powersgd.html")
SOURCE_FOLDERS = ("source", "_modules")
# At these widths the theme keeps the contents of the page beyond the edge of the window until they are asked for.
CLOSED_DRAWERS = ".toc-drawer { display: none !important }"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as ``make docs`` builds it: every warning is an error."""
    folder = tmp_path_factory.mktemp("docs")
    options = ["-W", "--keep-going", "-n", "-q", "-E", "-d", str(folder / "doctrees")]
    finished = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert not finished.stderr.strip(), finished.stderr
    return folder / "html"


class Links(HTMLParser):
    """Notes the ids of a page, and what it links to and loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes one element."""
        values = dict(attrs)
        if values.get("id"):
            self.ids[str(values["id"])] += 1
        address = values.get("href") if tag in ("a", "link") else values.get("src")
        if address:
            (self.links if tag == "a" else self.loads).append(address)


@pytest.fixture(scope="session")
def pages(built: Path) -> dict[Path, Links]:
    """What is on each page."""
    return {page: Links(page) for page in sorted(built.rglob("*.html"))}


def dead_links(pages: dict[Path, Links]) -> list[str]:
    """Links within the documentation to files or anchors that are not there, and what is loaded from elsewhere."""
    found = []
    for page, content in pages.items():
        for address in content.links + content.loads:
            target, anchor = urldefrag(address)
            if urlsplit(target).scheme:
                if address in content.loads:
                    found.append(f"{page.name} loads {address}")
                continue
            path = (page.parent / unquote(urlsplit(target).path)).resolve() if target else page
            if not path.is_file():
                found.append(f"{page.name} links to {address}: no such file")
            elif anchor and path in pages and unquote(anchor) not in pages[path].ids:
                found.append(f"{page.name} links to {address}: no such place")
    return found


def test_no_dead_links(pages: dict[Path, Links]) -> None:
    """Every link within the documentation leads to a file and a place in it, and nothing is loaded from elsewhere."""
    assert dead_links(pages) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    """A link to a missing file, one to a missing place and a script from elsewhere are each found."""
    page = tmp_path / "page.html"
    page.write_text(
        "<p id='here'><a href='#here'>a</a><a href='#there'>b</a><a href='gone.html'>c</a>"
        "<a href='https://example.org/'>d</a><script src='https://example.org/x.js'></script>",
        encoding="utf-8",
    )
    assert [text.partition(": ")[0] for text in dead_links({page: Links(page)})] == [
        "page.html links to #there",
        "page.html links to gone.html",
        "page.html loads https://example.org/x.js",
    ]


def test_each_clause_is_on_one_page(pages: dict[Path, Links]) -> None:
    """The specification has each clause once, and no page has an id twice."""
    places = Counter(name for page in pages for name in pages[page].ids if page.parent.name == "specification")
    assert {clause: places[clause] for clause in all_clauses()} == dict.fromkeys(all_clauses(), 1)
    twice = {(page.name, name) for page in pages for name, times in pages[page].ids.items() if times > 1}
    assert twice == set()


def faults(browser: Browser, paths: Iterable[Path]) -> list[str]:
    """What pages complain about, load from elsewhere, or have that is wider than the window."""
    page = browser.open("about:blank")
    found = []
    for path in paths:
        before = len(page.problems())
        page.handle.goto(path.as_uri())
        page.handle.add_style_tag(content=CLOSED_DRAWERS)
        for width in WIDTHS:
            page.handle.set_viewport_size({"width": width, "height": 900})
            found += [f"{path.name} at {width}: {problem}" for problem in page.overflow()]
        found += [f"{path.name}: {problem}" for problem in page.problems()[before:]]
    page.close()
    return found


def test_pages_can_be_read(built: Path, browser: Browser) -> None:
    """No page complains, loads anything from elsewhere or is wider than the window, on a desktop and on a phone."""
    names = [path.relative_to(built).as_posix() for path in sorted(built.rglob("*.html"))]
    shown = [name for name in names if name.split("/")[0] not in SOURCE_FOLDERS or name in SOURCE_PAGES]
    found = faults(browser, [built / name for name in shown])
    assert found == [], "\n".join(found[:20])


def test_unreadable_pages_are_found(tmp_path: Path, browser: Browser) -> None:
    """A table wider than a phone, an error in a script and a picture from elsewhere are each found."""
    page = tmp_path / "page.html"
    page.write_text(
        "<table style='width: 600px'><tr><td>wide</td></tr></table><script>throw new Error('broken')</script>"
        "<img src='https://example.org/x.png'>",
        encoding="utf-8",
    )
    found = "\n".join(faults(browser, [page]))
    assert "page.html at 390: <table" in found
    assert "page.html at 1280" not in found
    assert "broken" in found
    assert "external request: https://example.org/x.png" in found


@pytest.mark.parametrize("clause", ["FP16-CAST-FIRST", "PSGD-PICKLE-GROUP"])
def test_search_finds_a_clause(built: Path, browser: Browser, clause: str) -> None:
    """The search box, given a clause's id, leads to the clause itself first."""
    page = browser.open(built / "index.html")
    page.handle.fill("input[name=q]", clause)
    page.handle.press("input[name=q]", "Enter")
    first = page.handle.locator("#search-results ul.search li a").first
    first.wait_for()
    assert (first.get_attribute("href") or "").endswith(f"#{clause}")
    assert page.problems() == []
    page.close()


def test_table_of_clauses_can_be_filtered(built: Path, browser: Browser) -> None:
    """Level, object and words of a clause each leave the rows that have them, and together those that have all."""
    page = browser.open(built / "traceability" / "index.html")
    rows = page.handle.locator("table.ch-filter tbody tr:visible")
    may = [clause for clause in all_clauses().values() if clause.level == "MAY"]
    assert rows.count() == len(all_clauses())
    page.handle.select_option("select[name=level]", "MAY")
    assert rows.count() == len(may)
    assert page.handle.locator(".ch-controls output").inner_text() == f"{len(may)} of {len(all_clauses())} clauses"
    page.handle.select_option("select[name=hook]", "allreduce_hook")
    assert rows.count() == sum(clause.source.endswith("allreduce_hook") for clause in may)
    page.handle.select_option("select[name=level]", "")
    page.handle.fill("input[name=text]", "bucket once dtype")
    assert rows.all_inner_texts()[0].startswith("ALLREDUCE-WIRE")
    page.handle.fill("input[name=text]", "no such words")
    assert rows.count() == 0
    page.close()


def test_table_of_clauses_without_javascript(built: Path, browser: Browser) -> None:
    """Without JavaScript every clause is in the table."""
    page = browser.open(built / "traceability" / "index.html", javascript=False)
    assert page.handle.locator("table.ch-filter tbody tr:visible").count() == len(all_clauses())
    page.close()
