"""Checks implementations and stores their reports, without times, for the documentation.

python docs/_ext/refresh_reports.py                          all that have a report in docs/reports
python docs/_ext/refresh_reports.py vendor.ddp_comm_hooks    these, given as to --impl
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from commhooks.conformance.report.document import read_report, write_report

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "docs" / "reports"


def stored_implementations(reports: Path) -> list[str]:
    """What to give to --impl for each stored report, also for one in a form that cannot be read any more."""
    return [
        json.loads(path.read_text("utf-8"))["implementations"][0]["name"] for path in sorted(reports.glob("*.json"))
    ]


def refresh(implementation: str, reports: Path) -> Path:
    """Runs the suite on one implementation and stores the report.

    Returns:
        The stored report.

    Raises:
        SystemExit: The run found something that is not recorded as a deviation, or could not start. The stored report
            stays as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "conformance", f"--impl={implementation}", f"--report={folder}"]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status != 0:
            raise SystemExit(f"{implementation}: the run ended with {status}; its stored report stays as it is")
        name = re.sub(r"[^\w.-]+", "-", implementation).strip("-.")
        stored = reports / f"{name}.json"
        write_report(read_report(Path(folder) / "report.json"), stored, times=False)
    return stored


if __name__ == "__main__":
    for name in sys.argv[1:] or stored_implementations(REPORTS):
        print("stored", refresh(name, REPORTS))
