"""What a run prints, in a terminal and elsewhere, and what it leaves in its folder."""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import made_reports
import pytest
from suite import ROOT, Finished, run_suite

from commhooks.conformance.report import folder
from commhooks.conformance.report.document import read_report
from commhooks.conformance.report.progress import Progress
from commhooks.conformance.report.terminal import summary

PART = ("--impl=torch", "--world-size=1,2", "-k", "test_noop or test_layout")


def _in_terminal(*arguments: str, report: Path) -> tuple[int, str]:
    """Runs the suite in a terminal of 60 columns; gives the exit status and all that came to the terminal."""
    pty = pytest.importorskip("pty", reason="needs a system with pseudo-terminals")
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(ROOT / "conformance"),
        "-p",
        "no:cacheprovider",
        f"--report={report}",
    ]
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm", COLUMNS="60")
        os.chdir(ROOT)
        os.execv(sys.executable, [*command, *arguments])
    output = b""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # Linux says so when the last process has left the terminal.
            break
        if not block:
            break
        output += block
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), output.decode()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run whose output is no terminal, with a JUnit file."""
    folder = tmp_path_factory.mktemp("run")
    finished = run_suite(*PART, f"--junitxml={folder / 'junit.xml'}", folder=folder)
    assert finished.status == 0, finished.output
    return finished


def test_progress_in_a_terminal(tmp_path: Path) -> None:
    """One line tells checks done of all, the world and the deviations so far, goes away, and leaves the summary."""
    status, output = _in_terminal(*PART, report=tmp_path)
    assert status == 0, output
    lines = [line.rstrip() for line in re.findall(r"\r([\d,]+ of [^\r\n]*)", output)]
    counts = [re.match(r"(\d+) of (\d+) checks   world of [12]", line) for line in lines]
    assert all(counts), lines
    done = [(int(count[1]), int(count[2])) for count in counts if count]
    assert done == sorted(done)
    cells = read_report(tmp_path / "report.json").implementations[0].cells
    deviations = [cell for cell in cells if cell.state == "deviation"]
    assert deviations
    assert lines[-1] == f"{len(cells)} of {len(cells)} checks   world of 2   {len(deviations)} deviations"
    assert all(len(line) < 60 for line in lines)
    after = output[output.rindex(lines[-1]) + len(lines[-1]) :]
    assert re.match(r" *\r *\r", after), "the line is not wiped out"
    assert "MUST" in after
    assert "test_noop.py" not in output


def test_long_lines_are_cut() -> None:
    """The line is never longer than the terminal is wide, which would leave its rest behind."""
    progress = Progress(SimpleNamespace())  # type: ignore[arg-type]
    line = progress.line("test_x.py::test[torch-float32-W12-case]", 1000)
    assert line == "0 of 0 checks   world of 12"
    assert progress.line("test_x.py::test[torch-float32-W12-case]", 20) == line[:20]
    assert progress.line("test_x.py::test[torch-W1]", 1000).endswith("world of 1")


@pytest.mark.parametrize(("option", "words"), [("-q", r"^\.*d"), ("-v", r"test_bucket\.py::.* DEVIATION")])
def test_quiet_and_verbose_are_pytests(option: str, words: str, tmp_path: Path) -> None:
    """With -q there are pytest's letters, with -v its line for each check; the summary is there in any case."""
    arguments = ("--impl=torch", "--world-size=1", "-k", "test_bucket and test_layout", "--color=no")
    status, output = _in_terminal(*arguments, option, report=tmp_path)
    assert status == 0, output
    assert "   world of" not in output
    assert re.search(words, output, re.M)
    assert ("DEVIATION" in output) == (option == "-v")
    assert "cell in" in output


def test_plain_elsewhere(run: Finished) -> None:
    """Where the output is no terminal it has no control characters and no progress line."""
    assert "\r" not in run.output
    assert "\x1b" not in run.output
    assert "test_noop.py ." in run.output
    assert f"report: {run.folder / 'index.html'}" in run.output


