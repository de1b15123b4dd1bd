"""The pages about known implementations, from the reports in ``docs/reports``.

``.. result-matrix::`` is the table of clauses against implementations. ``.. implementation:: torch`` is all of one
page: what was checked, the score, and each finding with its reason, what a user should do, and a script that shows it.
A page for each stored report is written before the build, so another implementation joins by its report alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from clause_table import classes_of, clause_paragraph, finding_label, result_line, row, state_class, table
from clauses import escape
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from stored_reports import REPORTS, Stored, advice_of, current_reports, sentence, stored_reports

from commhooks.conformance.cells import Cell, State
from commhooks.conformance.clauses import all_clauses, fingerprint
from commhooks.conformance.report.document import ReportError
from commhooks.conformance.report.scores import Finding, findings, scores

FOLDER = Path(__file__).resolve().parent.parent / "implementations"

# What belongs to the cell that is shown, not to the finding.
SHOWN = ("expected", "found", "bound", "excess")

KINDS: tuple[tuple[State, str, str], ...] = (
    ("fail", "Failures", "What fails and is not recorded as a deviation."),
    ("deviation", "Deviations", "What is known to be wrong, and fails in each run exactly as recorded."),
    ("not run", "Not run", "What could not be tried where the implementation was checked."),
    ("unsupported", "Unsupported", "What the implementation does not offer."),
)

# Where the scripts lie beside the pages, and how much of one is shown on a page.
SCRIPTS = "scripts"
WIDEST = 160
LONGEST = 30

logger = logging.getLogger(__name__)


class ResultMatrix(SphinxDirective):
    """Shows one row for each clause and one column for each implementation."""

    def run(self) -> list[nodes.Node]:
        """The table, and a note for each report of other clauses."""
        self.env.note_reread()  # what it shows lies in other files
        stored = current_reports()
        refused = [each for each in stored_reports() if not each.current]
        notes = self.parse_text_to_nodes("\n".join(line for each in refused for line in _refusal(each)))
        if not stored:
            return notes
        rows = [
            row(
                [
                    [clause_paragraph(self, clause), nodes.paragraph("", clause.text)],
                    *([result_line(each, clause.id)] for each in stored),
                ],
                [*classes_of(clause), *(state_class(each, clause.id) for each in stored)],
            )
            for clause in all_clauses().values()
        ]
        width = max(10, 40 // len(stored))
        titles = ["Clause", *(each.name for each in stored)]
        return [*notes, table(titles, [60, *(width for _ in stored)], rows, "ch-filter", "ch-matrix")]


class Scores(SphinxDirective):
    """Shows the score of each implementation by level."""

    def run(self) -> list[nodes.Node]:
        """The table."""
        self.env.note_reread()  # what it shows lies in other files
        stored = current_reports()
        if not stored:
            return []
        rows = []
        for each in stored:
            link = self.parse_inline(f":doc:`{each.name} <{each.name}>`")[0]
            version = f"{each.result.framework}, {each.result.device}/{each.result.backend}"
            score = ", ".join(map(str, scores(each.result, all_clauses())))
            cells = [nodes.paragraph("", "", *link), nodes.paragraph("", version), nodes.paragraph("", score)]
            rows.append(row([[cell] for cell in cells]))
        return [table(["Implementation", "Checked with", "Clauses that hold, of those tried"], [25, 40, 35], rows)]


class Implementation(SphinxDirective):
    """Shows all that a stored report says about one implementation."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The sections of the page."""
        self.env.note_reread()  # what it shows lies in other files
        found = {stored.name: stored for stored in stored_reports()}
        if self.arguments[0] not in found:
            raise self.error(f"no report of {self.arguments[0]!r} in {REPORTS}; there are: {', '.join(found)}")
        stored = found[self.arguments[0]]
        lines = _refusal(stored) if not stored.current else _results(stored)
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def _refusal(stored: Stored) -> list[str]:
    return [
        ".. warning::",
        "",
        f"   The stored report of {escape(stored.name)} is of another set of clauses "
        f"({stored.report.clause_set}; these pages specify {fingerprint(all_clauses())}), so its results are not "
        "shown. ``make reports`` checks it again.",
        "",
    ]


def _results(stored: Stored) -> list[str]:
    result, report = stored.result, stored.report
    lines = [
        f":Implementation: {escape(result.name)} {escape(result.version)}, {escape(result.module)}",
        f":Where: {escape(result.framework)}, {escape(result.device)}/{escape(result.backend)}, "
        f"Python {escape(result.python)}, "
        f"world sizes {', '.join(map(str, report.world_sizes))}",
        f":Clauses that hold: {', '.join(map(str, scores(result, report.clauses)))}, of those tried",
        f":Clause set: {report.clause_set}, {len(result.cells):,} cells",
        "",
    ]
    for state, title, text in KINDS:
        of_state = findings(result, state)
        if of_state:
            lines += [title, "-" * len(title), "", text, ""]
            lines += _grouped(stored, of_state)
    return lines


