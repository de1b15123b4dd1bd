"""Wrong input is a usage error of a few lines that says what was found and what to do, before any rank starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suite import run_suite

USAGE_ERROR = 4

FILES = {
    "leaves.py": "import sys\nsys.exit('bye')\n",
    "unknown_clause.toml": "[[deviation]]\nclause = 'FP16-CASTS'\nhow = 'value'\nreason = 'x'\n",
    "broken.toml": "[[deviation\nclause = 1\n",
    "no_reason.toml": "[[deviation]]\nclause = 'FP16-WIRE'\nhow = 'value'\n",
    "unknown_key.toml": "[[deviation]]\nclause = 'FP16-WIRE'\nhow = 'value'\nreason = 'x'\nhwo = 'y'\n",
    "unknown_place.toml": "[[deviation]]\nclause = 'FP16-WIRE'\nhow = 'value'\nreason = 'x'\nwhere = {wordl = 2}\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files that are wrong in many ways."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--impl is missing", "--impl=torch"]),
        (["--impl=torch", "--world-size=0"], ["--world-size", "'0'", "1,2,4"]),
        (["--impl=torch", "--world-size=two"], ["--world-size", "'two'"]),
        (["--impl=torch", "--world-size="], ["--world-size", "''"]),
        (["--impl=torch", "--rank-timeout=-1"], ["--rank-timeout", "-1"]),
        (["--impl=torch", "--rank-memory=0"], ["--rank-memory", "0"]),
        (["--impl=torch", "--search=-3"], ["--search", "-3"]),
        (["--impl=torch", "--spec=newest"], ["--spec", "'newest'", "1.11"]),
        (["--impl=torch", "--spec=1.2"], ["--spec=1.2", "1.11"]),
        (["--impl=torch", "--impl-python=no-such-python"], ["--impl-python=no-such-python"]),
        (["--impl=torch", "--deviations=nowhere.toml"], ["nowhere.toml", "cannot be read"]),
        (["--impl=torch", "--deviations=unknown_clause.toml"], ["'FP16-CASTS'", "FP16-CAST-FIRST", "deviation 1"]),
        (["--impl=torch", "--deviations=broken.toml"], ["broken.toml", "not valid TOML", "line 1"]),
        (["--impl=torch", "--deviations=no_reason.toml"], ["no_reason.toml", "no 'reason'"]),
        (["--impl=torch", "--deviations=unknown_key.toml"], ["'hwo'", "known are clause"]),
        (["--impl=torch", "--deviations=unknown_place.toml"], ["'wordl'", "world_size"]),
        (["--impl=no_such_module"], ["no module named 'no_such_module'", "path/to/file.py"]),
        (["--impl=leaves.py"], ["SystemExit: bye"]),
        (["--impl=torch", "--device=abacus"], ["unknown device 'abacus'"]),
        (["--impl=torch", "--backend=pigeons"], ["unknown backend 'pigeons'", "gloo"]),
        (["--impl=torch", "--report=leaves.py"], ["--report=leaves.py", "is a file"]),
        (["--impl=torch", "--report=leaves.py/deep/report"], ["--report=leaves.py/deep/report", "leaves.py is a file"]),
        (["--impl=torch", "--report=/proc/report"], ["--report=/proc/report cannot be written: /proc"]),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else None,
)
def test_wrong_input(arguments: list[str], words: list[str], folder: Path) -> None:
    """The run ends with status 4, says the words, and has no traceback and no report."""
    finished = run_suite(*arguments, "-q", folder=folder / "report", cwd=folder)
    assert finished.status == USAGE_ERROR, finished.output
    for word in words:
        assert word in finished.output
    assert "Traceback" not in finished.output
    assert len(finished.output.strip().splitlines()) <= 8, finished.output
    assert not (folder / "report").exists()


def test_missing_devices_are_not_run(tmp_path: Path) -> None:
    """A device that the machine lacks leaves every cell not run, with the reason, and is no failure."""
    finished = run_suite(
        "--impl=torch", "--device=cuda", "--world-size=2", "-q", "-k", "test_noop", folder=tmp_path / "report"
    )
    cells = finished.implementation("torch").cells
    assert {cell.state for cell in cells} == {"not run"}
    assert all("needs" in cell.reason for cell in cells)
    assert "not run" in finished.output
    assert finished.status == 0


def test_stale_records_fail_the_run(tmp_path: Path) -> None:
    """A recorded deviation that passes, fails in another way or matches nothing makes the run fail, and says so."""
    record = tmp_path / "mine.toml"
    entries = [
        ("NOOP-BUFFER", "value", "{ dtype = 'float32', world_size = 1 }"),
        ("FP16-WRAPPER-DTYPE", "hangs", "{ dtype = 'float32' }"),
        ("NOOP-ALONE", "hangs", "{ world_size = 77 }"),
    ]
    record.write_text(
        "".join(
            f"[[deviation]]\nclause = '{clause}'\nhow = '{how}'\nreason = 'made up'\nwhere = {where}\n"
            for clause, how, where in entries
        ),
        encoding="utf-8",
    )
    wanted = {"torch": ["NOOP-BUFFER", "FP16-WRAPPER-DTYPE", "NOOP-ALONE"]}
    finished = run_suite(
        "--impl=torch",
        f"--deviations={record}",
        "-q",
        "-p",
        "only_clauses",
        folder=tmp_path / "report",
        environment={"PYTHONPATH": str(Path(__file__).parent), "COMMHOOKS_CLAUSES": json.dumps(wanted)},
    )
    assert finished.status == 1
    found = finished.implementation("torch")
    failures = {(cell.clause, cell.failure.kind) for cell in found.cells if cell.state == "fail"}
    assert ("NOOP-BUFFER", "stale record") in failures
    assert ("FP16-WRAPPER-DTYPE", "dtype") in failures
    assert any("NOOP-ALONE" in sentence and "matches no cell" in sentence for sentence in found.stale)
    assert "1 stale record" in finished.output
