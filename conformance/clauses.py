"""Reads the clauses out of the reference's docstrings.

A clause has one fixed form, in a block of its own:

    Clauses:
        FP16-CAST-FIRST (MUST, 1.11): The buffer is cast to float16 before it is divided. A text that is longer
            goes on in lines that are indented further.

The docstrings are read from the source files, so nothing of the reference is imported and no torch is needed.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

REFERENCE = Path(__file__).resolve().parent.parent / "reference"
LEVELS = ("MUST", "SHOULD", "MAY")

_FIRST_LINE = re.compile(r"([A-Z][A-Z0-9]*(?:-[A-Z0-9]+)+) \((\w+), (\d+\.\d+)\): (\S.*)")


@dataclass(frozen=True)
class Clause:
    """One testable sentence of the specification.

    Attributes:
        id: Such as "FP16-CAST-FIRST".
        level: "MUST", "SHOULD" or "MAY".
        since: Version of the documented API that brought it, such as "1.11".
        text: The sentence.
        source: The object whose docstring it stands in, such as "default_hooks.fp16_compress_hook".
    """

    id: str
    level: str
    since: str
    text: str
    source: str


class ClauseError(ValueError):
    """A clause is not in the fixed form, or its id is used twice."""


@functools.cache
def all_clauses() -> dict[str, Clause]:
    """The clauses of the reference by id, in the order of files and lines.

    Raises:
        ClauseError: A clause is malformed, or an id is used twice.
    """
    return read_clauses(REFERENCE)


def read_clauses(folder: Path) -> dict[str, Clause]:
    """The clauses of all Python files of a folder by id."""
    found: dict[str, Clause] = {}
    for path in sorted(folder.glob("*.py")):
        module = path.stem.replace("__init__", "every hook")
        for name, docstring in _docstrings(ast.parse(path.read_text(encoding="utf-8"))):
            for clause in parse_clauses(docstring, f"{module}.{name}" if name else module):
                if clause.id in found:
                    raise ClauseError(f"{clause.id} is used twice: in {found[clause.id].source} and {clause.source}")
                found[clause.id] = clause
    return found


def parse_clauses(docstring: str, source: str) -> list[Clause]:
    """The clauses of one docstring."""
    clauses: list[Clause] = []
    lines = docstring.splitlines()
    if "Clauses:" not in (line.strip() for line in lines):
        return []
    start = next(number for number, line in enumerate(lines) if line.strip() == "Clauses:")
    outer = _indent(lines[start])
    inner = None
    for line in lines[start + 1 :]:
        if not line.strip():
            continue
        indent = _indent(line)
        if indent <= outer:
            break
        inner = indent if inner is None else inner
        if indent > inner and clauses:
            last = clauses.pop()
            clauses.append(Clause(last.id, last.level, last.since, f"{last.text} {line.strip()}", last.source))
            continue
        match = _FIRST_LINE.fullmatch(line.strip())
        if match is None or match[2] not in LEVELS:
            raise ClauseError(
                f"{source}: expected 'ID-OF-CLAUSE ({'|'.join(LEVELS)}, 1.11): Text', found {line.strip()!r}"
            )
        clauses.append(Clause(match[1], match[2], match[3], match[4], source))
    if not clauses:
        raise ClauseError(f"{source}: 'Clauses:' is followed by nothing indented")
    return clauses


def version(text: str) -> tuple[int, ...]:
    """A version such as "1.11" in a form that compares as versions do.

    Raises:
        ValueError: It is not numbers separated by dots.
    """
    return tuple(int(part) for part in text.split("."))


def fingerprint(clauses: dict[str, Clause]) -> str:
    """A short digest of ids, levels and texts: reports of different clause sets cannot be compared."""
    lines = sorted(f"{clause.id} {clause.level} {clause.since} {clause.text}" for clause in clauses.values())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _docstrings(module: ast.Module) -> list[tuple[str, str]]:
    """Qualified names and docstrings of a module, its classes, functions and methods."""
    found = [("", ast.get_docstring(module) or "")]

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{node.name}"
                found.append((name, ast.get_docstring(node) or ""))
                visit(node.body, f"{name}.")

    visit(module.body, "")
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
