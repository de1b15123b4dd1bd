"""Runs the suite as a user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commhooks.conformance.cells import ImplementationResult
from commhooks.conformance.report.document import Report, read_report

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Finished:
    """A run of the suite that has ended.

    Attributes:
        status: Exit status.
        output: All that it printed.
        folder: Folder of its report.
    """

    status: int
    output: str
    folder: Path

    @property
    def report(self) -> Report:
        """The report, checked against the schema."""
        return read_report(self.folder / "report.json")

    def implementation(self, name: str) -> ImplementationResult:
        """What the report says about one implementation."""
        return next(one for one in self.report.implementations if one.name == name)


def run_suite(
    *arguments: str,
    folder: Path,
    checks: str = "",
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    timeout: float = 580,
) -> Finished:
    """Runs ``pytest conformance`` with arguments, or some of its ``checks``; the report goes to a folder."""
    command: Sequence[str] = [
        sys.executable,
        "-m",
        "pytest",
        str(ROOT / "conformance" / checks),
        f"--rootdir={ROOT}",
        "-p",
        "no:cacheprovider",
        f"--report={folder}",
        *arguments,
    ]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=timeout
    )
    return Finished(done.returncode, done.stdout + done.stderr, folder)
