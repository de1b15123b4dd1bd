"""``.. clause-table::``: all clauses against their checks, mutants and results, as a table that can be filtered.

Each row has classes for what ``_static/filter.js`` filters by. Without JavaScript it is a plain table.
"""

from __future__ import annotations

from collections.abc import Sequence

from docutils import nodes
from evidence import all_mutants
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from stored_reports import SIGNS, WORDS, Stored, current_reports, page_of

from commhooks.conformance.checks import checks_of
from commhooks.conformance.clauses import Clause, all_clauses

COLUMNS = (("Clause", 36), ("Checks", 30), ("Mutants", 20), ("Results", 14))


class ClauseTable(SphinxDirective):
    """Shows one row for each clause."""

    def run(self) -> list[nodes.Node]:
        """The table."""
        self.env.note_reread()  # what it shows lies in other files
        stored = current_reports()
        rows = [self._row(clause, stored) for clause in all_clauses().values()]
        return [
            table([title for title, _ in COLUMNS], [width for _, width in COLUMNS], rows, "ch-filter", "ch-evidence")
        ]

    def _row(self, clause: Clause, stored: Sequence[Stored]) -> nodes.row:
        cells = [
            [clause_paragraph(self, clause), nodes.paragraph("", clause.text)],
            [links(self, "check", [check.name for check in checks_of(clause.id)])],
            [links(self, "mutant", [mutant.name for mutant in all_mutants() if clause.id in mutant.clauses])],
            [result_line(each, clause.id) for each in stored],
        ]
        return row(cells, [*classes_of(clause), *(state_class(each, clause.id) for each in stored)])


def classes_of(clause: Clause) -> list[str]:
    """What a row can be filtered by."""
    return [f"level={clause.level}", f"version={clause.since}", f"hook={page_of(clause)}"]


def state_class(stored: Stored, clause: str) -> str:
    """The class by which a row is filtered for how a clause ended for an implementation."""
    state = stored.state_of(clause)
    return f"{stored.name}={WORDS[state].replace(' ', '_') if state else 'not_part_of_the_run'}"


def clause_paragraph(directive: SphinxDirective, clause: Clause) -> nodes.paragraph:
    """The id of a clause as a link to the specification, its level and its version."""
    paragraph = links(directive, "clause", [clause.id])
    paragraph += nodes.Text(" ")
    paragraph += nodes.inline("", clause.level, classes=["ch-level", f"ch-{clause.level.lower()}"])
    paragraph += nodes.inline("", f" since {clause.since}", classes=["ch-since"])
    return paragraph


def links(directive: SphinxDirective, role: str, names: Sequence[str]) -> nodes.paragraph:
    """Links to requirement nodes, one after another."""
    inlines, _ = directive.parse_inline(", ".join(f":{role}:`{name}`" for name in names))
    return nodes.paragraph("", "", *inlines, classes=["ch-links"])


def result_line(stored: Stored, clause: str) -> nodes.paragraph:
    """How a clause ended for one implementation, with a link to what was found."""
    state = stored.state_of(clause)
    name = nodes.inline("", f"{stored.name} ", classes=["ch-name"])
    paragraph = nodes.paragraph("", "", name, classes=["ch-result"])
    if state is None:
        paragraph += nodes.inline("", "○ not part of the run", classes=["ch-state", "ch-not-run"])
        return paragraph
    text = f"{SIGNS[state]} {WORDS[state]}"
    inline = nodes.inline("", "", classes=["ch-state", f"ch-{state.replace(' ', '-')}"])
    if state in ("fail", "deviation"):
        inline += section_link(text, stored.name, clause)
    else:
        inline += nodes.Text(text)
    paragraph += inline
    return paragraph


def section_link(text: str, implementation: str, clause: str) -> addnodes.pending_xref:
    """A link to what was found about a clause, on the implementation's page."""
    reference = addnodes.pending_xref(
        "",
        nodes.inline("", text),
        refdomain="std",
        reftype="ref",
        reftarget=finding_label(implementation, clause),
        refexplicit=True,
        refwarn=True,
    )
    return reference


def finding_label(implementation: str, clause: str) -> str:
    """The label of the place where the findings about a clause begin."""
    return f"{implementation}-{clause}".lower()


def row(cells: Sequence[Sequence[nodes.Node]], classes: Sequence[str] = ()) -> nodes.row:
    """A row of a table."""
    made = nodes.row(classes=list(classes))
    for cell in cells:
        entry = nodes.entry()
        entry.extend(cell)
        made += entry
    return made


def table(titles: Sequence[str], widths: Sequence[int], rows: Sequence[nodes.row], *classes: str) -> nodes.table:
    """A table with a head. The theme puts it into a box that scrolls if it is wider than the page."""
    group = nodes.tgroup(cols=len(titles))
    group.extend(nodes.colspec(colwidth=width) for width in widths)
    group += nodes.thead("", row([[nodes.paragraph("", title)] for title in titles]))
    group += nodes.tbody("", *rows)
    return nodes.table("", group, classes=[*classes, "colwidths-given"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_directive("clause-table", ClauseTable)
    app.add_js_file("filter.js", defer="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
