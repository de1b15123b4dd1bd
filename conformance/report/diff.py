"""What changed between two runs of an implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from commhooks.conformance.cells import Cell, ImplementationResult, State
from commhooks.conformance.clauses import Clause
from commhooks.conformance.report.document import Report, ReportError
from commhooks.conformance.report.scores import Finding, clause_states, findings, scores

# A cell or clause got worse if its state stands further on; those in one place are as good as each other.
GRADES: dict[State, int] = {"pass": 0, "unsupported": 1, "not run": 1, "deviation": 2, "fail": 3}


@dataclass(frozen=True)
class Change:
    """Cells of one clause whose state changed in one way.

    Attributes:
        clause: Id of the clause.
        before: State in the first report.
        after: State in the second.
        cells: The cells, as they are in the second.
    """

    clause: str
    before: State
    after: State
    cells: tuple[Cell, ...]

    @property
    def worse(self) -> bool:
        """Whether they got worse."""
        return GRADES[self.after] > GRADES[self.before]


@dataclass
class Difference:
    """What changed between two results of an implementation.

    Attributes:
        before: The first result.
        after: The second.
        clauses: The clauses of both.
        worse: Changes for the worse.
        other: The other changes.
        clause_states: Clauses whose state changed, with the state before and after.
        scores: For each level, the score before and after.
        appeared: Failures and deviations that only the second has.
        resolved: Those that only the first has, although the second tried their clauses.
        only_before: Cells that only the first has.
        only_after: Cells that only the second has.
    """

    before: ImplementationResult
    after: ImplementationResult
    clauses: dict[str, Clause]
    worse: list[Change] = field(default_factory=list)
    other: list[Change] = field(default_factory=list)
    clause_states: list[tuple[str, State, State]] = field(default_factory=list)
    scores: list[tuple[str, str]] = field(default_factory=list)
    appeared: list[Finding] = field(default_factory=list)
    resolved: list[Finding] = field(default_factory=list)
    only_before: int = 0
    only_after: int = 0

    @property
    def got_worse(self) -> bool:
        """Whether something got worse: a cell, a failure that was not there before, or a record that became stale."""
        appeared = any(finding.state == "fail" for finding in self.appeared)
        return bool(self.worse) or appeared or bool(set(self.after.stale) - set(self.before.stale))

    @property
    def empty(self) -> bool:
        """Whether nothing changed."""
        changed = self.worse or self.other or self.appeared or self.resolved or self.only_before or self.only_after
        return not changed and self.before.stale == self.after.stale


def differences(before: Report, after: Report) -> list[Difference]:
    """The differences of each implementation that both reports have.

    Raises:
        ReportError: They have none in common.
    """
    earlier = {result.name: result for result in before.implementations}
    pairs = [(earlier[result.name], result) for result in after.implementations if result.name in earlier]
    if not pairs:
        names = [", ".join(result.name for result in report.implementations) for report in (before, after)]
        raise ReportError(f"the reports have no implementation in common: {names[0]}, and {names[1]}")
    return [_difference(one, other, before.clauses) for one, other in pairs]


def _difference(before: ImplementationResult, after: ImplementationResult, clauses: dict[str, Clause]) -> Difference:
    earlier, later = _by_key(before.cells), _by_key(after.cells)
    changed: dict[tuple[str, State, State], list[Cell]] = {}
    for key, cell in later.items():
        if key in earlier and earlier[key].state != cell.state:
            changed.setdefault((cell.clause, earlier[key].state, cell.state), []).append(cell)
    changes = [Change(clause, old, new, tuple(cells)) for (clause, old, new), cells in changed.items()]
    states, new_states = clause_states(before.cells), clause_states(after.cells)
    common = [clause for clause in clauses if clause in states and clause in new_states]
    both = [(clause, states[clause], new_states[clause]) for clause in common]
    levels = {score.level: str(score) for score in scores(after, clauses)}
    found, new_found = _findings(before), _findings(after)
    return Difference(
        before=before,
        after=after,
        clauses=clauses,
        worse=[change for change in changes if change.worse],
        other=[change for change in changes if not change.worse],
        clause_states=[entry for entry in both if entry[1] != entry[2]],
        scores=[(str(score), levels.get(score.level, "none tried")) for score in scores(before, clauses)],
        appeared=[finding for key, finding in new_found.items() if key not in found],
        resolved=[finding for key, finding in found.items() if key not in new_found and key[0] in new_states],
        only_before=len(set(earlier) - set(later)),
        only_after=len(set(later) - set(earlier)),
    )


def _by_key(cells: Sequence[Cell]) -> dict[tuple[object, ...], Cell]:
    return {(cell.clause, cell.check, frozenset(cell.configuration.items())): cell for cell in cells}


def _findings(result: ImplementationResult) -> dict[tuple[str, str], Finding]:
    """Failures by clause and kind, deviations by clause and record."""
    listed = [*findings(result, "fail"), *findings(result, "deviation")]
    return {(finding.clause, finding.reason or _kind(finding)): finding for finding in listed}


def _kind(finding: Finding) -> str:
    return finding.failure.kind if finding.failure is not None else ""
