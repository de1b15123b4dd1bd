"""What the page says about one implementation."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from commhooks.conformance.cells import Cell, ImplementationResult, State, Traffic
from commhooks.conformance.clauses import LEVELS, Clause
from commhooks.conformance.report.document import Report
from commhooks.conformance.report.grids import COLUMN, extent, in_order
from commhooks.conformance.report.scores import Finding, clause_states, findings, scores
from commhooks.conformance.report.words import count

# A sign and a word for each state: colours alone would not do.
STATE_SIGNS: dict[State, str] = {"pass": "✓", "fail": "✗", "deviation": "△", "unsupported": "⊘", "not run": "○"}
SLOWEST = 12


@dataclass(frozen=True)
class Bar:
    """How the clauses of a level ended, in the order in which the page draws it."""

    level: str
    text: str
    parts: list[tuple[State, int]]


@dataclass(frozen=True)
class Shown:
    """A finding, and the id of the place where the page shows it."""

    id: str
    finding: Finding

    @property
    def where(self) -> list[tuple[str, str]]:
        """In which configurations it shows: each name, and the values it has in some of the cells."""
        return extent(self.finding.cells)


@dataclass(frozen=True)
class Timing:
    """How long the runs of a check took."""

    check: str
    runs: int
    seconds: float
    longest: float


@dataclass(frozen=True)
class Subject:
    """An implementation on a page.

    Attributes:
        anchor: Begins the ids of its parts of the page.
        report: The report it comes from.
        result: What was found out.
    """

    anchor: str
    report: Report
    result: ImplementationResult

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.result.name} {self.result.version}".rstrip()

    @property
    def place(self) -> str:
        """Device and backend."""
        return f"{self.result.device}/{self.result.backend}"

    @functools.cached_property
    def states(self) -> dict[str, State]:
        """The state of each clause that has cells."""
        return clause_states(self.result.cells)

    @functools.cached_property
    def cells(self) -> dict[str, list[Cell]]:
        """The cells of each clause that has any."""
        found: dict[str, list[Cell]] = {}
        for cell in self.result.cells:
            found.setdefault(cell.clause, []).append(cell)
        return found

    @functools.cached_property
    def failures(self) -> list[Shown]:
        """What failed."""
        return self._shown("fail")

    @functools.cached_property
    def deviations(self) -> list[Shown]:
        """What failed as recorded."""
        return self._shown("deviation")

    @functools.cached_property
    def left_out(self) -> list[Finding]:
        """What was not run, and what the implementation does not offer."""
        return findings(self.result, "not run") + findings(self.result, "unsupported")

    @property
    def state(self) -> State:
        """The worst that there is to say."""
        if self.failures or self.result.stale:
            return "fail"
        return "deviation" if self.deviations else "pass"

    @property
    def verdict(self) -> str:
        """The verdict in a sentence."""
        if not self.result.cells:
            return "Nothing was checked."
        said = []
        if self.failures:
            clauses = len({shown.finding.clause for shown in self.failures})
            cells = sum(len(shown.finding.cells) for shown in self.failures)
            said.append(f"{count(cells, 'failure')} in {count(clauses, 'clause')}")
        if self.result.stale:
            said.append(f"{'and ' if said else ''}{count(len(self.result.stale), 'stale record')}")
        if self.deviations:
            recorded = count(len({shown.finding.reason for shown in self.deviations}), "recorded deviation")
            said.append(f"besides {recorded}" if said else f"No failure, and {recorded}")
        tried = [state for state in self.states.values() if state in ("pass", "fail", "deviation")]
        return " ".join(said or ["Every clause that was tried holds" if tried else "Nothing could be tried"]) + "."

    @property
    def bars(self) -> list[Bar]:
        """For each level, how its clauses ended."""
        texts = {score.level: f"{score.passed}/{score.tried}" for score in scores(self.result, self.report.clauses)}
        found = []
        for level in LEVELS:
            states = Counter(s for c, s in self.states.items() if self.report.clauses[c].level == level)
            parts = [(state, states[state]) for state in STATE_SIGNS if states[state]]
            if parts:
                found.append(Bar(level, texts.get(level, "none tried"), parts))
        return found

    @property
    def tallies(self) -> list[tuple[State, int]]:
        """The number of cells in each state."""
        counted = Counter(cell.state for cell in self.result.cells)
        return [(state, counted[state]) for state in STATE_SIGNS if counted[state]]

    def target(self, clause: str) -> str:
        """The id of the place that says most about a clause."""
        found = (shown.id for shown in [*self.failures, *self.deviations] if shown.finding.clause == clause)
        return next(found, f"{self.anchor}-{clause}")

    @property
    def traffic(self) -> list[tuple[str, str, Traffic]]:
        """Hook, world sizes and traffic of a step of one bucket."""
        sizes: dict[tuple[str, Traffic], set[str]] = {}
        for cell in self.result.cells:
            if cell.traffic is not None:
                hook = cell.configuration.get("hook", self.result.name)
                sizes.setdefault((hook, cell.traffic), set()).add(cell.configuration.get(COLUMN, ""))
        return [(hook, ", ".join(in_order(found)), traffic) for (hook, traffic), found in sizes.items()]

    @property
    def slowest(self) -> list[Timing]:
        """The checks whose runs took longest together; none if the report has no times."""
        if not self.report.started:
            return []
        took: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for cell in self.result.cells:
            took.setdefault(cell.check, {})[tuple(cell.configuration.items())] = cell.seconds
        timings = [Timing(check, len(runs), sum(runs.values()), max(runs.values())) for check, runs in took.items()]
        return sorted(timings, key=lambda timing: -timing.seconds)[:SLOWEST]

    def _shown(self, state: State) -> list[Shown]:
        found = enumerate(findings(self.result, state), 1)
        return [Shown(f"{self.anchor}-{state}-{number}", finding) for number, finding in found]

    def hooks(self, clause: Clause) -> list[str]:
        """The hooks that a clause is about, or was checked with."""
        found = dict.fromkeys(hooks_of_clause(clause.source))
        for cell in self.cells.get(clause.id, []):
            found.update(dict.fromkeys(_words(cell.configuration.get("hook", ""))))
        return list(found)


def subjects(reports: Sequence[Report]) -> list[Subject]:
    """The implementations of reports, in turn."""
    pairs = [(report, result) for report in reports for result in report.implementations]
    return [Subject(f"i{number}", report, result) for number, (report, result) in enumerate(pairs, 1)]


def hooks_of_clause(source: str) -> list[str]:
    """The function or class that a clause is about: "default_hooks.allreduce_hook" is about allreduce_hook."""
    return [source.split(".")[1] if "." in source else source.replace(" ", "_")]


def _words(expression: str) -> list[str]:
    return re.findall(r"\w+", expression)
