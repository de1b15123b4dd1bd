"""Checks that are run by several processes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from suite import Finished, run_suite

from commhooks.conformance.report.document import to_plain

# Files with passes, deviations, what is unsupported, and checks that look at the run of one program.
FILES = "test_noop.py or test_bucket.py or test_wrappers.py or test_ddp_registration.py"
PART = ("-k", FILES, "--world-size=1,2", "-q")


def _without_times(finished: Finished) -> dict[str, Any]:
    """A report without what differs from run to run."""
    return to_plain(finished.report, times=False)


def test_workers_find_the_same(tmp_path: Path) -> None:
    """Two workers make the report that one process makes, cell for cell and in the same order, and the same scripts."""
    alone = run_suite("--impl=torch", *PART, folder=tmp_path / "alone")
    both = run_suite("--impl=torch", *PART, "-n2", folder=tmp_path / "both")
    assert alone.status == both.status == 0, both.output[-3000:]
    assert _without_times(alone) == _without_times(both)
    scripts = [sorted(path.name for path in (run.folder / "repro").iterdir()) for run in (alone, both)]
    assert scripts[0] == scripts[1]
    assert len(scripts[0]) > 10


def test_workers_report_failures(tmp_path: Path) -> None:
    """A failure that a worker finds decides over the exit status, and the summary names its clause."""
    hook = tmp_path / "hooks.py"
    hook.write_text("def hook(state, bucket):\n    return bucket.buffer()\n", encoding="utf-8")
    run = run_suite(f"--impl={hook}:hook", "-k", "test_every_hook", "--world-size=1", "-n2", folder=tmp_path / "report")
    assert run.status == 1
    assert "HOOK-FUTURE" in run.output
    cells = run.implementation(f"{hook}:hook").cells
    assert any(cell.clause == "HOOK-FUTURE" and cell.state == "fail" for cell in cells)


@pytest.fixture
def partial_module(tmp_path: Path) -> list[str]:
    """Options that check a module with little in it against a record that matches no cell."""
    module = tmp_path / "silent.py"
    module.write_text("from commhooks.reference import noop_hook\n", encoding="utf-8")
    record = tmp_path / "deviations.toml"
    record.write_text(
        f'implementation = "{module}"\n\n[[deviation]]\nclause = "NOOP-BUFFER"\nwhere = {{ dtype = ["int8"] }}\n'
        'how = "value"\nreason = "It is not so."\n',
        encoding="utf-8",
    )
    return [f"--impl={module}", f"--deviations={record}", "-n2"]


def test_stale_record_is_found(tmp_path: Path, partial_module: list[str]) -> None:
    """The controlling process alone knows all cells, and says which record matches none."""
    run = run_suite(*partial_module, folder=tmp_path / "report")
    assert run.status == 1
    assert "NOOP-BUFFER (dtype int8) matches no cell" in run.output


def test_part_of_a_run_calls_no_record_stale(tmp_path: Path, partial_module: list[str]) -> None:
    """A run of some of the checks, whichever way they are chosen, cannot tell which record matches no cell."""
    chosen = run_suite(*partial_module, "-knoop", folder=tmp_path / "chosen")
    file = run_suite(*partial_module, folder=tmp_path / "file", checks="test_noop.py")
    one = run_suite(*partial_module, folder=tmp_path / "one", checks="test_noop.py::test_buffer")
    assert chosen.status == file.status == one.status == 0, chosen.output + file.output + one.output


def test_not_under_torchrun(tmp_path: Path) -> None:
    """The ranks of torchrun serve one process, and more of them are refused before anything starts."""
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    torchrun |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    run = run_suite("--impl=torch", "-n2", folder=tmp_path / "report", environment=torchrun)
    assert run.status == 4
    assert "-n cannot be used under torchrun" in run.output
