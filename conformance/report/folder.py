"""Writes all that a run leaves in its folder: the report, and what is drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commhooks.conformance.report.badge import write_badges
from commhooks.conformance.report.document import Report, write_report
from commhooks.conformance.report.page import write_page

REPORT = "report.json"
PAGE = "index.html"


def publish(report: Report, folder: Path) -> list[str]:
    """Writes the report, and what is drawn from it.

    Returns:
        A sentence about each thing that could not be written. The verdict of a run must not be lost with it, so this
        raises nothing.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return [f"the report could not be written: {error}"]
    problems = [
        _tried(f"{folder / REPORT}", lambda: write_report(report, folder / REPORT)),
        _tried(f"{folder / PAGE}", lambda: write_page([report], folder / PAGE)),
        _tried(f"the badges in {folder}", lambda: write_badges(report, folder)),
    ]
    return [problem for problem in problems if problem]


def redraw(report: Report, folder: Path) -> Path:
    """Draws what belongs to a report again, and gives the path of the page.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_page([report], folder / PAGE)
    write_badges(report, folder)
    return folder / PAGE


def _tried(what: str, write: Callable[[], None]) -> str:
    """Tries to write something, and says why it could not be; empty if it was."""
    try:
        write()
    except Exception as error:
        return f"{what} could not be written: {type(error).__name__}: {error}"
    return ""
