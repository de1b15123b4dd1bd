"""The suite, run on the reference and on torch: no failure, exactly the recorded deviations, all accounted for."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from suite import Finished, run_suite

from commhooks.conformance.cells import STATES
from commhooks.conformance.clauses import all_clauses
from commhooks.conformance.deviations import FOLDER, read_deviations
from commhooks.conformance.report.document import ReportError, read_report

IMPLEMENTATIONS = ("reference", "torch")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run over both."""
    folder = tmp_path_factory.mktemp("suite") / "report"
    return run_suite(*(f"--impl={name}" for name in IMPLEMENTATIONS), "-q", folder=folder)


def test_exit_status(finished: Finished) -> None:
    """Nothing failed, and no record is stale."""
    assert finished.status == 0, finished.output[-6000:]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_no_failure(name: str, finished: Finished) -> None:
    """No cell failed other than as recorded."""
    failed = [cell for cell in finished.implementation(name)["cells"] if cell["state"] == "fail"]
    assert failed == []
    assert finished.implementation(name)["stale"] == []


def test_reference_passes_everything(finished: Finished) -> None:
    """The reference has no deviation, lacks nothing, and is run in every configuration."""
    assert {cell["state"] for cell in finished.implementation("reference")["cells"]} == {"pass"}


def test_every_recorded_deviation_shows(finished: Finished) -> None:
    """Each entry of torch's file is the reason of some cell."""
    recorded = {entry.reason for entry in read_deviations(FOLDER / "torch.toml", all_clauses())}
    shown = {cell.get("reason") for cell in finished.implementation("torch")["cells"] if cell["state"] == "deviation"}
    assert shown == recorded


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_totals_add_up(name: str, finished: Finished) -> None:
    """Every cell is in one of the states, every clause has a cell, and no cell is entered twice."""
    cells = finished.implementation(name)["cells"]
    counted = Counter(cell["state"] for cell in cells)
    assert set(counted) <= set(STATES)
    assert {cell["clause"] for cell in cells} >= set(all_clauses()) - {"HOOK-MEAN"} - _claimed_only()
    keys = Counter((cell["clause"], cell["check"], *sorted(cell["configuration"].items())) for cell in cells)
    assert max(keys.values()) == 1, keys.most_common(3)


def _claimed_only() -> set[str]:
    """Clauses about claims, which only a user-written hook makes."""
    return {name for name, clause in all_clauses().items() if "claims to" in clause.text}


def test_summary(finished: Finished) -> None:
    """The summary has the totals by level, the deviations, and where the scripts are."""
    assert "MUST" in finished.output
    assert "cells in" in finished.output
    assert "deviations, as recorded" in finished.output
    assert str(finished.folder / "repro") in finished.output


def _one_script_for_each_deviation(report: dict[str, Any], folder: Path) -> list[Path]:
    scripts: dict[str, Path] = {}
    for cell in report["cells"]:
        if cell["state"] == "deviation" and cell["failure"].get("script"):
            scripts.setdefault(cell["reason"], folder / cell["failure"]["script"])
    return list(scripts.values())


def test_scripts_show_the_deviations(finished: Finished) -> None:
    """For each of torch's deviations a script, alone with torch, shows it again; two run at a time."""
    scripts = _one_script_for_each_deviation(finished.implementation("torch"), finished.folder)
    assert scripts

    def run(script: Path) -> subprocess.CompletedProcess[str]:
        # -P and an empty folder: nothing of this project can be imported but what is installed.
        command = [sys.executable, str(script)]
        return subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=300)

    with ThreadPoolExecutor(2) as pool:
        for script, done in zip(scripts, pool.map(run, scripts), strict=True):
            assert done.returncode == 1, f"{script}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            assert "commhooks.conformance" not in script.read_text(encoding="utf-8"), script
            assert any(word in done.stdout for word in ("the failure shows", "ended with", "did not finish", "raised"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no readable report"),
        ("[]", "does not match the schema"),
        ('{"format": 99}', "has format 99; this suite reads format 1"),
        ('{"format": 1}', "does not match the schema"),
    ],
)
def test_broken_reports_are_refused(text: str, words: str, tmp_path: Path) -> None:
    """A report that is cut off, of another format or not a report is refused with what is wrong."""
    path = tmp_path / "report.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ReportError, match=words):
        read_report(path)


def test_search_can_be_replayed(tmp_path: Path) -> None:
    """--search says with which seed it ran; the same seed gives the same verdict."""
    arguments = ["--impl=reference", "--world-size=2", "-q", "-k", "test_search and float32"]
    first = run_suite(*arguments, "--search=20", folder=tmp_path / "one")
    assert first.status == 0, first.output
    (line,) = [line for line in first.output.splitlines() if line.startswith("search: replay with")]
    replayed = line.removeprefix("search: replay with ").split()
    assert run_suite(*arguments, *replayed, folder=tmp_path / "two").status == 0
