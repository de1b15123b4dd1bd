"""The laboratory under torchrun, where each rank is forked from a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from suite import ROOT

from commhooks.conformance.report.document import read_report

HOOK = f"{Path(__file__).with_name('wrong_timing.py')}:in_the_order_of_a_set"


def test_two_processes(tmp_path: Path) -> None:
    """The reference's hooks pass; a hook shows an order that differs between processes, not between forks of one."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "pytest"]
    command += [str(ROOT / "conformance/test_lab_order.py"), str(ROOT / "conformance/test_lab_wire.py")]
    command += [f"--rootdir={ROOT}", "-p", "no:cacheprovider", "-q", f"--report={tmp_path}"]
    command += [
        "--impl=reference",
        f"--impl={HOOK}",
        "--world-size=2",
        "-k",
        "test_order or test_traffic or test_compress",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    reference, hook = read_report(tmp_path / "report.json").implementations
    assert {cell.state for cell in reference.cells} == {"pass"}
    assert {cell.configuration["backend"] for cell in reference.cells} == {"lab"}
    failures = [cell.failure for cell in hook.cells if cell.clause == "HOOK-ORDER" and cell.failure is not None]
    assert [failure.kind for failure in failures] == ["order"]
    assert "not the rank, a hash" in failures[0].message
