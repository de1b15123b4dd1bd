"""The suite, run on the reference and on torch: no failure, exactly the recorded deviations, all accounted for."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from suite import Finished, run_suite

from commhooks.conformance.cells import STATES, ImplementationResult
from commhooks.conformance.clauses import all_clauses
from commhooks.conformance.deviations import FOLDER, read_deviations
from commhooks.conformance.report.document import ReportError, read_report

IMPLEMENTATIONS = ("reference", "torch")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """A run on each, in worlds of one and two ranks, side by side."""
    folder = tmp_path_factory.mktemp("suite")

    def run(name: str) -> Finished:
        return run_suite(f"--impl={name}", "--world-size=1,2", "-q", folder=folder / name)

    with ThreadPoolExecutor(len(IMPLEMENTATIONS)) as pool:
        return dict(zip(IMPLEMENTATIONS, pool.map(run, IMPLEMENTATIONS), strict=True))


def test_larger_worlds(tmp_path: Path) -> None:
    """The reference passes in worlds of three and four ranks what is checked of the hooks without a state."""
    stateless = "test_allreduce or test_compress or test_wrappers or test_noop or test_bucket"
    done = run_suite("--impl=reference", "--world-size=3,4", "-q", "-k", stateless, folder=tmp_path)
    assert done.status == 0, done.output[-6000:]
    assert {cell.state for cell in done.implementation("reference").cells} == {"pass"}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_exit_status(name: str, runs: dict[str, Finished]) -> None:
    """Nothing failed, and no record is stale."""
    assert runs[name].status == 0, runs[name].output[-6000:]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_no_failure(name: str, runs: dict[str, Finished]) -> None:
    """No cell failed other than as recorded."""
    failed = [cell for cell in runs[name].implementation(name).cells if cell.state == "fail"]
    assert failed == []
    assert runs[name].implementation(name).stale == []


def test_reference_passes_everything(runs: dict[str, Finished]) -> None:
    """The reference has no deviation, is run in every configuration, and lacks two options of torch's wrapper only."""
    cells = runs["reference"].implementation("reference").cells
    assert {cell.state for cell in cells} == {"pass", "unsupported"}
    lacking = {cell.reason for cell in cells if cell.state == "unsupported"}
    options = [f"DistributedDataParallel.{name}" for name in ("built_in", "mixed_precision")]
    assert lacking == {f"does not offer {option}" for option in options}


def test_every_recorded_deviation_shows(runs: dict[str, Finished]) -> None:
    """Each entry of torch's file is the reason of some cell."""
    recorded = {entry.reason for entry in read_deviations(FOLDER / "torch.toml", all_clauses())}
    shown = {cell.reason for cell in runs["torch"].implementation("torch").cells if cell.state == "deviation"}
    assert shown == recorded


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_totals_add_up(name: str, runs: dict[str, Finished]) -> None:
    """Every cell is in one of the states, every clause has a cell, and no cell is entered twice."""
    cells = runs[name].implementation(name).cells
    counted = Counter(cell.state for cell in cells)
    assert set(counted) <= set(STATES)
    assert {cell.clause for cell in cells} >= set(all_clauses()) - _claimed_only()
    keys = Counter((cell.clause, cell.check, *sorted(cell.configuration.items())) for cell in cells)
    assert max(keys.values()) == 1, keys.most_common(3)


def _claimed_only() -> set[str]:
    """Clauses about what is claimed or denied, which neither of the two does."""
    return {
        name for name, clause in all_clauses().items() if re.search("claims|says that it does not offer", clause.text)
    }


def test_summary(runs: dict[str, Finished]) -> None:
    """The summary has the totals by level, the deviations, and where the scripts are."""
    assert "MUST" in runs["torch"].output
    assert "cells in" in runs["torch"].output
    assert "deviations, as recorded" in runs["torch"].output
    assert str(runs["torch"].folder / "repro") in runs["torch"].output


def _one_script_for_each_kind(result: ImplementationResult, folder: Path) -> list[Path]:
    """Scripts of checks that need torch alone; those of the laboratory and of the wire need the suite."""
    scripts: dict[str, Path] = {}
    for cell in result.cells:
        alone = cell.configuration["backend"] != "lab" and "WIRE" not in cell.clause
        if cell.state == "deviation" and alone:
            scripts.setdefault(cell.failure.kind, folder / cell.failure.script)
    return list(scripts.values())


def test_scripts_show_the_deviations(runs: dict[str, Finished]) -> None:
    """For each kind of torch's deviations a script, alone with torch, shows it again; two run at a time."""
    scripts = _one_script_for_each_kind(runs["torch"].implementation("torch"), runs["torch"].folder)
    assert scripts

    def run(script: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script)]
        return subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=300)

    with ThreadPoolExecutor(2) as pool:
        for script, done in zip(scripts, pool.map(run, scripts), strict=True):
            assert done.returncode == 1, f"{script}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            assert not any(word in done.stderr for word in ("NameError", "ImportError", "SyntaxError")), done.stderr[
                -2000:
            ]
            assert "commhooks.conformance" not in script.read_text(encoding="utf-8"), script
            assert any(word in done.stdout for word in ("the failure shows", "ended with", "did not finish", "raised"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no readable report"),
        ("[]", "does not match the schema"),
        ('{"format": 99}', "has format 99; .* a later version"),
        ('{"format": 1}', "has format 1; .* run the suite again"),
        ('{"format": 2}', "does not match the schema"),
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
