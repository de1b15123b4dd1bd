"""Pages in headless Chromium: what a reader would see, and what the page complains about.

A test takes the fixture ``browser``. Where Chromium or its driver is missing, the test is skipped and says so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import Page as Handle

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HEIGHT = 900

# What sticks out at the right: elements that end beyond the window and are in no box that scrolls or cuts them off.
STICKING_OUT = """() => {
    const width = document.documentElement.clientWidth;
    const boxed = (element) => {
        for (let outer = element.parentElement; outer; outer = outer.parentElement) {
            if (outer !== document.body && outer !== document.documentElement
                && getComputedStyle(outer).overflowX !== "visible") return true;
        }
        return false;
    };
    return [...document.body.querySelectorAll("*")]
        .filter((element) => element.getClientRects().length
            && element.getBoundingClientRect().right > width + 1 && !boxed(element))
        .slice(0, 5)
        .map((element) => `<${element.tagName.toLowerCase()} class="${element.className}"> ends at `
            + `${Math.round(element.getBoundingClientRect().right)} of ${width}: ${element.textContent.slice(0, 60)}`);
}"""


@dataclass
class Page:
    """An open page.

    Attributes:
        handle: The page of the driver, for clicks and keys.
    """

    handle: Handle
    _problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.handle.on("console", lambda message: self._note(f"console {message.type}", message.text, message.type))
        self.handle.on("pageerror", lambda error: self._note("page error", str(error)))
        self.handle.on("requestfailed", lambda request: self._note("failed request", request.url))
        self.handle.on("request", lambda request: self._request(request.url))

    def problems(self) -> list[str]:
        """Errors and warnings of the page, failed requests, and requests that leave this machine; [] is fine."""
        return list(self._problems)

    def overflow(self) -> list[str]:
        """Descriptions of what is wider than the window, and the window itself if it can be scrolled sideways."""
        found: list[str] = self.handle.evaluate(STICKING_OUT)
        wide, width = self.handle.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        return found + ([f"the page is {wide} px wide in a window of {width} px"] if wide > width else [])

    def screenshot(self, path: Path, full: bool = True) -> Path:
        """Saves a picture of the page, the whole of it or what the window shows."""
        self.handle.screenshot(path=path, full_page=full)
        return path

    def close(self) -> None:
        """Closes the page."""
        self.handle.context.close()

    def _note(self, what: str, text: str, kind: str = "error") -> None:
        if kind in ("error", "warning"):
            self._problems.append(f"{what}: {text}")

    def _request(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:", "about:")):
            self._problems.append(f"external request: {url}")


@dataclass
class Browser:
    """Headless Chromium."""

    chromium: Chromium

    def open(
        self, place: Path | str, width: int = 1280, dark: bool = False, javascript: bool = True, printed: bool = False
    ) -> Page:
        """Opens a file or an address in a window of that width, and waits until it is loaded."""
        context = self.chromium.new_context(
            viewport={"width": width, "height": HEIGHT},
            color_scheme="dark" if dark else "light",
            java_script_enabled=javascript,
            offline=True,
        )
        handle = context.new_page()
        if printed:
            handle.emulate_media(media="print")
        page = Page(handle)
        handle.goto(place.resolve().as_uri() if isinstance(place, Path) else place, wait_until="load")
        return page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium; its program is COMMHOOKS_CHROMIUM, or the first of the usual names on the path."""
    found = (shutil.which(name) for name in (os.environ.get("COMMHOOKS_CHROMIUM", ""), *PROGRAMS) if name)
    program = next((path for path in found if path), None)
    if program is None:
        pytest.skip("needs Chromium: install it, or set COMMHOOKS_CHROMIUM to its program")
    driver = pytest.importorskip("playwright.sync_api", reason="needs the package playwright, which drives Chromium")
    with driver.sync_playwright() as playwright:
        # In a container Chromium runs as root, where its own sandbox does not work.
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=program, args=arguments)
        yield Browser(chromium)
        chromium.close()
