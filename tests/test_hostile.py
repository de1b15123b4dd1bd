"""Whatever a hook does to its rank, the run ends, names the culprit, and goes on with the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suite import Finished, run_suite

HOOKS = Path(__file__).with_name("hostile_hooks.py")
WORLD_SIZE = 2

# For each hook the kinds of failure that it may show, and what the message has to say.
EXPECTED = {
    "hangs_in_python": ({"hangs"}, ["rank 0 did not finish", "hangs_in_python (", "started no collective"]),
    "hangs_on_one_rank": ({"hangs"}, ["rank 1 did not finish", "all_reduce float32[12]"]),
    "skips_the_collective_on_one_rank": ({"hangs", "disagreement"}, []),
    "never_completes": ({"hangs"}, ["rank 0 did not finish", "wait (", "rank 1 did not finish"]),
    "dies_by_signal": ({"dies of SIGSEGV"}, ["rank 0 dies of SIGSEGV"]),
    "dies_on_one_rank": ({"dies of SIGKILL"}, ["rank 1 dies of SIGKILL", "rank 0 "]),
    "leaves": ({"exits with 3"}, ["exits with 3"]),
    "exits_at_once": ({"exits with 5"}, ["exits with 5"]),
    "raises": ({"raises LookupError"}, ["raised LookupError", "no gradients today"]),
    "raises_on_one_rank": ({"raises LookupError"}, ["rank 1 raised LookupError", "rank 1 has had enough", "rank 0 "]),
    "raises_in_a_callback": ({"raises RuntimeError", "raises LookupError"}, ["too late"]),
    "prints_without_end": ({"hangs"}, ["did not finish"]),
    "returns_none": ({"no future"}, ["returned a NoneType instead of a future"]),
    "returns_text": ({"no future"}, ["returned a str instead of a future"]),
    "returns_a_list_in_a_future": ({"no tensor"}, ["is a list instead of a tensor"]),
    "allocates_without_end": ({"raises MemoryError"}, ["MemoryError"]),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run over all of them, the right hook last, with the checks of two clauses."""
    names = [*EXPECTED, "right"]
    texts = [f"{HOOKS}:{name}" for name in names]
    wanted = {text: ["HOOK-FUTURE"] for text in texts}
    return run_suite(
        *(f"--impl={text}" for text in texts),
        f"--world-size={WORLD_SIZE}",
        "--rank-timeout=2",
        "--rank-memory=5",
        "-k float32",
        "-p",
        "only_clauses",
        folder=tmp_path_factory.mktemp("hostile"),
        environment={"PYTHONPATH": str(HOOKS.parent), "COMMHOOKS_CLAUSES": json.dumps(wanted)},
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_culprit_is_named(name: str, finished: Finished) -> None:
    """The failed cell says what happened, on which rank and where."""
    kinds, words = EXPECTED[name]
    cells = finished.implementation(f"{HOOKS}:{name}").cells
    assert [cell.state for cell in cells] == ["fail"], cells
    failure = cells[0].failure
    assert failure.kind in kinds
    for word in words:
        assert word in failure.message


def test_the_run_goes_on(finished: Finished) -> None:
    """The right hook, which comes last, passes, and the run fails because of the others."""
    cells = finished.implementation(f"{HOOKS}:right").cells
    assert [cell.state for cell in cells] == ["pass"]
    assert finished.status == 1


def test_stack_is_shown(finished: Finished) -> None:
    """A rank that hangs leaves its Python stack, with the line of the hook in it."""
    failure = finished.implementation(f"{HOOKS}:hangs_in_python").cells[0].failure
    assert "hostile_hooks.py" in failure.details


def test_output_is_kept_from_the_end(finished: Finished) -> None:
    """A rank that prints without end is cut to the end of what it printed."""
    failure = finished.implementation(f"{HOOKS}:prints_without_end").cells[0].failure
    assert "still here" in failure.details
    assert len(failure.details) < 100_000
