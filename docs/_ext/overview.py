"""``.. specified-objects::``: pages of the specification, what they are about, and how many clauses they have."""

from __future__ import annotations

import ast
from collections import Counter

from clause_table import row, table
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from stored_reports import page_of

from commhooks.conformance.clauses import LEVELS, REFERENCE, all_clauses


class SpecifiedObjects(SphinxDirective):
    """Shows one row for each page that is named."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The table."""
        self.env.note_reread()  # what it shows lies in other files
        rows = []
        for page in " ".join(self.content).split():
            counts = Counter(clause.level for clause in all_clauses().values() if page_of(clause) == page)
            if not counts:
                raise self.error(f"no clause belongs to a page {page!r}")
            link, _ = self.parse_inline(f":doc:`{page}`")
            cells = [
                nodes.paragraph("", "", *link),
                nodes.paragraph("", "", *self.parse_inline(summary_of(page))[0]),
                nodes.paragraph("", ", ".join(f"{counts[level]} {level}" for level in LEVELS if counts[level])),
            ]
            rows.append(row([[cell] for cell in cells]))
        return [table(["Page", "What it is", "Clauses"], [30, 50, 20], rows, "ch-overview")]


def summary_of(page: str) -> str:
    """The first sentence of the docstring that a page is made from.

    Raises:
        StopIteration: No clause belongs to the page.
    """
    source = next(clause.source for clause in all_clauses().values() if page_of(clause) == page)
    if source == "every hook":
        return "What a hook keeps, whoever wrote it."
    module, name, *_ = source.split(".")
    tree = ast.parse((REFERENCE / f"{module}.py").read_text(encoding="utf-8"))
    node = next(each for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name)
    return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_directive("specified-objects", SpecifiedObjects)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
