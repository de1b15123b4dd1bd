"""A pytest plugin that runs each mutant with the checks of its own clauses, until each of those has failed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from commhooks.conformance.cells import NotRun
from commhooks.conformance.selection import clauses_of, parameters_of

caught: set[tuple[str, str]] = set()


def pytest_commhooks_clauses(implementation: str) -> list[str]:
    """The clauses that the mutant names."""
    wanted: dict[str, list[str]] = json.loads(os.environ["COMMHOOKS_CLAUSES"])
    return wanted[implementation]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Spares the checks of clauses that have failed already."""
    if _pairs(item) <= caught:
        raise NotRun("caught already")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Notes which clauses have failed, after the suite has said how each check ended."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed:
        caught.update(_pairs(item))
    return report  # type: ignore[return-value]


def _pairs(item: pytest.Item) -> set[tuple[str, str]]:
    mutant = parameters_of(item)["implementation"]
    return {(mutant, clause) for clause in clauses_of(item)}
