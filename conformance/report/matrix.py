"""Several reports side by side: only those that can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from commhooks.conformance.clauses import Clause
from commhooks.conformance.report.document import Report, ReportError, read_report
from commhooks.conformance.report.folder import PAGE
from commhooks.conformance.report.page import write_page

# So many ids are named in a message.
NAMED = 6


def write_matrix(paths: Sequence[Path], folder: Path) -> Path:
    """Writes the combined page of reports into a folder, and gives its path.

    Raises:
        ReportError: A report cannot be read, two are of different clause sets, or an implementation is in two.
        OSError: The folder cannot be written.
    """
    reports = [read_report(path) for path in paths]
    for path, report in zip(paths[1:], reports[1:], strict=True):
        expect_same_clauses(paths[0], reports[0], path, report)
    _expect_different_implementations(paths, reports)
    folder.mkdir(parents=True, exist_ok=True)
    write_page(reports, folder / PAGE)
    return folder / PAGE


def expect_same_clauses(path: Path, report: Report, other_path: Path, other: Report) -> None:
    """Refuses to compare reports of different clause sets.

    Raises:
        ReportError: They are; the message says in which clauses they differ.
    """
    if report.clause_set == other.clause_set:
        return
    differences = "; ".join(_differences(path, report.clauses, other_path, other.clauses))
    raise ReportError(
        f"{path} and {other_path} are of different clause sets, {report.clause_set} and {other.clause_set}: "
        f"{differences or 'the same ids, in another wording'}. Run the suite of one version on both."
    )


def _differences(
    path: Path, clauses: Mapping[str, Clause], other_path: Path, others: Mapping[str, Clause]
) -> Iterator[str]:
    for place, only in ((path, set(clauses) - set(others)), (other_path, set(others) - set(clauses))):
        if only:
            yield f"only {place} has {_named(only)}"
    changed = {name for name in set(clauses) & set(others) if clauses[name] != others[name]}
    if changed:
        yield f"they word {_named(changed)} differently"


def _named(ids: set[str]) -> str:
    shown = sorted(ids)[:NAMED]
    return ", ".join(shown) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")


def _expect_different_implementations(paths: Sequence[Path], reports: Sequence[Report]) -> None:
    seen: dict[tuple[str, ...], Path] = {}
    for path, report in zip(paths, reports, strict=True):
        for result in report.implementations:
            key = (result.name, result.version, result.device, result.backend)
            if key in seen:
                raise ReportError(
                    f"{result.name} {result.version} on {result.device}/{result.backend} is in {seen[key]} and in "
                    f"{path}; give one of them, or compare the two with `commhooks diff`"
                )
            seen[key] = path
