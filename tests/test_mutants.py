"""Every MUST clause has a mutant that its own check catches, for the right reason."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import mutants
from commhooks.conformance.clauses import all_clauses
from commhooks.conformance.report.document import read_report

ALL = [
    mutant
    for module in pkgutil.iter_modules(mutants.__path__, "mutants.")
    for mutant in getattr(importlib.import_module(module.name), "MUTANTS", [])
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Runs the suite once on all mutants, each with the checks of its own clauses; gives the results by mutant."""
    folder = tmp_path_factory.mktemp("mutants")
    for mutant in ALL:
        mutant.build(folder)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants.selection", "-p", "no:cacheprovider"]
    command += ["-p", "commhooks.conformance.plugin", "--pyargs", "commhooks.conformance", "--import-mode=importlib"]
    command += ["-c", os.devnull, "--rootdir=.", "--world-size=1,2,3", "--rank-timeout=3", "--report=report"]
    command += [f"--impl={mutant.implementation}" for mutant in ALL]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "COMMHOOKS_CLAUSES": json.dumps({mutant.implementation: mutant.clauses for mutant in ALL}),
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    report = read_report(folder / "report" / "report.json")
    return {implementation["name"]: implementation for implementation in report["implementations"]}


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: mutants.Mutant, results: Mapping[str, Any]) -> None:
    """Each clause that the mutant names has a failed cell, of the kind that it names."""
    cells = results[mutant.implementation]["cells"]
    for clause in mutant.clauses:
        failures = [cell["failure"] for cell in cells if cell["clause"] == clause and cell["state"] == "fail"]
        kinds = {failure["kind"] for failure in failures}
        assert kinds, f"no check of {clause} noticed {mutant.name}"
        assert not any(kind.startswith("suite error") for kind in kinds), failures[0]
        assert not mutant.kinds or kinds & set(mutant.kinds), f"{clause} failed with {kinds}, not {mutant.kinds}"


@pytest.mark.parametrize("clause", [name for name, clause in all_clauses().items() if clause.level == "MUST"])
def test_must_clause_has_a_mutant(clause: str) -> None:
    """A clause that no mutant proves may have a check that cannot fail."""
    assert any(clause in mutant.clauses for mutant in ALL), f"no mutant names {clause}"


def test_names_are_unique() -> None:
    """Two mutants of one name would be written to one folder."""
    names = [mutant.name for mutant in ALL]
    assert len(names) == len(set(names))
