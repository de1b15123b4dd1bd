"""Under torchrun, process 0 runs the checks and the others lend their places."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from suite import ROOT

from commhooks.conformance.report.document import read_report
from commhooks.conformance.world.torchrun import Torchrun


def test_two_processes(tmp_path: Path) -> None:
    """Worlds of one and two ranks are run by both processes, and one of three is not, for want of a third."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "pytest"]
    command += [str(ROOT / "conformance"), f"--rootdir={ROOT}", "--impl=torch", "--world-size=1,2,3", "-q"]
    command += ["-p", "no:cacheprovider", "-k", "test_noop or (test_allreduce and test_group)", f"--report={tmp_path}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    cells = read_report(tmp_path / "report.json").implementations[0].cells
    states = {cell.configuration["world_size"]: set() for cell in cells}
    for cell in cells:
        states[cell.configuration["world_size"]].add((cell.state, cell.reason))
    assert states == {
        "1": {("pass", "")},
        "2": {("pass", "")},
        "3": {("not run", "needs 3 ranks, torchrun started 2")},
    }
    assert done.stdout.count("cells in") == 1


def test_environment() -> None:
    """Only torchrun's own variables count; a RANK that somebody else has set does not."""
    ours = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    assert Torchrun.from_environment(ours) is None
    found = Torchrun.from_environment({**ours, "TORCHELASTIC_RUN_ID": "none"})
    assert found == Torchrun(rank=1, size=4, local_size=2, host="here", port=29500)
    assert found.store == "tcp://here:29500"
