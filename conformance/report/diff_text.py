"""The difference of two runs in words: for a terminal, or as Markdown for a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from commhooks.conformance.report.diff import Change, Difference
from commhooks.conformance.report.grids import extent
from commhooks.conformance.report.scores import Finding
from commhooks.conformance.report.words import count, printable

Row = Sequence[str]


def as_text(difference: Difference) -> str:
    """Lines for a terminal."""
    lines = [_title(difference), f"  {_scores(difference)}"]
    for heading, columns, rows in _tables(difference):
        lines += ["", heading]
        shown = [[printable(text) for text in row] for row in rows]
        widths = [max(len(row[place]) for row in shown) for place in range(len(columns) - 1)]
        for row in shown:
            start = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False))
            lines.append(f"  {start}  {row[-1]}".rstrip())
    lines += ["", *_closing(difference)]
    return "\n".join(lines)


def as_markdown(difference: Difference) -> str:
    """A section of Markdown; what comes from a report is text in it, never markup."""
    lines = [f"### {markdown(_title(difference))}", "", markdown(_scores(difference))]
    for heading, columns, rows in _tables(difference):
        lines += ["", f"**{heading}**", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(map(markdown, row))} |" for row in rows]
    lines += ["", *map(markdown, _closing(difference))]
    return "\n".join(lines)


def markdown(text: str) -> str:
    """One line of a text in which nothing is markup, and which mentions nobody."""
    escaped = re.sub(r"([\\`*_{}\[\]<>!|~&])", r"\\\1", printable(text))
    return re.sub(r"([@#])", "\\1\u200b", escaped)


def _title(difference: Difference) -> str:
    before, after = difference.before, difference.after
    place, new_place = (f"{result.device}/{result.backend}" for result in (before, after))
    versions = before.version if before.version == after.version else f"{before.version} → {after.version}"
    places = place if place == new_place else f"{place} → {new_place}"
    return printable(f"{after.name} {versions}, {places}")


def _scores(difference: Difference) -> str:
    return "   ".join(
        before if before == after else f"{before} → {after.split()[-1]}" for before, after in difference.scores
    )


def _tables(difference: Difference) -> Iterator[tuple[str, Row, list[Row]]]:
    """Headings, columns and rows of what there is to say."""
    places = {clause: number for number, clause in enumerate(difference.clauses)}
    clause_rows: list[Row] = [
        (clause, difference.clauses[clause].level, f"{old} → {new}") for clause, old, new in difference.clause_states
    ]
    if clause_rows:
        yield "Clauses", ("clause", "level", "state"), clause_rows
    for heading, changes in (
        ("Cells that got worse", difference.worse),
        ("Other cells that changed", difference.other),
    ):
        rows = [_change_row(change) for change in sorted(changes, key=lambda change: places[change.clause])]
        if rows:
            yield heading, ("clause", "state", "cells", "where", "what"), rows
    for heading, found in (
        ("Failures and deviations that were not there before", difference.appeared),
        ("Failures and deviations that are gone", difference.resolved),
    ):
        if found:
            yield heading, ("clause", "state", "cells", "what"), list(map(_finding_row, found))
    stale = sorted(set(difference.after.stale) - set(difference.before.stale))
    if stale:
        yield "Records that became stale", ("record",), [(sentence,) for sentence in stale]


def _change_row(change: Change) -> Row:
    where = "; ".join(f"{name} {values}" for name, values in extent(change.cells))
    first = change.cells[0]
    what = first.reason or (first.failure.message if first.failure is not None else "")
    return change.clause, f"{change.before} → {change.after}", count(len(change.cells), "cell"), where, what


def _finding_row(finding: Finding) -> Row:
    what = finding.reason or (finding.failure.message if finding.failure is not None else "")
    return finding.clause, finding.state, count(len(finding.cells), "cell"), what


def _closing(difference: Difference) -> list[str]:
    lines = []
    if difference.only_before or difference.only_after:
        lines.append(
            f"Only the first run has {count(difference.only_before, 'cell')}, only the second has "
            f"{count(difference.only_after, 'cell')}; the rest is compared."
        )
    if difference.empty:
        lines.append("Nothing changed.")
    else:
        lines.append("Something got worse." if difference.got_worse else "Nothing got worse.")
    return lines
