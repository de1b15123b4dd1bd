"""``report.json``: everything a run found out, in the form that ``schema.json`` describes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema

from commhooks.conformance.cells import Cell, ImplementationResult
from commhooks.conformance.clauses import Clause, fingerprint

if TYPE_CHECKING:
    from commhooks.conformance.options import Options

FORMAT = 1
SCHEMA = Path(__file__).with_name("schema.json")


class ReportError(Exception):
    """A report cannot be read; the message says what is wrong with it."""


def make_report(
    options: Options, clauses: Mapping[str, Clause], results: Sequence[ImplementationResult], started: float
) -> dict[str, Any]:
    """The content of ``report.json``, plain data."""
    return {
        "format": FORMAT,
        "suite": suite_version(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 3),
        "spec": options.spec or "",
        "search": options.search,
        "world_sizes": list(options.world_sizes),
        "clause_set": fingerprint(dict(clauses)),
        "clauses": [asdict(clause) for clause in clauses.values()],
        "implementations": [_implementation(result) for result in results],
    }


def write_report(
    options: Options, clauses: Mapping[str, Clause], results: Sequence[ImplementationResult], started: float
) -> Path:
    """Writes ``report.json`` into the report's folder and gives its path.

    Raises:
        OSError: The folder cannot be written.
    """
    options.report.mkdir(parents=True, exist_ok=True)
    path = options.report / "report.json"
    report = make_report(options, clauses, results, started)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def read_report(path: Path) -> dict[str, Any]:
    """Reads a report and checks it against the schema.

    Raises:
        ReportError: It is not JSON, of another format, or does not match the schema.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} is no readable report: {error}") from None
    if isinstance(report, dict) and report.get("format") != FORMAT:
        raise ReportError(f"{path} has format {report.get('format')!r}; this suite reads format {FORMAT}")
    try:
        jsonschema.validate(report, json.loads(SCHEMA.read_text(encoding="utf-8")))
    except jsonschema.ValidationError as error:
        raise ReportError(f"{path} does not match the schema, at {error.json_path}: {error.message}") from None
    assert isinstance(report, dict)
    return report


def suite_version() -> str:
    """Version of the suite, or "unknown" where it is not installed."""
    try:
        return installed_version("commhooks")
    except PackageNotFoundError:
        return "unknown"


def _implementation(result: ImplementationResult) -> dict[str, Any]:
    fields = {name: value for name, value in vars(result).items() if name != "cells"}
    return {**fields, "cells": [_cell(cell) for cell in result.cells]}


def _cell(cell: Cell) -> dict[str, Any]:
    """A cell without its empty fields, so that a report stays small."""
    fields: dict[str, Any] = {
        "clause": cell.clause,
        "check": cell.check,
        "configuration": cell.configuration,
        "state": cell.state,
        "seconds": round(cell.seconds, 4),
    }
    if cell.reason:
        fields["reason"] = cell.reason
    if cell.failure is not None:
        fields["failure"] = {name: value for name, value in asdict(cell.failure).items() if value}
    return fields
