"""A pytest plugin that limits a run of the suite to some clauses of each implementation."""

from __future__ import annotations

import json
import os


def pytest_commhooks_clauses(implementation: str) -> list[str]:
    """The clauses that the environment names for the implementation."""
    wanted: dict[str, list[str]] = json.loads(os.environ["COMMHOOKS_CLAUSES"])
    return wanted[implementation]
