"""Every MUST clause has a mutant that its own check catches, for the right reason."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from suite import run_suite

import mutants
from commhooks.conformance.cells import ImplementationResult
from commhooks.conformance.clauses import all_clauses

ALL = [
    mutant
    for module in pkgutil.iter_modules(mutants.__path__, "mutants.")
    for mutant in getattr(importlib.import_module(module.name), "MUTANTS", [])
]
RUNS = 2


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, ImplementationResult]:
    """Runs the suite on the mutants whose tests are to run, each with the checks of its own clauses; gives the results.

    Two runs share the mutants, side by side: in one alone the controller and the ranks wait for each other.
    """
    with ThreadPoolExecutor(RUNS) as pool:
        calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
        wanted = {call["mutant"].name for call in calls if "mutant" in call}
        chosen = [mutant for mutant in ALL if mutant.name in wanted]
        shares = [share for number in range(RUNS) if (share := chosen[number::RUNS])]
        parts = pool.map(_run_mutants, [tmp_path_factory.mktemp("mutants") for _ in shares], shares)
        return {implementation.name: implementation for part in parts for implementation in part}


def _run_mutants(folder: Path, chosen: Sequence[mutants.Mutant]) -> list[ImplementationResult]:
    """Runs the suite once on some mutants; gives the results of each."""
    for mutant in chosen:
        mutant.build(folder)
    finished = run_suite(
        *(f"--impl={mutant.implementation}" for mutant in chosen),
        "--world-size=1,2,3",
        "--rank-timeout=4",
        "-q",
        "-p",
        "mutants.selection",
        folder=folder / "report",
        cwd=folder,
        environment={
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
            "COMMHOOKS_CLAUSES": json.dumps({mutant.implementation: mutant.clauses for mutant in chosen}),
        },
        timeout=1500,
    )
    assert finished.status == 1, finished.output[-6000:]
    return finished.report.implementations


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: mutants.Mutant, results: Mapping[str, ImplementationResult]) -> None:
    """Each clause that the mutant names has a failed cell, of the kind that it names."""
    cells = results[mutant.implementation].cells
    for clause in mutant.clauses:
        failures = [cell.failure for cell in cells if cell.clause == clause and cell.state == "fail"]
        kinds = {failure.kind for failure in failures}
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
