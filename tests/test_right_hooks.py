"""Right hooks of many kinds pass all that is asked of every hook in the laboratory, and over time."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from suite import Finished, run_suite

FILES = [Path(__file__).with_name(name) for name in ("right_averages.py", "right_codecs.py")]
CLAUSES = [
    "HOOK-ANY-ORDER",
    "HOOK-COMPLETE",
    "HOOK-EARLIER-CALL",
    "HOOK-FAILS",
    "HOOK-GROUP",
    "HOOK-HANDS-OFF",
    "HOOK-IDLE",
    "HOOK-LATE",
    "HOOK-LETS-RUN",
    "HOOK-LOSSY",
    "HOOK-MEAN",
    "HOOK-MEMORY",
    "HOOK-NO-BLOCKING",
    "HOOK-NO-NEW-GROUP",
    "HOOK-NONFINITE",
    "HOOK-ORDER",
    "HOOK-REBUILT",
    "HOOK-RESUMES",
    "HOOK-WAITED",
]


def implementations() -> dict[str, str]:
    """The hooks of the files, which are what says what it claims, and the text for ``--impl`` of each."""
    found = {}
    for file in FILES:
        module = importlib.import_module(file.stem)
        names = [name for name, value in vars(module).items() if hasattr(value, "commhooks_claims") and name.islower()]
        found.update({name: f"{file}:{name}" for name in names})
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run over all of them."""
    wanted = dict.fromkeys(implementations().values(), CLAUSES)
    return run_suite(
        *(f"--impl={text}" for text in wanted),
        "--world-size=2",
        "-k",
        "float32",
        "-p",
        "only_clauses",
        folder=tmp_path_factory.mktemp("right_hooks"),
        environment={"PYTHONPATH": str(FILES[0].parent), "COMMHOOKS_CLAUSES": json.dumps(wanted)},
    )


@pytest.mark.parametrize("name", implementations())
def test_right_hook_passes(name: str, finished: Finished) -> None:
    """Nothing is held against it."""
    cells = finished.implementation(implementations()[name]).cells
    assert {cell.state for cell in cells} <= {"pass", "unsupported"}, [
        (cell.clause, cell.failure.message) for cell in cells if cell.failure is not None
    ]
    passed = {cell.clause for cell in cells if cell.state == "pass"}
    assert {"HOOK-LATE", "HOOK-ANY-ORDER", "HOOK-REBUILT", "HOOK-NONFINITE", "HOOK-MEMORY", "HOOK-LETS-RUN"} <= passed
