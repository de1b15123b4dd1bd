"""What a run prints: the verdict first, then what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from commhooks.conformance.cells import Failure, ImplementationResult
from commhooks.conformance.clauses import Clause
from commhooks.conformance.report.document import Report
from commhooks.conformance.report.scores import Finding, clause_states, findings, scores
from commhooks.conformance.report.words import count, printable

REASON_SHOWN = 88
# What checks of this clause note is for whoever runs them, not only for the page.
BEYOND_CLAIMS = "HOOK-CLAIMS"


def headline(result: ImplementationResult, world_sizes: Sequence[int]) -> str:
    """One line that says what is checked."""
    title = f"{result.name} {result.version}".rstrip()
    sizes = " ".join(map(str, world_sizes))
    return f"{title}   {result.module}   {result.device}/{result.backend}   worlds {sizes}"


def summary(report: Report, folder: Path, unwritten: Sequence[str]) -> list[str]:
    """The lines at the end of a run.

    Args:
        report: What the run found out.
        folder: Where the report lies.
        unwritten: Sentences about what of it could not be written.
    """
    lines = []
    for result in report.implementations:
        if result.cells:
            lines += _of_one(report, result, folder)
    if lines and not unwritten:
        lines.append(f"report: {folder / 'index.html'}")
    return lines + list(unwritten)


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


def _of_one(report: Report, result: ImplementationResult, folder: Path) -> list[str]:
    lines = ["", headline(result, report.world_sizes), _totals(report, result)]
    failures, deviations = findings(result, "fail"), findings(result, "deviation")
    if failures:
        cells = sum(len(failure.cells) for failure in failures)
        clauses = len({failure.clause for failure in failures})
        lines.append(f"{count(cells, 'failure')} in {count(clauses, 'clause')}")
        lines += _two_lines_each(failures, folder)
    if deviations:
        lines.append(f"{count(len({finding.reason for finding in deviations}), 'deviation')}, as recorded")
        lines += _two_lines_each(deviations, folder)
    beyond = {cell.reason: None for cell in result.cells if cell.clause == BEYOND_CLAIMS and cell.reason}
    if beyond:
        lines.append("beyond its claims")
        lines += [f"  {printable(reason)}" for reason in beyond]
    if result.stale:
        lines.append(f"{count(len(result.stale), 'stale record')}: the file of deviations has to be corrected")
        lines += [f"  {sentence}" for sentence in result.stale]
    return lines


def _totals(report: Report, result: ImplementationResult) -> str:
    parts = [str(score) for score in scores(result, report.clauses)]
    unsupported = [state for state in clause_states(result.cells).values() if state == "unsupported"]
    if unsupported:
        parts.append(f"unsupported {len(unsupported)}")
    not_run = Counter(cell.reason for cell in result.cells if cell.state == "not run")
    if not_run:
        reasons = "; ".join(reason for reason, _ in not_run.most_common(3))
        parts.append(f"not run {count(not_run.total(), 'cell')} ({reasons}{'; …' if len(not_run) > 3 else ''})")
    parts.append(f"{count(len(result.cells), 'cell')} in {report.seconds:.1f} s")
    return "   ".join(parts)


def _two_lines_each(found: Sequence[Finding], folder: Path) -> list[str]:
    """What is wrong, and how many cells it is with the script of one of them."""
    lines = []
    width = max(len(finding.clause) for finding in found)
    for finding in found:
        assert finding.failure is not None
        lines.append(f"  {finding.clause:<{width}}  {_shortened(finding.reason or finding.failure.message)}")
        script = f"   {folder / finding.script}" if finding.script else ""
        lines.append(f"  {'':<{width}}  {count(len(finding.cells), 'cell')}{script}")
    return lines


def _shortened(text: str) -> str:
    line = printable(text)
    return line if len(line) <= REASON_SHOWN else line[: REASON_SHOWN - 1].rstrip() + "…"
