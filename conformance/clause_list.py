"""The clauses for a person who asks for them: all of them in lines, or one with its checks."""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from commhooks.conformance.checks import all_checks, checks_of
from commhooks.conformance.clauses import Clause, all_clauses, version

WIDTH = 100


class NoSuchClause(Exception):
    """A clause does not exist; the message says which ones are near."""


def chosen(levels: Sequence[str], since: str | None) -> list[Clause]:
    """The clauses of some levels, or all; with ``since`` only those that came with that version or later.

    Raises:
        ValueError: ``since`` is no version.
    """
    oldest = version(since) if since is not None else ()
    clauses = all_clauses().values()
    return [clause for clause in clauses if (not levels or clause.level in levels) and version(clause.since) >= oldest]


def beginning_with(clauses: Sequence[Clause], text: str | None) -> list[Clause]:
    """Those clauses whose ids begin with a text, in whatever case, of which none is that text itself."""
    if text is None or text.upper() in all_clauses():
        return []
    return [clause for clause in clauses if clause.id.startswith(text.upper())]


def find(name: str) -> Clause:
    """The clause with that id, in whatever case it is written.

    Raises:
        NoSuchClause: There is none.
    """
    clauses = all_clauses()
    if name.upper() in clauses:
        return clauses[name.upper()]
    near = difflib.get_close_matches(name.upper(), clauses, n=4, cutoff=0.5)
    hint = f"near it: {', '.join(near)}" if near else "`commhooks clauses` lists all"
    raise NoSuchClause(f"no clause {name!r}; {hint}")


def as_lines(clauses: Sequence[Clause]) -> str:
    """A line for each clause."""
    width = max((len(clause.id) for clause in clauses), default=0)
    lines = [f"{clause.id:<{width}}  {clause.level:<6}  {clause.since:<4}  {clause.text}" for clause in clauses]
    return "\n".join([*lines, f"{len(clauses)} clauses"])


def as_text(clause: Clause) -> str:
    """One clause: its text, where it stands, and the checks that verify it."""
    lines = [f"{clause.id} ({clause.level}, since {clause.since})", ""]
    lines += textwrap.wrap(clause.text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += ["", f"stands in    {where(clause)}", "verified by"]
    for check in checks_of(clause.id):
        lines.append(f"  conformance/{check.file}:{check.line}  {check.name.partition('.')[2]}")
        lines += textwrap.wrap(check.summary, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def as_json(clauses: Sequence[Clause]) -> str:
    """The clauses with the names of their checks, as JSON."""
    checks = all_checks().values()
    content = [
        {**asdict(clause), "checks": [check.name for check in checks if clause.id in check.clauses]}
        for clause in clauses
    ]
    return json.dumps(content, indent=1, ensure_ascii=False)


def where(clause: Clause) -> str:
    """The object and the file of the reference whose docstring has the clause."""
    module, _, name = clause.source.partition(".")
    return f"{name}, reference/{module}.py" if name else f"{clause.source}, reference/__init__.py"
