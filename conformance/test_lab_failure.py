"""In the laboratory: a collective that fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_same
from commhooks.conformance.laboratory import PATIENCE, at_leisure, call_in_lab, gradients
from commhooks.conformance.marks import clauses, dtypes, every_hook, needs, stateful, worlds
from commhooks.conformance.programs.lab import fail_in_backward
from commhooks.conformance.world import World


@every_hook
@stateful
@clauses("HOOK-FAILS")
@dtypes("float32")
@worlds(2, 3)
@pytest.mark.parametrize("case", ["first collective", "last collective"])
def test_fails(lab: World, hook: str, dtype: str, case: str) -> None:
    """A collective that fails on all ranks gives an error on all ranks, soon, or the right result in another way."""
    undisturbed = at_leisure(lab, hook, dtype)
    last = max(len(undisturbed.log(0)) - 1, 0)
    seen = call_in_lab(lab, hook, dtype, gradients(lab, dtype), {"fail_at": last if case.startswith("last") else 0})
    silent = [rank for rank, result in enumerate(seen.results) if result["failed"] and not result["error"]]
    late = [rank for rank, result in enumerate(seen.results) if result["error"] == "TimeoutError"]
    for rank in late:
        raise ClauseFailure(
            "hangs",
            f"rank {rank}: a collective failed, and {seen.results[rank]['text']}",
            expected="an error",
            found="nothing, for ever",
            place=seen.place(rank, "error"),
            holds="found not in ('', 'TimeoutError')",
        )
    if silent:
        try:
            expect_same(seen, undisturbed, "a run in which nothing fails")
        except ClauseFailure as wrong:
            raise ClauseFailure(
                "swallowed",
                f"rank {silent[0]}: a collective failed, and the hook gave a result without an error, a wrong one "
                f"({wrong.message}). Look at the value of the collective's future in the callback, which raises "
                "then, and let the error go on.",
                expected="an error",
                found="a wrong result",
                place=seen.place(silent[0], "error"),
                holds="found != ''",
            ) from None


@every_hook
@clauses("HOOK-FAILS")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_fails_in_training(lab: World, hook: str, note: Callable[[str], None]) -> None:
    """backward() raises on every rank when the hook's collective fails there."""
    for rank, result in enumerate(lab.run(fail_in_backward, hook=hook, patience=PATIENCE * lab.patience)):
        if result["refused"] and rank == 0:
            note(f"the hook cannot be registered: {result['refused']}")
        if result["failed"] and not result["error"] and result["wrong"]:
            raise ClauseFailure(
                "swallowed",
                f"rank {rank}: a collective of the hook failed, and backward() gave NaN without an error",
                expected="an error of backward()",
                found="no error",
                place=f'results[0][{rank}]["error"]',
                holds="found != ''",
            )
