"""report.json: complete, checked on reading, the same for two runs that found the same."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import made_reports
import pytest

from commhooks.conformance.cells import Cell, Failure
from commhooks.conformance.report.document import (
    FORMAT,
    SCHEMA,
    ReportError,
    layout,
    read_report,
    to_plain,
    write_report,
)
from commhooks.conformance.report.entries import to_cells, to_entries
from commhooks.conformance.report.making import make_report
from commhooks.conformance.report.noise import PACKAGES, without_noise

Content = dict[str, Any]


def _written(content: object, folder: Path) -> Path:
    path = folder / "report.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def _sorted(cells: list[Cell]) -> list[str]:
    return sorted(json.dumps(asdict(cell), sort_keys=True) for cell in cells)


def test_no_cell_is_lost(tmp_path: Path) -> None:
    """What is written is read again: every cell with its outcome and time, the scripts, and all else."""
    report = made_reports.report(made_reports.result(), made_reports.result("other"))
    write_report(report, tmp_path / "report.json")
    back = read_report(tmp_path / "report.json")
    for result, again in zip(report.implementations, back.implementations, strict=True):
        assert _sorted(result.cells) == _sorted(again.cells)
        assert replace(result, cells=[]) == replace(again, cells=[])
    assert replace(report, implementations=[]) == replace(back, implementations=[])


def test_cells_that_ended_alike_share_an_entry() -> None:
    """A full set of combinations is one entry; with one too few or twice it is several, with the same cells."""
    whole = [made_reports.cell("ALPHA-MEAN", dtype=d, world_size=w) for d in ("a", "b") for w in ("1", "2")]
    entries, _ = to_entries(whole)
    assert [entry["over"] for entry in entries] == [
        {"world_size": ["1", "2"], "device": ["cpu"], "backend": ["gloo"], "dtype": ["a", "b"]}
    ]
    for part in (whole[:3], [*whole, replace(whole[0], seconds=1.0)]):
        entries, _ = to_entries(part)
        assert _sorted(to_cells(entries, None)) == _sorted([replace(cell, seconds=0.0) for cell in part])


def test_a_check_of_two_clauses_may_end_in_two_ways() -> None:
    """One run of a check whose clauses end differently is an entry for each outcome."""
    one = made_reports.cell("ALPHA-MEAN")
    cells = [
        replace(one, check="both"),
        replace(one, check="both", clause="ALPHA-DTYPE", state="fail", failure=made_reports.VALUE),
    ]
    entries, _ = to_entries(cells)
    assert Counter(entry["state"] for entry in entries) == {"pass": 1, "fail": 1}
    assert _sorted(to_cells(entries, None)) == _sorted([replace(cell, seconds=0.0) for cell in cells])


def test_times_stand_apart() -> None:
    """Two runs that differ in their times only give the same content but for the part `times`."""
    one = made_reports.report()
    slower = [replace(cell, seconds=9.0) for cell in made_reports.cells()]
    other = replace(made_reports.report(made_reports.result(own=slower)), started="2027-01-01T00:00:00Z", seconds=99.0)
    first, second = to_plain(one), to_plain(other)
    assert first != second
    assert first.pop("times") != second.pop("times")
    assert first == second == to_plain(other, times=False)


def test_layout_is_json() -> None:
    """The lines are short where they can be, and are the same JSON."""
    content = to_plain(made_reports.report())
    text = layout(content)
    assert json.loads(text) == content
    assert len(text.splitlines()) > 30


def test_schema_is_one() -> None:
    """The published schema is a valid schema, and says what each part is."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["format"]["const"] == FORMAT


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.update(format=99), "has format 99; .* a later version of commhooks reads it"),
        (lambda content: content.update(format=1), "has format 1; .* run the suite again"),
        (lambda content: content.update(format="2"), "has format '2'"),
        (lambda content: content.pop("clauses"), "'clauses' is a required property"),
        (lambda content: content.update(more=1), r"at \$: .*'more' was unexpected"),
        (lambda content: _entries(content)[0].update(state="fine"), r"entries\[0\].state: 'fine' is not one of"),
        (lambda content: _failed(content).pop("failure"), "'failure' is a required property"),
        (lambda content: _entries(content)[0]["clauses"].append("GAMMA-NEW"), "some has cells of GAMMA-NEW"),
        (lambda content: content["times"]["milliseconds"][0][0].pop(), "one for each run"),
        (lambda content: content["times"]["milliseconds"].append([]), "times of 2 implementations"),
        (lambda content: content.update(pieces=[]), "a script of some has a part that is not among the pieces"),
        (lambda content: _entries(content)[0].update(over=_endless()), "runs of checks; at most"),
    ],
)
def test_broken_reports_are_refused(change: Any, words: str, tmp_path: Path) -> None:
    """A report of another format, not of the schema, or at odds with itself is refused with what is wrong."""
    content = to_plain(made_reports.report())
    change(content)
    with pytest.raises(ReportError, match=words) as caught:
        read_report(_written(content, tmp_path))
    assert str(tmp_path / "report.json") in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (layout(to_plain(made_reports.report()))[:-200], "no readable report"),
        ("", "no readable report"),
        ("[]", r"does not match the schema, at \$: \[\] is not of type 'object'"),
        ('{"format": NaN}', "NaN is no number in JSON"),
        ("[" * 200_000, "no readable report"),
        ("\udcff", "no readable report"),
    ],
    ids=["truncated", "empty", "a list", "NaN", "nested", "not UTF-8"],
)
def test_files_that_are_no_reports(text: str, words: str, tmp_path: Path) -> None:
    """A file that is cut off, or no report at all, is refused."""
    path = tmp_path / "report.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ReportError, match=words):
        read_report(path)


