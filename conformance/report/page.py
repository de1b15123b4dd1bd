"""The page of a report, or of several: one file that needs no network, drawn from ``report.json`` alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import jinja2

from commhooks.conformance.cells import STATES
from commhooks.conformance.clauses import LEVELS
from commhooks.conformance.report.document import Report
from commhooks.conformance.report.grids import grids
from commhooks.conformance.report.subjects import STATE_SIGNS, Subject, hooks_of_clause, subjects
from commhooks.conformance.report.words import count

HERE = Path(__file__).parent / "assets"


def write_page(reports: Sequence[Report], path: Path) -> None:
    """Writes the page of reports of one clause set.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(page(reports), encoding="utf-8")


def page(reports: Sequence[Report]) -> str:
    """The page, as HTML. All that comes from a report is data in it, never markup."""
    shown = subjects(reports)
    clauses = list(reports[0].clauses.values())
    hooks = dict.fromkeys(hook for clause in clauses for hook in hooks_of_clause(clause.source))
    return _template().render(
        subjects=shown,
        clauses=clauses,
        report=reports[0],
        hooks=list(hooks),
        levels=LEVELS,
        states=STATES,
        title=_title(shown),
    )


def _title(shown: Sequence[Subject]) -> str:
    return shown[0].title if len(shown) == 1 else count(len(shown), "implementation")


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        css=_trusted("page.css"), js=_trusted("page.js"), signs=STATE_SIGNS, grids=grids, count=count
    )
    return environment.get_template("page.html")


def _trusted(name: str) -> str:
    """A file of this package, which the template puts into the page as it is."""
    return (HERE / name).read_text(encoding="utf-8")
