"""The suite's checks in the laboratory: where they cannot be run they say so."""

from __future__ import annotations

import random
import re
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
    (cell,) = finished.implementation("elsewhere").cells
    assert (cell.state, cell.reason) == ("not run", "the laboratory is closed today")
    assert cell.configuration["backend"] == "lab"


def test_a_search_draws_the_disturbances(tmp_path: Path) -> None:
    """--search draws the options of the laboratory; a failure names its seed, which --hypothesis-seed decides."""
    hook = f"{Path(__file__).with_name('user_hooks.py')}:waits_for_the_last_only"
    finished = run_suite(
        f"--impl={hook}",
        "--world-size=2",
        "--search=12",
        "--hypothesis-seed=3",
        checks="test_lab_search.py",
        folder=tmp_path,
    )
    failures = [cell.failure for cell in finished.implementation(hook).cells if cell.failure is not None]
    assert {failure.kind for failure in failures} == {"unfinished"}, finished.output
    draw = random.Random("3")
    seeds = {str(draw.randrange(2**32)) for _ in range(12)}
    assert {re.findall(r"drawn with the seed (\d+)", failure.message)[0] for failure in failures} <= seeds
    assert "replay with --search=12 --hypothesis-seed=3" in finished.output
