"""The adapter of a framework with its own tensors."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from suite import Finished, run_suite

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorplay") is None,
    reason="needs TensorPlay: pip install tensorplay==1.0.0, which there is for CPython 3.11 on Linux",
)
FILES = "test_allreduce.py or test_noop.py or test_wrappers.py or test_powersgd_steps.py"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of some of the checks on its hooks."""
    folder = tmp_path_factory.mktemp("tensorplay")
    return run_suite("--impl=tensorplay", "--world-size=1,2", "-q", "-k", FILES, folder=folder)


def test_right_hooks_pass(finished: Finished) -> None:
    """Nothing is held against hooks that are right."""
    cells = finished.implementation("tensorplay").cells
    states = {state: {cell.clause for cell in cells if cell.state == state} for state in ("pass", "fail")}
    assert {"ALLREDUCE-MEAN", "ALLREDUCE-EXACT", "NOOP-BUFFER", "PSGD-STEP", "FP16-WRAPPER-IDENTITY"} <= states["pass"]
    assert not any(clause.startswith(("ALLREDUCE", "NOOP")) for clause in states["fail"]), states["fail"]


def test_its_faults_are_found(finished: Finished) -> None:
    """Its wrappers return the half type and leave their copy in the bucket."""
    cells = finished.implementation("tensorplay").cells
    failed = {cell.clause: cell.failure.kind for cell in cells if cell.failure is not None}
    assert failed["FP16-WRAPPER-DTYPE"] == failed["BF16-WRAPPER-DTYPE"] == "dtype"
    assert failed["FP16-WRAPPER-REUSE"] == failed["BF16-WRAPPER-REUSE"] == "bucket"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Another device is no failure of the hooks: the cells say what the adapter needs."""
    run = run_suite("--impl=tensorplay", "--device=cuda", "-q", "-k", "test_noop.py", folder=tmp_path)
    assert run.status == 0
    assert "the adapter of tensorplay runs on cpu with gloo" in run.output