def _grouped(stored: Stored, found: Sequence[Finding]) -> list[str]:
    """The findings, those of one clause under one heading."""
    lines: list[str] = []
    for clause in dict.fromkeys(finding.clause for finding in found):
        of_clause = [finding for finding in found if finding.clause == clause]
        if of_clause[0].state in ("fail", "deviation"):
            lines += [f".. _{finding_label(stored.name, clause)}:", ""]
        lines += [clause, "~" * len(clause), "", f":clause:`{clause}`: {escape(all_clauses()[clause].text)}", ""]
        lines += [f"*{sentence(stored.counts_of(clause))}.*", ""]
        for finding in of_clause:
            lines += _finding(stored, finding)
    return lines


def _finding(stored: Stored, finding: Finding) -> list[str]:
    """What was found, what to do about it, one of its cells, and a script."""
    lines = []
    if finding.reason:
        lines += [_linked(" ".join(finding.reason.split())), ""]
    advice = advice_of(stored, finding.clause, finding.reason)
    if advice:
        lines += [f"**What to do:** {_linked(advice)}", ""]
    if finding.state in ("fail", "deviation"):
        lines += _example(finding.cells[0])
    script = stored.result.scripts.get(finding.script, "")
    if script:
        lines += _script(stored, finding.script, script)
    return lines


def _linked(text: str) -> str:
    """Plain text as reStructuredText, in which the ids of clauses are links."""
    parts = re.split(r"\b([A-Z][A-Z0-9]*(?:-[A-Z0-9]+)+)\b", text)
    return "".join(f":clause:`{part}`" if part in all_clauses() else escape(part) for part in parts)


def _script(stored: Stored, path: str, script: str) -> list[str]:
    """A link to a script, and below it the part that is its own: what the ranks are given."""
    address = f"{SCRIPTS}/{stored.name}/{PurePosixPath(path).name}"
    lines = ["", ".. collapse:: A script that shows it", ""]
    lines += [
        f"   `{PurePosixPath(path).name} <{address}>`__, {script.count(chr(10)):,} lines. It gives the ranks:",
        "",
    ]
    lines += ["   .. code-block:: python", "      :force:", ""]  # what is cut off is no Python any more
    return [*lines, *(f"      {line}" if line.strip() else "" for line in _given(script)), ""]


def _given(script: str) -> list[str]:
    """What a script gives to the ranks, cut to what can be read here."""
    lines = script.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("# ---- What the ranks")), 0) + 1
    end = next((number for number in range(start, len(lines)) if lines[number].startswith("# ----")), len(lines))
    given = [line if len(line) <= WIDEST else f"{line[:WIDEST]} …" for line in lines[start:end] if line.strip()]
    return given if len(given) <= LONGEST else [*given[:LONGEST], "…"]


def _example(cell: Cell) -> list[str]:
    """What one cell of a finding saw."""
    failure = cell.failure
    if failure is None:
        return []
    where = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in cell.configuration.items())
    fields = [("For example", where), ("What happens", failure.message or failure.kind)]
    texts = [(name.capitalize(), getattr(failure, name)) for name in SHOWN]
    fields += [(title, text) for title, text in texts if text and text != failure.kind]
    return [*(f":{name}: {escape(_short(text))}" for name, text in fields), ""]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 400 else f"{line[:397]}…"


class Collapse(SphinxDirective):
    """Shows its content when its title is clicked; it needs no JavaScript."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        """The content between the tags."""
        title = nodes.Text(self.arguments[0]).astext()
        begin = nodes.raw("", f"<details class='ch-collapse'><summary>{title}</summary>", format="html")
        return [begin, *self.parse_content_to_nodes(), nodes.raw("", "</details>", format="html")]


def _write_pages(app: Sphinx) -> None:
    """Writes the page of each stored report, which has the directive alone, and removes those of reports that are gone.

    Only pages that differ are written, so that a second build has nothing to do.
    """
    try:
        names = [stored.name for stored in stored_reports()]
    except ReportError as error:
        raise ExtensionError(f"docs/reports: {error}") from error
    for stored in stored_reports():
        if not stored.current:
            logger.info("the stored report of %s is of another set of clauses; see its page", stored.name)
    pages = {f"{name}.rst": f"{name}\n{'=' * len(name)}\n\n.. implementation:: {name}\n" for name in names}
    for path in FOLDER.glob("*.rst"):
        if path.name != "index.rst" and path.name not in pages:
            path.unlink()
    for file, text in pages.items():
        path = FOLDER / file
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _write_scripts(app: Sphinx, exception: Exception | None) -> None:
    """Writes the scripts of the stored reports beside the pages."""
    if exception is not None or app.builder.format != "html":
        return
    for stored in current_reports():
        folder = app.outdir / FOLDER.name / SCRIPTS / stored.name
        folder.mkdir(parents=True, exist_ok=True)
        for path, script in stored.result.scripts.items():
            (folder / PurePosixPath(path).name).write_text(script, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_directive("result-matrix", ResultMatrix)
    app.add_directive("result-scores", Scores)
    app.add_directive("implementation", Implementation)
    app.add_directive("collapse", Collapse)
    app.connect("builder-inited", _write_pages)
    app.connect("build-finished", _write_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
