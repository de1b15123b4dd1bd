"""The parts that the documentation is made with: what they read, and what they refuse."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sphinx_needs", reason="the documentation is built with sphinx-needs, which needs Python 3.11")

import clauses as clauses_extension
import evidence
import implementations
import refresh_reports
import stored_reports
from code_of import code_of
from inventories import write_inventory
from published import PUBLISHED, broken_promises, publish, read_published, unpublished
from sphinx.errors import ExtensionError
from sphinx.util.inventory import InventoryFile

from commhooks.conformance import checks
from commhooks.conformance.cells import Cell, Failure, ImplementationResult
from commhooks.conformance.checks import CheckError, all_checks, checks_of, read_checks
from commhooks.conformance.clauses import Clause, all_clauses, fingerprint
from commhooks.conformance.deviations import FOLDER as DEVIATIONS
from commhooks.conformance.deviations import read_deviations
from commhooks.conformance.report.document import Report, ReportError, read_report, write_report

A = Clause("SOME-THING", "MUST", "1.11", "It holds.", "default_hooks.allreduce_hook")
B = dataclasses.replace(A, id="OTHER-THING", level="MAY")


def test_published_clauses_are_kept() -> None:
    """Every published clause is still there, with the level and the version that it was published with."""
    published = read_published(PUBLISHED.read_text(encoding="utf-8"))
    assert broken_promises(published, all_clauses()) == []


def test_every_clause_is_published() -> None:
    """A clause that is not written down could disappear unnoticed: run ``python docs/_ext/published.py``."""
    assert unpublished(read_published(PUBLISHED.read_text(encoding="utf-8")), all_clauses()) == []


def test_a_broken_promise_is_named() -> None:
    """A published id that is gone, and one of another level, are each said."""
    published = {"GONE-THING": ("MUST", "1.11"), "SOME-THING": ("SHOULD", "1.11")}
    gone, changed = broken_promises(published, {"SOME-THING": A})
    assert gone.startswith("GONE-THING was published and has disappeared")
    assert changed.startswith("SOME-THING was published as (SHOULD, 1.11) and is (MUST, 1.11)")


def test_publishing_adds_what_is_missing(tmp_path: Path) -> None:
    """The ids that are not in the file are added to it, and nothing is written for a broken promise."""
    file = tmp_path / "published.txt"
    assert publish(file, {"SOME-THING": A}) == ["SOME-THING"]
    assert publish(file, {"SOME-THING": A, "OTHER-THING": B}) == ["OTHER-THING"]
    assert read_published(file.read_text()) == {"SOME-THING": ("MUST", "1.11"), "OTHER-THING": ("MAY", "1.11")}
    before = file.read_text()
    with pytest.raises(ValueError, match="SOME-THING was published and has disappeared"):
        publish(file, {"OTHER-THING": B, "THIRD-THING": dataclasses.replace(A, id="THIRD-THING")})
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [("A-B MUST", "line 1 must be 'ID LEVEL VERSION'"), ("A-B MAY 1.11\nA-B MAY 1.11", "line 2 has A-B, which stands")],
)
def test_malformed_published_clauses(text: str, words: str) -> None:
    """A line that cannot be read, and an id that stands there twice, are named with their line."""
    with pytest.raises(ValueError, match=words):
        read_published(text)


def test_checks_are_read() -> None:
    """A check has its clauses for both half types, its sentence and its line."""
    check = all_checks()["test_compress.test_wire"]
    assert check.clauses == ("FP16-WIRE", "BF16-WIRE")
    assert check.summary.endswith(".")
    lines = (checks.SUITE / check.file).read_text(encoding="utf-8").splitlines()
    assert lines[check.line - 1].startswith("def test_wire(")
    assert check in checks_of("FP16-WIRE")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('def test_it():\n    """It is so."""', "test_x.test_it names no clause"),
        ('@clauses("A-B")\ndef test_it():\n    pass', "must have a docstring that begins with a sentence"),
        ('@clauses(NAME)\ndef test_it():\n    """It is so."""', "must name its clauses with literal texts, found NAME"),
    ],
)
def test_a_check_without_clauses_or_words(tmp_path: Path, source: str, words: str) -> None:
    """A check that names no clause, that says nothing, or whose clauses cannot be read is named."""
    (tmp_path / "test_x.py").write_text(source, encoding="utf-8")
    with pytest.raises(CheckError, match=words):
        read_checks(tmp_path)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (["SOME-THING"], "test_x.test_it names clauses that do not exist: A-B"),
        (["SOME-THING", "A-B"], "clauses without a check: SOME-THING"),
    ],
)
def test_the_build_stops_without_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: list[str], words: str
) -> None:
    """A clause without a check, and a check of no clause, stop the build."""
    (tmp_path / "test_x.py").write_text('@clauses("A-B")\ndef test_it():\n    """It is so."""', encoding="utf-8")
    monkeypatch.setattr(checks, "SUITE", tmp_path)
    monkeypatch.setattr(checks, "all_clauses", lambda: dict.fromkeys(known))
    monkeypatch.setattr(evidence, "all_checks", all_checks.__wrapped__)
    with pytest.raises(ExtensionError, match=words):
        evidence._require_evidence(None)  # type: ignore[arg-type]


def test_the_build_stops_for_a_published_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A published id that has disappeared stops the build."""
    fewer = {name: clause for name, clause in all_clauses().items() if name != "FP16-MEAN"}
    monkeypatch.setattr(evidence, "all_clauses", lambda: fewer)
    with pytest.raises(ExtensionError, match="FP16-MEAN was published and has disappeared"):
        evidence._require_evidence(None)  # type: ignore[arg-type]


