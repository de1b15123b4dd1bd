"""The commands that work with reports and clauses, as a user calls them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import made_reports
import pytest
from made_reports import VALUE, cell, result

from commhooks.conformance.checks import checks_of
from commhooks.conformance.clauses import LEVELS, all_clauses
from commhooks.conformance.command import main
from commhooks.conformance.report.document import write_report

Printed = pytest.CaptureFixture[str]
COMMANDS = ("page", "matrix", "diff", "clauses")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with some reports: good.json, worse.json, other.json and foreign.json."""
    monkeypatch.chdir(tmp_path)
    good = [cell("ALPHA-MEAN"), cell("ALPHA-DTYPE")]
    reports = {
        "good": made_reports.report(result(own=good)),
        "worse": made_reports.report(result(own=[cell("ALPHA-MEAN", "fail", VALUE), good[1]])),
        "other": made_reports.report(result("other")),
        "foreign": replace(made_reports.report(result("foreign")), clause_set="ffffffffffff"),
    }
    for name, report in reports.items():
        write_report(report, tmp_path / f"{name}.json")
    (tmp_path / "cut.json").write_text((tmp_path / "good.json").read_text(encoding="utf-8")[:300], encoding="utf-8")
    (tmp_path / "file").write_text("", encoding="utf-8")
    return tmp_path


def test_page_and_badges_are_drawn_again(folder: Path, capsys: Printed) -> None:
    """`page` draws beside the report or into another folder, and says where."""
    assert main(["page", "good.json", "-o", "new/site"]) == 0
    assert capsys.readouterr().out == "new/site/index.html\n"
    assert {path.name for path in (folder / "new" / "site").iterdir()} == {"index.html", "badge.json", "badge.svg"}
    assert main(["page", "good.json"]) == 0
    assert (folder / "index.html").is_file()


def test_matrix(folder: Path, capsys: Printed) -> None:
    """`matrix` writes one page of several reports."""
    assert main(["matrix", "good.json", "other.json", "-o", "site"]) == 0
    assert capsys.readouterr().out == "site/index.html\n"
    assert "other 1.0" in (folder / "site" / "index.html").read_text(encoding="utf-8")


def test_diff(folder: Path, capsys: Printed) -> None:
    """`diff` ends with 1 if something got worse and with 0 if not, in words and as Markdown."""
    assert main(["diff", "good.json", "worse.json"]) == 1
    assert "Something got worse." in capsys.readouterr().out
    assert main(["diff", "worse.json", "good.json", "--markdown"]) == 0
    assert "| ALPHA-MEAN | MUST | fail → pass |" in capsys.readouterr().out


def test_clauses(capsys: Printed) -> None:
    """`clauses` lists all clauses, those of a level, or those that came with a version or later."""
    assert main(["clauses"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(all_clauses())
    assert lines[-1] == f"{len(all_clauses())} clauses"
    assert main(["clauses", "--level=MUST", "--since=1.13"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]}
    assert (
        listed == {name for name, one in all_clauses().items() if one.level == "MUST" and one.since == "1.13"} != set()
    )


def test_clauses_that_begin_alike(capsys: Printed) -> None:
    """The beginning of ids, in whatever case, lists those clauses."""
    assert main(["clauses", "noop-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == [name for name in all_clauses() if name.startswith("NOOP-")]


def test_folder_of_a_report(folder: Path, capsys: Printed) -> None:
    """Where a report is asked for, the folder that a run left does as well."""
    for name in ("before", "after"):
        (folder / name).mkdir()
    shutil.copy("good.json", "before/report.json")
    shutil.copy("worse.json", "after/report.json")
    assert main(["page", "before"]) == 0
    assert capsys.readouterr().out == "before/index.html\n"
    assert main(["diff", "before", "after"]) == 1
    assert main(["diff", "before", "good.json"]) == 0
    assert main(["matrix", "before", "other.json", "-o", "site"]) == 0


def test_version(capsys: Printed) -> None:
    """--version gives that of the package."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"commhooks {metadata.version('commhooks')}\n"


@pytest.mark.parametrize("name", ["FP16-CAST-FIRST", "fp16-cast-first"])
def test_one_clause(name: str, capsys: Printed) -> None:
    """`clauses ID` shows the text, the object and file it stands in, and each check with its file and line."""
    assert main(["clauses", name]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all_clauses()["FP16-CAST-FIRST"].text in text
    assert "fp16_compress_hook, reference/default_hooks.py" in text
    checks = checks_of("FP16-CAST-FIRST")
    assert checks
    for check in checks:
        assert f"conformance/{check.file}:{check.line} {check.name.partition('.')[2]}" in text


def test_clauses_as_json(capsys: Printed) -> None:
    """With --json there is an object for each clause, with its checks."""
    assert main(["clauses", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in content] == list(all_clauses())
    assert all(one["level"] in LEVELS and one["checks"] for one in content)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["page", "nowhere.json"], ["nowhere.json", "No such file"]),
        (["page", "."], ["report.json", "No such file"]),
        (["page", "cut.json"], ["cut.json", "no readable report"]),
        (["page", "good.json", "-o", "file/site"], ["file"]),
        (
            ["matrix", "good.json", "foreign.json", "-o", "site"],
            ["good.json and foreign.json", "different clause sets"],
        ),
        (["matrix", "good.json", "worse.json", "-o", "site"], ["good.json and in worse.json", "commhooks diff"]),
        (["matrix", "good.json", "other.json", "-o", "file"], ["file"]),
        (["matrix", "good.json"], ["-o/--output"]),
        (["diff", "good.json", "foreign.json"], ["different clause sets"]),
        (["diff", "good.json", "other.json"], ["no implementation in common: some, and other"]),
        (["diff", "good.json"], ["AFTER"]),
        (["clauses", "FP16-FIRST-CAST"], ["no clause 'FP16-FIRST-CAST'", "FP16-CAST-FIRST"]),
        (["clauses", "?"], ["no clause '?'", "`commhooks clauses` lists all"]),
        (["clauses", "--level=MIGHT"], ["MIGHT", "MUST"]),
        (["clauses", "--since=newest"], ["newest", "1.12"]),
        (["frobnicate"], ["frobnicate", "matrix"]),
        ([], ["COMMAND"]),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else None,
)
def test_wrong_input(arguments: list[str], words: list[str], folder: Path, capsys: Printed) -> None:
    """What makes no sense ends with status 4 and a few lines that say why; nothing is written."""
    before = {path.name for path in folder.iterdir()}
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else -1
    printed = capsys.readouterr()
    assert status == 4
    assert printed.out == ""
    for word in words:
        assert word in printed.err
    assert "Traceback" not in printed.err
    assert len(printed.err.strip().splitlines()) <= 5
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: Printed) -> None:
    """Each command says what it does and how it ends."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "exit status" in " ".join(text.split())
    assert len(text.splitlines()) > 8
