"""The suite's checks in the laboratory: where they cannot be run they say so."""

from __future__ import annotations

from pathlib import Path

from suite import run_suite

ADAPTER = """
import commhooks.reference
from commhooks.adapters.standard_module import StandardModule


class Elsewhere(StandardModule):
    def __init__(self):
        super().__init__(commhooks.reference, "elsewhere", "1.0")

    def laboratory_obstacle(self, device):
        return "the laboratory is closed today"
"""


def test_an_obstacle_is_told(tmp_path: Path) -> None:
    """Where ranks cannot meet in the laboratory, its cells are not run, with the reason, and nothing has failed."""
    path = tmp_path / "elsewhere.py"
    path.write_text(ADAPTER)
    finished = run_suite(
        f"--impl={path}:Elsewhere", "--world-size=2", "-k", "test_lab_wire and test_noop", folder=tmp_path / "report"
    )
    assert finished.status == 0, finished.output
    (cell,) = finished.implementation("elsewhere")["cells"]
    assert (cell["state"], cell["reason"]) == ("not run", "the laboratory is closed today")
    assert cell["configuration"]["backend"] == "lab"
