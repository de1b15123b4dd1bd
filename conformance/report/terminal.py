"""What a run prints: the verdict first, then what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commhooks.conformance.cells import Cell, Failure, ImplementationResult, State
from commhooks.conformance.clauses import LEVELS, Clause

if TYPE_CHECKING:
    from commhooks.conformance.options import Options

# The state of a clause is the first of these that one of its cells is in.
WORST_FIRST: tuple[State, ...] = ("fail", "deviation", "pass", "not run", "unsupported")
REASON_SHOWN = 88


def headline(result: ImplementationResult, world_sizes: Sequence[int]) -> str:
    """One line that says what is checked."""
    title = f"{result.name} {result.version}".rstrip()
    sizes = " ".join(map(str, world_sizes))
    return f"{title}   {result.module}   {result.device}/{result.backend}   worlds {sizes}"


def clause_states(cells: Sequence[Cell]) -> dict[str, State]:
    """The state of each clause that has cells: the first of ``WORST_FIRST`` that one of them is in."""
    found: dict[str, set[State]] = {}
    for cell in cells:
        found.setdefault(cell.clause, set()).add(cell.state)
    return {clause: next(state for state in WORST_FIRST if state in states) for clause, states in found.items()}


def summary(result: ImplementationResult, clauses: Mapping[str, Clause], options: Options, seconds: float) -> list[str]:
    """The lines of the summary of one implementation."""
    if not result.cells:
        return []
    states = clause_states(result.cells)
    lines = ["", headline(result, options.world_sizes), _totals(result, states, clauses, seconds)]
    lines += _section("failure", [cell for cell in result.cells if cell.state == "fail"], options.report)
    deviating = [cell for cell in result.cells if cell.state == "deviation"]
    if deviating:
        entries = {cell.reason for cell in deviating}
        lines.append(f"{_count(len(entries), 'deviation')}, as recorded")
        lines += _clause_lines(deviating, options.report)
    if result.stale:
        lines.append(f"{_count(len(result.stale), 'stale record')}: the file of deviations has to be corrected")
        lines += [f"  {sentence}" for sentence in result.stale]
    return lines


def failure_text(failure: Failure, clauses: Sequence[Clause], configuration: Mapping[str, str], report: Path) -> str:
    """All that is known about one failure, for pytest's section of failures."""
    lines = [f"{clause.id} ({clause.level}, {clause.since}): {clause.text}" for clause in clauses]
    lines.append(failure.message)
    shown = [
        ("with", ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in configuration.items())),
        ("expected", failure.expected),
        ("found", failure.found),
        ("bound", failure.bound),
        ("excess", failure.excess),
        ("script", str(report / failure.script) if failure.script else ""),
    ]
    lines += [f"  {name + ':':<10}{value}" for name, value in shown if value]
    if failure.details:
        lines.append(failure.details)
    return "\n".join(lines)


def _totals(
    result: ImplementationResult, states: Mapping[str, State], clauses: Mapping[str, Clause], seconds: float
) -> str:
    parts = []
    for level in LEVELS:
        of_level = [state for clause, state in states.items() if clause in clauses and clauses[clause].level == level]
        tried = [state for state in of_level if state in ("pass", "fail", "deviation")]
        if tried:
            parts.append(f"{level} {tried.count('pass')}/{len(tried)}")
    unsupported = [clause for clause, state in states.items() if state == "unsupported"]
    if unsupported:
        parts.append(f"unsupported {len(unsupported)}")
    not_run = Counter(cell.reason for cell in result.cells if cell.state == "not run")
    if not_run:
        reasons = "; ".join(reason for reason, _ in not_run.most_common(3))
        parts.append(f"not run {_count(not_run.total(), 'cell')} ({reasons}{'; …' if len(not_run) > 3 else ''})")
    parts.append(f"{_count(len(result.cells), 'cell')} in {seconds:.1f} s")
    return "   ".join(parts)


def _section(name: str, cells: Sequence[Cell], report: Path) -> list[str]:
    if not cells:
        return []
    clauses = len({cell.clause for cell in cells})
    return [f"{_count(len(cells), name)} in {_count(clauses, 'clause')}", *_clause_lines(cells, report)]


def _clause_lines(cells: Sequence[Cell], report: Path) -> list[str]:
    """Two lines for each clause and reason: what is wrong, and the script of the first cell."""
    lines = []
    width = max(len(cell.clause) for cell in cells)
    seen = set()
    for cell in cells:
        assert cell.failure is not None
        if (cell.clause, cell.reason) in seen:
            continue
        seen.add((cell.clause, cell.reason))
        alike = [other for other in cells if (other.clause, other.reason) == (cell.clause, cell.reason)]
        text = cell.reason or cell.failure.message.splitlines()[0]
        lines.append(f"  {cell.clause:<{width}}  {_shortened(text)}")
        script = f"   {report / cell.failure.script}" if cell.failure.script else ""
        lines.append(f"  {'':<{width}}  {_count(len(alike), 'cell')}{script}")
    return lines


def _shortened(text: str) -> str:
    return text if len(text) <= REASON_SHOWN else text[: REASON_SHOWN - 1].rstrip() + "…"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