def test_huge_and_missing_files(tmp_path: Path) -> None:
    """A file far larger than any report is not loaded; one that is not there is said to be missing."""
    path = tmp_path / "report.json"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(ReportError, match=re.escape("has 2,147,483,648 bytes")):
        read_report(path)
    with pytest.raises(ReportError, match="No such file"):
        read_report(tmp_path / "nowhere.json")


def test_one_script_stands_for_failures_that_are_alike(tmp_path: Path) -> None:
    """Of failures that are alike the report has the shortest script, and every failure names one that it has."""
    (tmp_path / "repro").mkdir()
    for name, text in {"long": "x\n" * 50, "short": "x\n", "other": "y\n"}.items():
        (tmp_path / "repro" / f"{name}.py").write_text(text, encoding="utf-8")

    def failed(kind: str, script: str, size: str) -> Cell:
        failure = Failure(kind, "it is wrong", script=f"repro/{script}.py", details=f"seen in {PACKAGES}/adapters/x.py")
        return made_reports.cell("ALPHA-MEAN", "fail", failure, world_size=size)

    result = made_reports.result(
        own=[failed("value", "long", "1"), failed("value", "short", "2"), failed("dtype", "other", "3")]
    )
    options: Any = SimpleNamespace(spec=None, search=0, world_sizes=(1, 2, 3), report=tmp_path)
    made = make_report(options, made_reports.CLAUSES, [result], 0.0).implementations[0]
    assert made.scripts == {"repro/short.py": "x\n", "repro/other.py": "y\n"}
    failures = [cell.failure for cell in made.cells if cell.failure is not None]
    assert [failure.script for failure in failures] == ["repro/short.py", "repro/short.py", "repro/other.py"]
    assert [failure.details for failure in failures] == [
        "seen in commhooks/adapters/x.py",
        "",
        "seen in commhooks/adapters/x.py",
    ]


def test_noise() -> None:
    """Folders of this machine, numbers of threads, times of log lines and the suite's own frames are left out."""
    text = (
        "Thread 0x00007f3c0ffe9b80 (most recent call first):\n"
        f'  File "{PACKAGES}/conformance/world/rank.py", line 1 in f\n'
        '  File "/home/me/.venv/lib/python3.11/site-packages/torch/x.py", line 2 in g\n'
        "[rank0]:W1129 19:36:33.041000 20481 torch/y.py:3] careful"
    )
    assert without_noise(text) == (
        'thread (most recent call first):\n  File "torch/x.py", line 2 in g\n[rank0]:torch/y.py:3] careful'
    )


def test_where_a_known_hang_is_found_is_luck(tmp_path: Path) -> None:
    """Of a recorded hang only that it hangs is kept; one that is not recorded keeps where each rank was."""
    message = "rank 0 did not finish f within 4 s, in wait (x.py:1); the last of 3 collectives\nrank 1 finished f"
    hang = Failure("hangs", message, details="stacks")
    cells = [
        made_reports.cell("ALPHA-MEAN", "deviation", hang, "It hangs."),
        made_reports.cell("ALPHA-DTYPE", "fail", hang),
    ]
    options: Any = SimpleNamespace(spec=None, search=0, world_sizes=(2,), report=tmp_path)
    made = make_report(options, made_reports.CLAUSES, [made_reports.result(own=cells)], 0.0).implementations[0]
    known, new = (cell.failure for cell in made.cells)
    assert known == replace(hang, message="a rank did not finish f within 4 s", details="")
    assert new == hang


def _entries(content: Content) -> list[Content]:
    entries: list[Content] = content["implementations"][0]["entries"]
    return entries


def _failed(content: Content) -> Content:
    return next(entry for entry in _entries(content) if entry["state"] == "fail")


def _endless() -> dict[str, list[str]]:
    return {name: [str(number) for number in range(1000)] for name in ("a", "b", "c")}
