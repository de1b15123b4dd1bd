"""The reports in ``docs/reports``, one for each implementation that the documentation shows.

A report of another set of clauses cannot be compared, and is refused, not guessed at: its page says so instead of
showing results, until the implementation is checked again (``make reports``). That is no error of the build, which a
change of one clause's wording would otherwise break until every implementation has been run again. A file that is no
report at all is one.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from commhooks.conformance.cells import STATES, ImplementationResult, State
from commhooks.conformance.clauses import Clause, all_clauses, fingerprint
from commhooks.conformance.deviations import deviations_of, read_deviations
from commhooks.conformance.report.document import Report, ReportError, read_report
from commhooks.conformance.report.scores import clause_states

REPORTS = Path(__file__).resolve().parent.parent / "reports"

# What a reader sees of each state: colours are never the only sign.
SIGNS: dict[State, str] = {"pass": "✓", "fail": "✗", "deviation": "△", "unsupported": "-", "not run": "○"}
WORDS: dict[State, str] = {
    "pass": "passes",
    "fail": "fails",
    "deviation": "deviates",
    "unsupported": "unsupported",
    "not run": "not run",
}


@dataclass(frozen=True)
class Stored:
    """The stored report of one implementation.

    Attributes:
        name: Name of the file without its end; also that of the page.
        report: What it says.
    """

    name: str
    report: Report

    @property
    def result(self) -> ImplementationResult:
        """What was found out about the implementation."""
        return self.report.implementations[0]

    @property
    def current(self) -> bool:
        """Whether it was checked against the clauses that are specified here."""
        return self.report.clause_set == fingerprint(all_clauses())

    def state_of(self, clause: str) -> State | None:
        """How the clause ended, None if it was not part of the run."""
        return clause_states(self.result.cells).get(clause)

    def counts_of(self, clause: str) -> Counter[State]:
        """How many cells of a clause ended in which way."""
        return Counter(cell.state for cell in self.result.cells if cell.clause == clause)


@functools.cache
def stored_reports(folder: Path = REPORTS) -> tuple[Stored, ...]:
    """The stored reports by name.

    Raises:
        ReportError: A file is no report or not that of one implementation, two are of the same, or a name is that of
            another page.
    """
    found: dict[str, Stored] = {}
    for path in sorted(folder.glob("*.json")):
        report = read_report(path)
        if not re.fullmatch(r"\w[\w.-]*", path.stem) or path.stem == "index":
            raise ReportError(f"{path.name}: {path.stem!r} cannot be the name of a page; use letters, digits and _ . -")
        names = [result.name for result in report.implementations]
        if len(names) != 1:
            raise ReportError(f"{path.name} has {len(names)} implementations; a stored report has one")
        if names[0] in found:
            raise ReportError(f"{path.name}: {names[0]!r} is in {found[names[0]].name}.json too")
        found[names[0]] = Stored(path.stem, report)
    return tuple(found.values())


def current_reports() -> list[Stored]:
    """The stored reports that can be compared with the specification."""
    return [stored for stored in stored_reports() if stored.current]


def advice_of(stored: Stored, clause: str, reason: str) -> str:
    """What a user should do about a recorded deviation; empty if the record does not say."""
    path = deviations_of(stored.result.name, None)
    if path is None:
        return ""
    records = read_deviations(path, all_clauses())
    return next((each.advice for each in records if (each.clause, each.reason) == (clause, reason)), "")


def sentence(counts: Counter[State]) -> str:
    """Such as "12 cells pass, 4 deviate"."""
    verbs = {"pass": "pass", "fail": "fail", "deviation": "deviate", "unsupported": "unsupported", "not run": "not run"}
    return ", ".join(f"{counts[state]} {verbs[state]}" for state in STATES if counts[state])


def page_of(clause: Clause) -> str:
    """The page of the specification that a clause stands on."""
    if clause.source == "every hook":
        return "every_hook"
    return clause.source.split(".")[1]
