"""Turns the reference's docstrings into the specification.

A docstring of the reference has sections that Sphinx does not know: ``Steps:``, ``Clauses:`` and ``Source:``. Steps
become a numbered list, the source a paragraph, and each clause a requirement node (``.. clause::`` of sphinx-needs),
after everything else. The clauses are read with ``commhooks.conformance.clauses``, as the suite reads them.

``.. clauses-since:: 1.12`` lists the clauses that a version brought.
"""

from __future__ import annotations

import re
import textwrap

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from commhooks.conformance.clauses import LEVELS, Clause, all_clauses, parse_clauses

PACKAGE = "commhooks.reference."
SECTIONS = ("Steps", "Source", "Clauses")
STEPS_HERE = ".. steps stand here"

_STEP = re.compile(r"(\d+(?:\.\d+)*)\. (.*)")


def process_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Rewrites one docstring of the reference in place; the rest of it is left to napoleon."""
    if not f"{name}.".startswith(PACKAGE):
        return
    clauses = parse_clauses("\n".join(lines), name.removeprefix(PACKAGE))
    rest, blocks = _take_sections(lines)
    lines[:] = _returns_as_field(rest)
    if "Steps" in blocks:
        place = lines.index(STEPS_HERE)
        lines[place : place + 1] = ["", ".. rubric:: Steps", "", *_steps(blocks["Steps"]), ""]
    if "Source" in blocks:
        lines += ["", ".. rubric:: Source", "", *blocks["Source"]]
    if clauses:
        lines += ["", ".. rubric:: Clauses", ""]
        for clause in clauses:
            lines += clause_directive(clause)
    lines.append("")


def clause_directive(clause: Clause) -> list[str]:
    """The requirement node of a clause, as reStructuredText."""
    return [
        f".. clause:: {clause.id}",
        f"   :id: {clause.id}",
        f"   :level: {clause.level}",
        f"   :since: {clause.since}",
        f"   :source: {clause.source}",
        f"   :style: {clause.level.lower()}",
        "",
        f"   {escape(clause.text)}",
        "",
    ]


def escape(text: str) -> str:
    """Plain text as reStructuredText: what looks like markup stays what it is."""
    return re.sub(r"([\\*`|_])", r"\\\1", text)


def _take_sections(lines: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Separates the sections that are ours from the other lines of a docstring."""
    rest: list[str] = []
    blocks: dict[str, list[str]] = {}
    block: list[str] | None = None
    for line in lines:
        if line and not line[0].isspace():
            title = line.removesuffix(":")
            block = blocks.setdefault(title, []) if line.endswith(":") and title in SECTIONS else None
            if block is not None:
                # Steps stay where they are; the source and the clauses go to the end.
                rest += [STEPS_HERE] if title == "Steps" else []
                continue
        (rest if block is None else block).append(line)
    return rest, {title: textwrap.dedent("\n".join(block)).strip().splitlines() for title, block in blocks.items()}


def _returns_as_field(lines: list[str]) -> list[str]:
    """Writes ``Returns:`` as a field: napoleon would take the text before a colon in it for a type."""
    if "Returns:" not in lines:
        return lines
    start = lines.index("Returns:")
    text = lines[start + 1 :]
    end = next((number for number, line in enumerate(text) if line and not line[0].isspace()), len(text))
    sentence = " ".join(line.strip() for line in text[:end]).strip()
    return [*lines[:start], f":returns: {sentence}", "", *text[end:]]


def _steps(block: list[str]) -> list[str]:
    """Numbered steps, in which "2.1." stands below "2.", as nested lists of reStructuredText."""
    items: list[tuple[str, str]] = []
    for line in block:
        match = _STEP.fullmatch(line.strip())
        if match:
            items.append((match[1], match[2]))
        elif line.strip():
            if not items:
                raise ExtensionError(f"steps must begin with a number and a dot, found {line.strip()!r}")
            items[-1] = (items[-1][0], f"{items[-1][1]} {line.strip()}")
    written: list[str] = [".. rst-class:: steps", ""]
    depth = 1
    for number, text in items:
        if number.count(".") + 1 != depth:
            written.append("")
        depth = number.count(".") + 1
        written.append(f"{'   ' * (depth - 1)}{number.split('.')[-1]}. {_escape_prose(text)}")
    return written


def _escape_prose(text: str) -> str:
    """Escapes what stands outside of literals such as ``.grad``."""
    return "".join(part if part.startswith("``") else escape(part) for part in re.split(r"(``[^`]+``)", text))


class ClausesSince(SphinxDirective):
    """Lists the clauses that one version of the documented API brought, by object."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The list, with a link to each clause."""
        self.env.note_reread()  # what it shows lies in other files
        since = self.arguments[0]
        found = [clause for clause in all_clauses().values() if clause.since == since]
        if not found:
            versions = ", ".join(sorted({clause.since for clause in all_clauses().values()}))
            raise self.error(f"no clause has the version {since!r}; versions are {versions}")
        lines: list[str] = []
        for level in LEVELS:
            of_level = [clause for clause in found if clause.level == level]
            if of_level:
                lines += [f":{level} ({len(of_level)}):"]
                lines += [f"   - :clause:`{clause.id}`: {escape(clause.text)}" for clause in of_level]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_directive("clauses-since", ClausesSince)
    # napoleon has the priority 500 and would take the sections for text.
    app.connect("autodoc-process-docstring", process_docstring, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
