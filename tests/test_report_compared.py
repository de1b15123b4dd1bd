"""Badges, the matrix of several reports, and the difference of two runs."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import made_reports
import pytest
from made_reports import MARKUP, VALUE, cell, result

from commhooks.conformance.cells import Cell
from commhooks.conformance.clauses import Clause
from commhooks.conformance.report.badge import score, write_badges
from commhooks.conformance.report.diff import Difference, differences
from commhooks.conformance.report.diff_text import as_markdown, as_text
from commhooks.conformance.report.document import Report, ReportError, write_report
from commhooks.conformance.report.matrix import write_matrix

PASSES = [cell("ALPHA-MEAN"), cell("ALPHA-DTYPE"), cell("BETA-NICE")]


@pytest.mark.parametrize(
    ("cells", "message", "colour"),
    [
        (PASSES, "MUST 2/2", "brightgreen"),
        ([PASSES[0], made_reports.cells()[7]], "MUST 1/2", "yellow"),
        ([PASSES[0], cell("ALPHA-DTYPE", "fail", VALUE)], "MUST 1/2, failing", "red"),
        ([*PASSES, cell("BETA-NICE", "fail", VALUE, dtype="x")], "MUST 2/2, failing", "red"),
        ([PASSES[0], cell("ALPHA-DTYPE", "not run", reason="no device")], "MUST 1/1, 1 not run", "brightgreen"),
        ([PASSES[2]], "nothing tried", "lightgrey"),
    ],
)
def test_badge(cells: Sequence[Cell], message: str, colour: str, tmp_path: Path) -> None:
    """A badge has the score of the MUST clauses, what did not run, and whether anything failed; never a percentage."""
    report = made_reports.report(result(own=cells))
    assert score(report, report.implementations[0]) == (message, colour)
    write_badges(report, tmp_path)
    content = json.loads((tmp_path / "badge.json").read_text(encoding="utf-8"))
    assert content == {"schemaVersion": 1, "label": "DDP hooks", "message": message, "color": colour}
    drawn = ET.parse(tmp_path / "badge.svg").getroot()
    assert [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")] == ["DDP hooks", message]


def test_stale_record_makes_the_badge_red() -> None:
    """A stale record fails a run, so the badge says so."""
    report = made_reports.report(replace(result(own=PASSES), stale=["matches no cell"]))
    assert score(report, report.implementations[0]) == ("MUST 2/2, failing", "red")


def test_badges_of_several(tmp_path: Path) -> None:
    """Each implementation has its own badge under a name of letters, also where names differ in other signs only."""
    names = ["a.b", "a/b", "../../x", MARKUP, "é"]
    write_badges(made_reports.report(*(result(name) for name in names)), tmp_path)
    files = sorted(path.name for path in tmp_path.glob("*.json"))
    assert len(files) == len(names)
    assert all(re.fullmatch(r"badge-[a-z0-9-]+\.json", name) for name in files)
    assert {"badge-a-b.json", "badge-a-b-2.json", "badge-x.json", "badge-implementation.json"} <= set(files)


def _stored(folder: Path, **reports: Report) -> list[Path]:
    for name, report in reports.items():
        write_report(report, folder / f"{name}.json")
    return [folder / f"{name}.json" for name in reports]


def test_matrix(tmp_path: Path) -> None:
    """Reports of different implementations become one page."""
    paths = _stored(
        tmp_path,
        one=made_reports.report(result("one")),
        newer=made_reports.report(result("one", version="2.0"), started=False),
        other=made_reports.report(result("other"), result("third")),
    )
    page = write_matrix(paths, tmp_path / "new" / "folder")
    text = page.read_text(encoding="utf-8")
    for title in ("one 1.0", "one 2.0", "other 1.0", "third 1.0"):
        assert f">{title}</a>" in text
    assert text.count('class="verdict ') == 4


def test_matrix_refuses_other_clauses(tmp_path: Path) -> None:
    """Reports of different clause sets are refused with the files and the clauses in which they differ."""
    more = {**made_reports.CLAUSES, "GAMMA-NEW": Clause("GAMMA-NEW", "MUST", "1.13", "New.", "every hook")}
    del more["BETA-NICE"]
    more["ALPHA-MEAN"] = replace(more["ALPHA-MEAN"], text="Otherwise.")
    own = [cell("ALPHA-MEAN")]
    other = replace(made_reports.report(result("two", own), clause_set="ba9876543210"), clauses=more)
    paths = _stored(tmp_path, one=made_reports.report(), two=other)
    with pytest.raises(ReportError) as caught:
        write_matrix(paths, tmp_path / "new")
    message = str(caught.value)
    for words in (
        "different clause sets", "0123456789ab", "ba9876543210", f"only {paths[0]} has BETA-NICE",
        f"only {paths[1]} has GAMMA-NEW", "word ALPHA-MEAN differently",
    ):  # fmt: skip
        assert words in message
    assert not (tmp_path / "new").exists()


def test_matrix_refuses_one_implementation_twice(tmp_path: Path) -> None:
    """Two reports of one implementation, version, device and backend are refused with both files."""
    paths = _stored(tmp_path, one=made_reports.report(), two=made_reports.report(result("x"), result()))
    with pytest.raises(ReportError, match=r"some 1\.0 on cpu/gloo is in .*one\.json and in .*two\.json; .*diff"):
        write_matrix(paths, tmp_path)


def _changed(before: Sequence[Cell], after: Sequence[Cell]) -> Difference:
    reports = [made_reports.report(result(own=cells)) for cells in (before, after)]
    (found,) = differences(*reports)
    return found


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ("pass", "fail", True),
        ("pass", "deviation", True),
        ("pass", "not run", True),
        ("pass", "unsupported", True),
        ("deviation", "fail", True),
        ("not run", "fail", True),
        ("fail", "pass", False),
        ("fail", "deviation", False),
        ("deviation", "pass", False),
        ("not run", "unsupported", False),
        ("not run", "pass", False),
    ],
)
def test_what_is_worse(before: str, after: str, worse: bool) -> None:
    """A cell that passed and does not any more is worse, and so is one on the way from deviation to failure."""

    def one(state: str) -> Cell:
        failure = VALUE if state in ("fail", "deviation") else None
        return cell("ALPHA-MEAN", state, failure, "" if state in ("pass", "fail") else "why")  # type: ignore[arg-type]

    found = _changed([one(before), PASSES[1]], [one(after), PASSES[1]])
    assert found.got_worse is worse
    assert [(change.clause, change.before, change.after) for change in [*found.worse, *found.other]] == [
        ("ALPHA-MEAN", before, after)
    ]
    assert ("Something got worse." in as_text(found)) is worse


def test_nothing_changed() -> None:
    """Two runs that found the same differ in nothing, whatever they took."""
    found = _changed(made_reports.cells(), [replace(one, seconds=7.0) for one in made_reports.cells()])
    assert found.empty
    assert not found.got_worse
    assert as_text(found).endswith("\nNothing changed.")


def test_difference_in_words() -> None:
    """The text has the scores, the clauses, the cells and where they lie, what appeared and what is gone."""
    before = [PASSES[0], cell("ALPHA-MEAN", dtype="float16"), made_reports.cells()[7], cell("BETA-NICE", case="old")]
    after = [PASSES[0], cell("ALPHA-MEAN", "fail", VALUE, dtype="float16"), cell("ALPHA-DTYPE"), *PASSES[2:]]
    text = as_text(_changed(before, after))
    for words in (
        "some 1.0, cpu/gloo", "MUST 1/2", "ALPHA-MEAN   MUST  pass → fail", "ALPHA-DTYPE  MUST  deviation → pass",
        "Cells that got worse", "1 cell  world size 2; dtype float16; on cpu/gloo  rank 0, element 3 of 8",
        "Failures and deviations that are gone", "It stays in float16.",
        "Only the first run has 1 cell, only the second has 1 cell", "Something got worse.",
    ):  # fmt: skip
        assert words in text, text
    assert "and more" not in text


def test_new_failure_in_a_new_cell_is_worse() -> None:
    """A failure in a cell that the first run did not have counts; so does a record that became stale."""
    assert _changed(PASSES, [*PASSES, cell("ALPHA-MEAN", "fail", VALUE, dtype="float16")]).got_worse
    stale = replace(result(own=PASSES), stale=["the deviation matches no cell"])
    (found,) = differences(made_reports.report(result(own=PASSES)), made_reports.report(stale))
    assert found.got_worse
    assert "the deviation matches no cell" in as_text(found)


def test_markdown_is_text() -> None:
    """What an implementation says is no markup, no row of the table, and calls nobody."""
    hostile = replace(VALUE, message=f"a | b `c` *d* [e](f) {MARKUP} @someone #1\nsecond")
    text = as_markdown(_changed(PASSES, [cell("ALPHA-MEAN", "fail", hostile), *PASSES[1:]]))
    row = next(line for line in text.splitlines() if "someone" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) in (5, 6)
    assert not re.search(r"(?<!\\)[<>`*\[\]]", row)
    assert "@someone" not in row
    assert "second" not in row


def test_terminal_is_left_alone() -> None:
    """What an implementation says cannot move the cursor of a terminal."""
    hostile = replace(VALUE, message="a\x1b[2Jb\x07")
    text = as_text(_changed(PASSES, [cell("ALPHA-MEAN", "fail", hostile), *PASSES[1:]]))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_difference_needs_a_common_implementation() -> None:
    """Reports of different implementations are refused with their names."""
    with pytest.raises(ReportError, match="no implementation in common: one, and two"):
        differences(made_reports.report(result("one")), made_reports.report(result("two")))