def test_docstring_becomes_a_page() -> None:
    """Steps become nested lists where they stand, clauses nodes after everything else."""
    lines = [
        "It does *this*.",
        "",
        "Steps:",
        "    1. First, a * b_ of ``.x_``.",
        "    2. Then:",
        "        2.1. One, which",
        "             goes on.",
        "",
        "More to say.",
        "",
        "Args:",
        "    x: Something.",
        "",
        "Returns:",
        "    A future of the buffer: shape.",
        "",
        "Clauses:",
        "    SOME-THING (MUST, 1.11): It holds for a_b,",
        "        in all.",
        "",
        "Source:",
        "    A book.",
    ]
    clauses_extension.process_docstring(
        None,  # type: ignore[arg-type]
        "function",
        "commhooks.reference.m.f",
        None,
        None,
        lines,
    )
    text = "\n".join(lines)
    assert r"1. First, a \* b\_ of ``.x_``." in text
    assert "\n   1. One, which goes on.\n" in text
    assert (
        text.index("1. First")
        < text.index("More to say.")
        < text.index("Args:")
        < text.index(":returns: A future of the buffer: shape.")
    )
    assert "   :id: SOME-THING\n   :level: MUST\n" in text
    assert r"It holds for a\_b, in all." in text
    assert text.index(".. rubric:: Source") < text.index(".. clause:: SOME-THING")


def test_other_docstrings_are_left_alone() -> None:
    """Only the reference's docstrings are rewritten."""
    lines = ["It does.", "", "Steps:", "    not numbered"]
    clauses_extension.process_docstring(None, "function", "torch.f", None, None, lines)  # type: ignore[arg-type]
    assert lines == ["It does.", "", "Steps:", "    not numbered"]
    with pytest.raises(ExtensionError, match="steps must begin with a number and a dot, found 'not numbered'"):
        clauses_extension.process_docstring(
            None,  # type: ignore[arg-type]
            "function",
            "commhooks.reference.m.f",
            None,
            None,
            lines,
        )


def test_code_without_docstrings(tmp_path: Path) -> None:
    """The code of an object is shown without its docstrings, and an unknown one is an error."""
    path = tmp_path / "m.py"
    path.write_text(
        '@d\nclass A:\n    """Says."""\n\n    def f(self):\n        """Says."""\n        return 1\n\n\nB = 2\n'
    )
    assert code_of(path, "A") == "@d\nclass A:\n\n    def f(self):\n        return 1"
    assert code_of(path, "A.f") == "    def f(self):\n        return 1"
    with pytest.raises(KeyError):
        code_of(path, "A.g")


