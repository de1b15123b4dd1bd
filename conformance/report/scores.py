"""What a result comes to: the state of each clause, the score by level, and what was found, clause by clause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commhooks.conformance.cells import Cell, Failure, ImplementationResult, State
from commhooks.conformance.clauses import LEVELS, Clause

# The state of a clause is the first of these that one of its cells is in.
WORST_FIRST: tuple[State, ...] = ("fail", "deviation", "pass", "not run", "unsupported")


@dataclass(frozen=True)
class Score:
    """How many of the clauses of a level hold, of those that were tried."""

    level: str
    passed: int
    tried: int

    def __str__(self) -> str:
        return f"{self.level} {self.passed}/{self.tried}"


@dataclass(frozen=True)
class Finding:
    """Cells of one clause that ended alike.

    Attributes:
        clause: Id of the clause.
        state: How they ended.
        reason: Of a deviation its record, of what was left out why; empty for a failure.
        cells: The cells, at least one.
    """

    clause: str
    state: State
    reason: str
    cells: tuple[Cell, ...]

    @property
    def failure(self) -> Failure | None:
        """What went wrong in the first of the cells."""
        return self.cells[0].failure

    @property
    def script(self) -> str:
        """Path of a script that shows it; empty if there is none."""
        return next((cell.failure.script for cell in self.cells if cell.failure and cell.failure.script), "")


def clause_states(cells: Sequence[Cell]) -> dict[str, State]:
    """The state of each clause that has cells: the first of ``WORST_FIRST`` that one of them is in."""
    found: dict[str, set[State]] = {}
    for cell in cells:
        found.setdefault(cell.clause, set()).add(cell.state)
    return {clause: next(state for state in WORST_FIRST if state in states) for clause, states in found.items()}


def scores(result: ImplementationResult, clauses: Mapping[str, Clause]) -> list[Score]:
    """The score of each level of which a clause was tried."""
    states = clause_states(result.cells)
    found = []
    for level in LEVELS:
        of_level = [state for clause, state in states.items() if clause in clauses and clauses[clause].level == level]
        tried = [state for state in of_level if state in ("pass", "fail", "deviation")]
        if tried:
            found.append(Score(level, tried.count("pass"), len(tried)))
    return found


def findings(result: ImplementationResult, state: State) -> list[Finding]:
    """The cells in a state: one finding for each clause and reason, and for failures each kind; in order of the run."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in result.cells:
        if cell.state == state:
            kind = cell.failure.kind if state == "fail" and cell.failure is not None else cell.reason
            groups.setdefault((cell.clause, kind), []).append(cell)
    return [
        Finding(clause, state, "" if state == "fail" else kind, tuple(cells))
        for (clause, kind), cells in groups.items()
    ]
