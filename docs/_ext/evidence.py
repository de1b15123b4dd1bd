"""The checks and mutants as requirement nodes, with links to the clauses, and the checks' source as pages.

``.. checks::`` has one node for each check of the suite, ``.. mutants::`` one for each fault that is put into the
reference on purpose. sphinx-needs makes the links back: below each clause stand its checks and mutants. The roles
``:clause:``, ``:check:`` and ``:mutant:`` link to them from any page.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from clauses import escape
from docutils import nodes
from published import PUBLISHED, broken_promises, read_published
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from sphinx_needs.nodes import Need
from sphinx_needs.roles import NeedsXRefRole
from sphinx_needs.roles.need_ref import NeedRef

import mutants
from commhooks.conformance.checks import SUITE, CheckError, all_checks
from commhooks.conformance.clauses import ClauseError, all_clauses

SOURCE = "source"


class Checks(SphinxDirective):
    """All checks, in a section for each file."""

    def run(self) -> list[nodes.Node]:
        """The sections."""
        self.env.note_reread()  # what it shows lies in other files
        up = "../" * self.env.docname.count("/")
        lines: list[str] = []
        for file, checks in groupby(all_checks().values(), key=lambda check: check.file):
            lines += ["", file, "-" * len(file), "", escape(_title(file)), ""]
            for check in checks:
                address = f"{up}{SOURCE}/{file.removesuffix('.py')}.html#line-{check.line}"
                lines += _node("check", check_id(check.name), check.name, "verifies", check.clauses)
                lines += [f"   {escape(check.summary)} `Source <{address}>`__", ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class Mutants(SphinxDirective):
    """All mutants, in a section for each of their tables, with what is replaced in the reference."""

    def run(self) -> list[nodes.Node]:
        """The sections."""
        self.env.note_reread()  # what it shows lies in other files
        lines: list[str] = []
        for found in pkgutil.iter_modules(mutants.__path__, "mutants."):
            module = importlib.import_module(found.name)
            table: list[mutants.Mutant] = getattr(module, "MUTANTS", [])
            if not table:
                continue
            assert module.__doc__ is not None
            title = found.name.removeprefix("mutants.")
            lines += ["", title, "-" * len(title), "", escape(module.__doc__.split("\n\n")[0]), ""]
            for mutant in table:
                lines += _node("mutant", mutant_id(mutant.name), mutant.name, "breaks", mutant.clauses)
                lines += [*_diff(mutant), ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def all_mutants() -> list[mutants.Mutant]:
    """The mutants of all tables."""
    modules = [importlib.import_module(found.name) for found in pkgutil.iter_modules(mutants.__path__, "mutants.")]
    return [mutant for module in modules for mutant in getattr(module, "MUTANTS", [])]


def check_id(name: str) -> str:
    """The id of a check's node: a dot would mean a part of a node."""
    return name.replace(".", "-")


def mutant_id(name: str) -> str:
    """The id of a mutant's node."""
    return f"mutant-{name}"


def _node(directive: str, identifier: str, title: str, link: str, clauses: tuple[str, ...]) -> list[str]:
    return [
        f".. {directive}:: {title}",
        f"   :id: {identifier}",
        f"   :layout: {directive}",
        f"   :{link}: {', '.join(clauses)}",
        "",
    ]


def _title(file: str) -> str:
    """The first paragraph of a module's docstring."""
    return (ast.get_docstring(ast.parse((SUITE / file).read_text(encoding="utf-8"))) or "").split("\n\n")[0]


def _diff(mutant: mutants.Mutant) -> list[str]:
    """What a mutant replaces, as a block of code."""
    lines = []
    for file, changes in mutant.replacements.items():
        lines += ["   .. code-block:: diff", f"      :caption: reference/{file}", ""]
        for old, new in changes:
            lines += [f"      - {line}" for line in old.splitlines()]
            lines += [f"      + {line}" for line in new.splitlines()]
        lines.append("")
    return lines


class CheckRole(NeedsXRefRole):
    """``:check:`test_compress.test_mean``` links to the check."""

    def process_link(
        self, env: object, refnode: nodes.Element, has_explicit_title: bool, title: str, target: str
    ) -> tuple[str, str]:
        """The title as written, and the id of the check's node."""
        return title, check_id(target)


class MutantRole(NeedsXRefRole):
    """``:mutant:`divides_twice``` links to the mutant."""

    def process_link(
        self, env: object, refnode: nodes.Element, has_explicit_title: bool, title: str, target: str
    ) -> tuple[str, str]:
        """The title as written, and the id of the mutant's node."""
        return title, mutant_id(target)


def _require_evidence(app: Sphinx) -> None:
    """Stops the build for a clause without a check, a check without a clause, or a published id that is gone."""
    try:
        all_checks()
        published = read_published(PUBLISHED.read_text(encoding="utf-8"))
    except (CheckError, ClauseError, ValueError) as error:
        raise ExtensionError(str(error)) from error
    broken = broken_promises(published, all_clauses())
    if broken:
        raise ExtensionError("\n".join(broken))


def _index_clauses(app: Sphinx, doctree: nodes.document) -> None:
    """Has the search box know the clauses by their ids, and go to the clause itself."""
    for need in doctree.findall(lambda node: isinstance(node, Need) and node["refid"] in all_clauses()):
        assert isinstance(need, Need)
        app.env.domains.standard_domain.note_object("requirement", need["refid"], need["refid"], location=need)


def _remove_permalinks(app: Sphinx, exception: Exception | None) -> None:
    """Removes the page by which sphinx-needs finds a node by its id: it asks for a file that is not built."""
    if exception is None:
        (app.outdir / app.config.needs_permalink_file).unlink(missing_ok=True)


def _source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page with the source of each file of checks; line 12 has the anchor "line-12"."""
    if app.builder.format != "html":
        return
    files: set[str] = {check.file for check in all_checks().values()}
    for file in sorted(files):
        code = (SUITE / file).read_text(encoding="utf-8")
        block = app.builder.highlighter.highlight_block(code, "python", lineanchors="line")  # type: ignore[attr-defined]
        yield f"{SOURCE}/{file.removesuffix('.py')}", {"title": file, "body": f"<h1>{file}</h1>{block}"}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_directive("checks", Checks)
    app.add_directive("mutants", Mutants)
    for name, role in (("clause", NeedsXRefRole), ("check", CheckRole), ("mutant", MutantRole)):
        app.add_role(name, role(nodeclass=NeedRef, innernodeclass=nodes.literal, warn_dangling=True))
    app.add_object_type("requirement", "requirement", objname="clause")
    # Before the pages on which its words stand.
    app.registry.domain_object_types["std"]["requirement"].attrs["searchprio"] = 0
    app.connect("doctree-read", _index_clauses)
    app.connect("builder-inited", _require_evidence)
    app.connect("html-collect-pages", _source_pages)
    app.connect("build-finished", _remove_permalinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
