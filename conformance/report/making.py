"""Makes the report of a run that has ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

from commhooks.conformance.cells import Cell, ImplementationResult
from commhooks.conformance.clauses import Clause, fingerprint
from commhooks.conformance.report.document import Report
from commhooks.conformance.report.noise import LONGEST, shortened, without_luck, without_noise

if TYPE_CHECKING:
    from commhooks.conformance.options import Options

# Of failures that are alike one is told at length.
LONGEST_OF_ANOTHER = 400


def make_report(
    options: Options,
    clauses: Mapping[str, Clause],
    results: Iterable[ImplementationResult],
    started: float,
) -> Report:
    """The report of a run, with the shortest script of each clause and deviation or kind of failure."""
    return Report(
        suite=suite_version(),
        spec=options.spec or "",
        search=options.search,
        world_sizes=options.world_sizes,
        clause_set=fingerprint(dict(clauses)),
        clauses=dict(clauses),
        implementations=[_with_scripts(result, options.report) for result in results],
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        seconds=time.time() - started,
    )


def suite_version() -> str:
    """Version of the suite, or "unknown" where it is not installed."""
    try:
        return installed_version("commhooks")
    except PackageNotFoundError:
        return "unknown"


def _with_scripts(result: ImplementationResult, folder: Path) -> ImplementationResult:
    """A copy in which one script, and one set of details, stands for all failures that are alike."""
    texts: dict[str, str] = {}
    chosen: dict[tuple[str, str], str] = {}
    for cell in result.cells:
        if cell.failure is None or not cell.failure.script:
            continue
        path = cell.failure.script
        try:
            texts[path] = (folder / path).read_text(encoding="utf-8")
        except OSError:
            continue
        shortest = chosen.get(_likeness(cell), path)
        chosen[_likeness(cell)] = min(shortest, path, key=lambda path: (len(texts[path]), path))
    cells = []
    told: set[tuple[str, str]] = set()
    for cell in result.cells:
        if cell.failure is None:
            cells.append(cell)
            continue
        first = _likeness(cell) not in told
        told.add(_likeness(cell))
        message = shortened(without_noise(cell.failure.message), LONGEST if first else LONGEST_OF_ANOTHER)
        details = shortened(without_noise(cell.failure.details)) if first else ""
        if cell.state == "deviation" and cell.failure.kind == "hangs":
            # That it hangs is known; where it did this time would differ from report to report.
            message, details = without_luck(message), ""
        failure = replace(cell.failure, message=message, details=details, script=chosen.get(_likeness(cell), ""))
        cells.append(replace(cell, failure=failure))
    return replace(result, cells=cells, scripts={path: texts[path] for path in sorted(set(chosen.values()))})


def _likeness(cell: Cell) -> tuple[str, str]:
    """Equal for failures that are alike: of one clause, and one recorded deviation or kind."""
    kind = cell.failure.kind if cell.failure is not None else ""
    return cell.clause, cell.reason if cell.state == "deviation" else kind