def test_inventory_can_be_read(tmp_path: Path) -> None:
    """Sphinx reads what is written, and a malformed line is named."""
    text, inventory = tmp_path / "torch.txt", tmp_path / "torch.inv"
    text.write_text("# A comment\npy:class torch.Tensor tensors.html#torch.Tensor\n", encoding="utf-8")
    write_inventory(text, inventory)
    read = InventoryFile.loads(inventory.read_bytes(), uri="https://x.org/").data
    assert read["py:class"]["torch.Tensor"].uri == "https://x.org/tensors.html#torch.Tensor"
    text.write_text("torch.Tensor\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"torch.txt, line 1: expected 'domain:role name place', found 'torch.Tensor'"):
        write_inventory(text, inventory)


def a_report(name: str = "mine", clause_set: str = "", clause: str = "FP16-MEAN") -> Report:
    """A report of one implementation with one failed cell."""
    failure = Failure("value", "It is <b>off</b> by *one*.", expected="1", found="2", script="repro/x.py")
    result = ImplementationResult(
        name=name,
        module="m",
        version="1",
        framework="torch 2",
        python="3.11",
        device="cpu",
        backend="gloo",
        cells=[Cell(clause, "test_compress.test_mean", {"world_size": "2"}, "fail", failure=failure)],
        scripts={"repro/x.py": "# ---- What the ranks are given\nDATA = 1\n# ---- The rest\nrun()\n"},
    )
    return Report("0.1", "", 0, (1, 2), clause_set or fingerprint(all_clauses()), all_clauses(), [result])


def page_of(folder: Path) -> str:
    """The page of the only implementation in a folder of reports, as reStructuredText."""
    (stored,) = stored_reports.stored_reports(folder)
    return "\n".join(implementations._results(stored) if stored.current else implementations._refusal(stored))


def test_page_of_an_implementation(tmp_path: Path) -> None:
    """The page has what failed, as text and not as markup, what was expected, and the script with what it gives."""
    write_report(a_report(), tmp_path / "mine.json", times=False)
    text = page_of(tmp_path)
    assert "It is <b>off</b> by \\*one\\*." in text
    assert ":Expected: 1" in text
    assert "`x.py <scripts/mine/x.py>`__" in text
    assert "DATA = 1" in text
    assert "run()" not in text
    assert ".. _mine-fp16-mean:" in text


def test_report_of_other_clauses_is_refused(tmp_path: Path) -> None:
    """A report of another set of clauses shows a note with both digests, and no result."""
    write_report(a_report(clause_set="000000000000"), tmp_path / "mine.json", times=False)
    text = page_of(tmp_path)
    assert "000000000000" in text
    assert fingerprint(all_clauses()) in text
    assert "FP16" not in text


def test_two_reports_of_one_implementation(tmp_path: Path) -> None:
    """Two reports of one implementation are an error that names it."""
    for file in ("a.json", "b.json"):
        write_report(a_report(), tmp_path / file, times=False)
    with pytest.raises(ReportError, match=r"b.json: 'mine' is in a.json too"):
        stored_reports.stored_reports(tmp_path)


@pytest.mark.parametrize("file", ["index.json", "a b.json"])
def test_name_that_is_no_page(tmp_path: Path, file: str) -> None:
    """A report whose page would be another page, or could not be linked to, is an error."""
    write_report(a_report(), tmp_path / file, times=False)
    with pytest.raises(ReportError, match="cannot be the name of a page"):
        stored_reports.stored_reports(tmp_path)


def test_report_of_two_implementations(tmp_path: Path) -> None:
    """A stored report has one implementation, since its page and its file have one name."""
    two = dataclasses.replace(a_report(), implementations=[*a_report().implementations, *a_report("x").implementations])
    write_report(two, tmp_path / "a.json", times=False)
    with pytest.raises(ReportError, match=r"a.json has 2 implementations; a stored report has one"):
        stored_reports.stored_reports(tmp_path)


def test_file_that_is_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncated report stops the build with the file's name."""
    write_report(a_report(), tmp_path / "a.json", times=False)
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(text[: len(text) // 2])
    reports: Any = stored_reports.stored_reports.__wrapped__
    monkeypatch.setattr(implementations, "stored_reports", lambda: reports(tmp_path))
    with pytest.raises(ExtensionError, match=r"a\.json is no readable report"):
        implementations._write_pages(None)  # type: ignore[arg-type]


class FakeRun:
    """Stands for a run of the suite: leaves a report behind and ends with a status."""

    def __init__(self, status: int) -> None:
        self.returncode = status

    def __call__(self, command: list[str], **_: object) -> FakeRun:
        """Writes the report where the command asks for it."""
        options = dict(part.split("=", 1) for part in command if part.startswith("--"))
        report = dataclasses.replace(a_report(options["--impl"]), started="2026-01-01T00:00:00Z", seconds=1.5)
        write_report(report, Path(options["--report"]) / "report.json")
        return self


def test_reports_are_refreshed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report is stored without times under a name that can be a page's, and can be made again from there."""
    monkeypatch.setattr(refresh_reports.subprocess, "run", FakeRun(0))
    stored = refresh_reports.refresh("hooks/mine.py:Adapter", tmp_path)
    assert stored.name == "hooks-mine.py-Adapter.json"
    assert read_report(stored).started == ""
    assert refresh_reports.stored_implementations(tmp_path) == ["hooks/mine.py:Adapter"]
    assert [each.name for each in stored_reports.stored_reports(tmp_path)] == ["hooks-mine.py-Adapter"]


def test_failed_run_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that found something else than what is recorded leaves the stored report as it is."""
    monkeypatch.setattr(refresh_reports.subprocess, "run", FakeRun(1))
    with pytest.raises(SystemExit, match="mine: the run ended with 1; its stored report stays as it is"):
        refresh_reports.refresh("mine", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", sorted(DEVIATIONS.glob("*.toml")), ids=lambda path: path.stem)
def test_each_deviation_has_advice(path: Path) -> None:
    """Each recorded deviation says what a user should do about it."""
    silent = [record.clause for record in read_deviations(path, all_clauses()) if not record.advice]
    assert silent == []