def test_run_leaves_report_page_and_badge(run: Finished) -> None:
    """The folder of a run has the report and what is drawn from it, and the scripts that the report has too."""
    names = {path.name for path in run.folder.iterdir()}
    assert {"report.json", "index.html", "badge.json", "badge.svg", "repro"} <= names
    stored = run.implementation("torch")
    scripts = {one.failure.script for one in stored.cells if one.failure is not None}
    assert scripts == set(stored.scripts)
    assert scripts
    for path, text in stored.scripts.items():
        assert (run.folder / path).read_text(encoding="utf-8") == text


def test_same_run_twice(run: Finished, tmp_path: Path) -> None:
    """Two runs differ in the part that has their times only, which stands at the end of the report."""
    again = run_suite(*PART, "-q", folder=tmp_path)
    texts = [(one.folder / "report.json").read_text(encoding="utf-8") for one in (run, again)]
    assert texts[0].partition('"times"')[0] == texts[1].partition('"times"')[0]
    assert "milliseconds" in texts[0].partition('"times"')[2]


def test_junit(run: Finished) -> None:
    """In pytest's JUnit file each test case has its state and its clauses as properties, once."""
    found = []
    for case in ET.parse(run.folder / "junit.xml").getroot().iter("testcase"):
        properties = [(one.get("name"), one.get("value")) for one in case.iter("property")]
        (state,) = [value for name, value in properties if name == "state"]
        found += [(value, state) for name, value in properties if name == "clause"]
    assert sorted(found) == sorted((cell.clause, cell.state) for cell in run.implementation("torch").cells)
    assert ("BUCKET-LAYOUT", "deviation") in found


@pytest.mark.parametrize("broken", ["page", "badges", "report"])
def test_verdict_survives_what_cannot_be_drawn(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a part cannot be written, the others are, one line says which and why, and the summary stays whole."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("no ink")

    targets = {"page": "write_page", "badges": "write_badges", "report": "write_report"}
    monkeypatch.setattr(folder, targets[broken], fail)
    report = made_reports.report()
    problems = folder.publish(report, tmp_path)
    assert len(problems) == 1
    assert "could not be written: ZeroDivisionError: no ink" in problems[0]
    written = {path.name for path in tmp_path.iterdir()}
    parts = {"page": {"index.html"}, "badges": {"badge.json", "badge.svg"}, "report": {"report.json"}}
    assert written == set().union(*(files for part, files in parts.items() if part != broken))
    lines = summary(report, tmp_path, problems)
    assert lines[-1] == problems[0]
    assert any("MUST 0/2" in line for line in lines)


def test_terminal_is_left_alone(tmp_path: Path) -> None:
    """What an implementation says cannot move the cursor of a terminal, and takes one line of the summary."""
    hostile = replace(made_reports.VALUE, message="a\x1b[2Jb\nc")
    report = made_reports.report(made_reports.result(own=[made_reports.cell("ALPHA-MEAN", "fail", hostile)]))
    lines = summary(report, tmp_path, [])
    assert any("a�[2Jb" in line for line in lines)
    assert not any("\x1b" in line or "\n" in line for line in lines)


def test_verdict_survives_a_folder_that_went_away(tmp_path: Path) -> None:
    """A folder that turned into a file in the meantime costs the report, not the verdict."""
    (tmp_path / "report").write_text("", encoding="utf-8")
    (problem,) = folder.publish(made_reports.report(), tmp_path / "report")
    assert "could not be written" in problem


def test_full_disk_at_the_end(tmp_path: Path) -> None:
    """A run whose report cannot be written ends with the status of its verdict, and says what is missing."""
    hooks = tmp_path / "hooks.py"
    target = tmp_path / "report"
    # The hook itself puts a file where the report would go, after the run has begun.
    hooks.write_text(
        "import pathlib\n\n\ndef hook(state, bucket):\n"
        f"    path = pathlib.Path({str(target)!r})\n"
        "    if not path.exists():\n        path.write_text('in the way')\n"
        "    return None\n",
        encoding="utf-8",
    )
    finished = run_suite(f"--impl={hooks}:hook", "--world-size=1", "-q", "-k", "test_future", folder=target)
    assert finished.status == 1, finished.output
    assert "the report could not be written" in finished.output
    assert "INTERNALERROR" not in finished.output
    assert "HOOK-FUTURE" in finished.output
