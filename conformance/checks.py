"""Reads the checks out of the suite's source: their names, the clauses they verify, what they say of themselves.

Nothing is imported or run, so no torch is needed.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commhooks.conformance.clauses import all_clauses
from commhooks.conformance.marks import HALVES

SUITE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Check:
    """A test of one or more clauses.

    Attributes:
        name: Such as "test_allreduce.test_mean".
        clauses: The clauses that it names, for both half types where it runs with either.
        summary: The sentence that says what is checked.
        line: Where it begins in its file.
    """

    name: str
    clauses: tuple[str, ...]
    summary: str
    line: int

    @property
    def file(self) -> str:
        """Name of its file in ``conformance``."""
        return f"{self.name.partition('.')[0]}.py"


class CheckError(ValueError):
    """A check does not say what it checks, or a clause has no check."""


@functools.cache
def all_checks() -> dict[str, Check]:
    """The checks of the suite by name, in the order of files and lines.

    Raises:
        CheckError: A check has no summary, or names no clause or one that does not exist, or a clause has no check.
    """
    checks = read_checks(SUITE)
    known = set(all_clauses())
    for check in checks.values():
        unknown = sorted(set(check.clauses) - known)
        if unknown:
            raise CheckError(f"{check.name} names clauses that do not exist: {', '.join(unknown)}")
    unchecked = sorted(known - {clause for check in checks.values() for clause in check.clauses})
    if unchecked:
        raise CheckError(f"clauses without a check: {', '.join(unchecked)}")
    return checks


def checks_of(clause: str) -> list[Check]:
    """The checks that verify a clause."""
    return [check for check in all_checks().values() if clause in check.clauses]


def read_checks(folder: Path) -> dict[str, Check]:
    """The checks of all ``test_*.py`` files of a folder by name.

    Raises:
        CheckError: A check has no summary or names no clause.
    """
    found = {}
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            name = f"{path.stem}.{node.name}"
            summary = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if not summary.endswith("."):
                raise CheckError(f"{name} must have a docstring that begins with a sentence, found {summary!r}")
            clauses = tuple(dict.fromkeys(_named_clauses(node, name)))
            if not clauses:
                raise CheckError(f"{name} names no clause; write @clauses(...) above it")
            found[name] = Check(name, clauses, summary, node.lineno)
    return found


def _named_clauses(node: ast.FunctionDef, name: str) -> Iterator[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "clauses":
            for argument in decorator.args:
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    raise CheckError(f"{name} must name its clauses with literal texts, found {ast.unparse(argument)}")
                for half in HALVES:
                    yield argument.value.format(half=half)
