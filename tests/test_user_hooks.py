"""Hooks as people write them: the right ones pass, and the wrong ones fail where they should, with advice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from suite import Finished, run_suite

from commhooks.conformance.clauses import all_clauses

HOOKS = Path(__file__).with_name("user_hooks.py")

RIGHT = [
    "encode_and_decode",
    "averages",
    "sums",
    "synchronous",
    "gathers",
    "scatters_and_gathers",
    "by_way_of_the_first_rank",
    "keeps_what_it_lost",
    "dithers",
    "gossips",
    "does_more_than_it_claims",
    "is_for_wide_types",
]
# Inside data-parallel training hooks are looked at elsewhere.
RIGHT_CLAUSES = [
    name
    for name in all_clauses()
    if name.startswith("HOOK-") and name not in ("HOOK-IN-DDP", "HOOK-TRAINS", "HOOK-KINDS", "HOOK-REPEAT")
]

# For each wrong hook a clause that it does not keep, the kind of failure, and words that help.
WRONG = {
    "does_not_wait": ("HOOK-LATE", "unfinished", "read before the collective that writes it was complete"),
    "uses_the_tensor_at_once": ("HOOK-LATE", "unfinished", "Wait for the work or its future"),
    "divides_too_early": ("HOOK-HANDS-OFF", "written", "must be left alone until its work or its future is complete"),
    "closes_over_a_loop_variable": ("HOOK-MEAN", "value", "elements are wrong"),
    "future_of_a_future": ("HOOK-FUTURE", "no tensor", "instead of a tensor"),
    "waits_inside": ("HOOK-NO-BLOCKING", "blocks", "waits for a future at user_hooks.py:"),
    "sends_the_norm_inside": ("HOOK-NO-BLOCKING", "blocks", "Wait in the hook itself"),
    "forgets_the_group": ("HOOK-GROUP", "group", "Give each collective group="),
    "rounds_what_it_is_not_for": ("HOOK-DENIED", "value", "says that it does not offer float32. Refuse"),
    "refuses_on_one_rank": ("HOOK-DENIED", "one-sided", "a rank refused, and another waits for it"),
    "replaces_nan": ("HOOK-HIDES-NOTHING", "hidden", "must not be replaced on the way"),
    "skips_zeros": ("HOOK-ORDER", "order", "(nothing)"),
    "largest_part_first": ("HOOK-ORDER", "order", "or the gradients' values"),
    "makes_a_group_each_time": ("HOOK-NO-NEW-GROUP", "new group", "Make groups once"),
    "does_not_look": ("HOOK-FAILS", "swallowed", "Look at the value of the collective's future"),
    "waits_for_the_last_only": ("HOOK-ANY-ORDER", "unfinished", "was complete"),
    "polls": ("HOOK-IDLE", "busy", "asking again and again"),
    "adds_instead": ("HOOK-MEAN", "value", "elements are wrong"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run over all of them: the right ones with the clauses of every hook, the wrong ones with their own."""
    wanted = {f"{HOOKS}:{name}": RIGHT_CLAUSES for name in RIGHT}
    wanted |= {f"{HOOKS}:{name}": [clause] for name, (clause, _, _) in WRONG.items()}
    return run_suite(
        *(f"--impl={text}" for text in wanted),
        "--world-size=2",
        "--rank-timeout=4",
        "-k",
        "float32 and not drawn",
        "-p",
        "only_clauses",
        folder=tmp_path_factory.mktemp("user_hooks"),
        environment={"PYTHONPATH": str(HOOKS.parent), "COMMHOOKS_CLAUSES": json.dumps(wanted)},
    )


@pytest.mark.parametrize("name", RIGHT)
def test_right_hook_passes(name: str, finished: Finished) -> None:
    """Nothing is held against it, and only what it claims is asked of it."""
    cells = finished.implementation(f"{HOOKS}:{name}").cells
    assert {cell.state for cell in cells} <= {"pass", "unsupported"}, [
        (cell.clause, cell.failure.message) for cell in cells if cell.state == "fail"
    ]
    passed = {cell.clause for cell in cells if cell.state == "pass"}
    if name == "is_for_wide_types":
        assert [cell.reason for cell in cells if cell.clause == "HOOK-DENIED"] == ["refused: raises TypeError"]
        return
    assert {"HOOK-LATE", "HOOK-ANY-ORDER", "HOOK-ORDER", "HOOK-NO-BLOCKING", "HOOK-FAILS", "HOOK-TRAFFIC"} <= passed


@pytest.mark.parametrize("name", WRONG)
def test_wrong_hook_fails(name: str, finished: Finished) -> None:
    """The clause fails for the reason that it should, and the message says what to do."""
    clause, kind, words = WRONG[name]
    cells = finished.implementation(f"{HOOKS}:{name}").cells
    failures = [cell.failure for cell in cells if cell.clause == clause and cell.state == "fail"]
    assert kind in {failure.kind for failure in failures}, failures
    assert any(words in failure.message for failure in failures if failure.kind == kind), failures


def test_script_shows_the_failure_again(finished: Finished) -> None:
    """The script of a failure in the laboratory fails too: it needs commhooks, but not the suite."""
    cells = finished.implementation(f"{HOOKS}:largest_part_first").cells
    script = next(cell.failure.script for cell in cells if cell.state == "fail")
    done = subprocess.run([sys.executable, finished.folder / script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the failure shows" in done.stdout


def test_claims_decide_what_is_checked(finished: Finished) -> None:
    """A mean is asked only of who claims it, and so are a sum, agreement and the group."""
    clauses = {name: {cell.clause for cell in finished.implementation(f"{HOOKS}:{name}").cells} for name in RIGHT}
    assert {name for name in RIGHT if "HOOK-SUM" in clauses[name]} == {"sums"}
    assert {name for name in RIGHT if "HOOK-AGREE" not in clauses[name]} == {
        "gossips",
        "does_more_than_it_claims",
    }
    averaging = {
        "averages",
        "is_for_wide_types",
        "synchronous",
        "gathers",
        "scatters_and_gathers",
        "by_way_of_the_first_rank",
    }
    assert {name for name in RIGHT if "HOOK-MEAN" in clauses[name]} == averaging


def test_what_is_not_claimed_is_reported(finished: Finished) -> None:
    """Who averages, adds or keeps to a group without a claim learns it, and who claims a leave and does not take it."""

    def noted(name: str) -> set[str]:
        cells = finished.implementation(f"{HOOKS}:{name}").cells
        return {cell.reason.partition(":")[0] for cell in cells if cell.clause == "HOOK-CLAIMS" and cell.reason}

    assert noted("averages") == noted("sums") == set()
    unchecked = 'it claims no "mean", no "sum" and no commhooks_error, so the values of its results were not checked'
    assert noted("dithers") == noted("gossips") == noted("keeps_what_it_lost") == {unchecked}
    assert noted("does_more_than_it_claims") == {
        unchecked,
        "it gives the mean of 2 ranks",
        'it claims "local", and all ranks have the same bits',
        'it claims "random", and gave the same bits twice',
        "it keeps to its process group",
    }
