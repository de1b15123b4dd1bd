"""Badges: the score of an implementation in a few words, never one percentage.

``badge.json`` has the form that shields.io takes from an address, ``badge.svg`` is a picture of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from commhooks.conformance.cells import ImplementationResult
from commhooks.conformance.report.document import Report
from commhooks.conformance.report.scores import clause_states, scores

LABEL = "DDP hooks"
COLOURS = {"brightgreen": "#2f7d32", "yellow": "#8a6100", "red": "#b3261e", "lightgrey": "#616161"}
# A letter of the text takes about so many of the picture's units; ``textLength`` makes it exactly what is assumed.
LETTER = 6.6
MARGIN = 6

SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}: {message}">
<title>{label}: {message}</title>
<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#444"/>
<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>
<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11">
<text x="{margin}" y="14" textLength="{left_text}">{label}</text>
<text x="{message_at}" y="14" textLength="{right_text}">{message}</text></g>
</svg>
"""


def write_badges(report: Report, folder: Path) -> None:
    """Writes ``badge.json`` and ``badge.svg``, or with several implementations one pair each, named after them.

    Raises:
        OSError: The folder cannot be written.
    """
    for name, result in _named(report):
        message, colour = score(report, result)
        content = {"schemaVersion": 1, "label": LABEL, "message": message, "color": colour}
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / f"{name}.svg").write_text(drawn(LABEL, message, colour), encoding="utf-8")


def score(report: Report, result: ImplementationResult) -> tuple[str, str]:
    """What a badge says, and the name of its colour, which depends on the clauses about documented behaviour."""
    musts = {name for name, clause in report.clauses.items() if clause.level == "MUST"}
    states = [state for clause, state in clause_states(result.cells).items() if clause in musts]
    must = next((score for score in scores(result, report.clauses) if score.level == "MUST"), None)
    parts = [str(must)] if must is not None else ["nothing tried"]
    parts += [f"{states.count('not run')} not run"] if "not run" in states else []
    if any(cell.state == "fail" for cell in result.cells) or result.stale:
        return ", ".join([*parts, "failing"]), "red"
    if must is None:
        return ", ".join(parts), "lightgrey"
    return ", ".join(parts), "brightgreen" if must.passed == must.tried else "yellow"


def drawn(label: str, message: str, colour: str) -> str:
    """The picture, as SVG."""
    left_text, right_text = round(len(label) * LETTER), round(len(message) * LETTER)
    left, right = left_text + 2 * MARGIN, right_text + 2 * MARGIN
    return SVG.format(
        label=escape(label, {'"': "&quot;"}),
        message=escape(message, {'"': "&quot;"}),
        width=left + right,
        left=left,
        right=right,
        colour=COLOURS[colour],
        margin=MARGIN,
        left_text=left_text,
        message_at=left + MARGIN,
        right_text=right_text,
    )


def _named(report: Report) -> Iterator[tuple[str, ImplementationResult]]:
    """The implementations, each with a file name that no other has."""
    taken: set[str] = set()
    for result in report.implementations:
        word = re.sub(r"[^a-z0-9]+", "-", result.name.lower()).strip("-") or "implementation"
        name = "badge" if len(report.implementations) == 1 else f"badge-{word[:80]}"
        number = 2
        while name in taken:
            name = f"badge-{word[:80]}-{number}"
            number += 1
        taken.add(name)
        yield name, result
