"""In the laboratory: late and reordered completions, slow ranks, and tensors that are under way."""

from __future__ import annotations

from typing import Any

import pytest

from commhooks.conformance import laboratory
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import each_call, expect_unchanged
from commhooks.conformance.findings import UNWAITED, WRITTEN
from commhooks.conformance.laboratory import (
    call_in_lab,
    expect_as_at_leisure,
    expect_finite,
    expect_no_error,
    expect_nothing_found,
)
from commhooks.conformance.marks import clauses, dtypes, every_hook, stateful, worlds
from commhooks.conformance.world import Implementation, World

# Seconds: long beside what a hook computes, short beside the time limit.
LATE = 0.01
# Seconds in which a rank that computes is told from one that waits.
SLOW = 0.15
# Completions to be reordered are held back until a rank waits, and no longer than this.
HELD = 0.25


@every_hook
@stateful
@clauses("HOOK-LATE")
@dtypes("float32")
@worlds(2, 3)
@pytest.mark.parametrize("case", ["late completions", "slow rank"])
def test_late(lab: World, implementation: Implementation, hook: str, dtype: str, case: str) -> None:
    """With late completions, or a rank that comes late to each step, the results are the same bits as without."""
    steps = laboratory.gradients(lab, hook, dtype)
    slow = {"slow_rank": lab.size - 1, "slow_at": 0, "slow_by": 2 * LATE}
    disturbed = call_in_lab(lab, hook, dtype, steps, {"delay": LATE} if case == "late completions" else slow)
    expect_finite(disturbed)
    if "random" not in implementation.description.claims:
        expect_as_at_leisure(disturbed, call_in_lab(lab, hook, dtype, steps), case)


@every_hook
@clauses("HOOK-ANY-ORDER")
@dtypes("float32")
@worlds(2, 3)
@pytest.mark.parametrize("case", ["reversed completions on one rank", "random completions"])
def test_any_order(lab: World, implementation: Implementation, hook: str, dtype: str, case: str) -> None:
    """With three buckets under way the order of completions changes no bit of the results."""
    steps = laboratory.gradients(lab, hook, dtype, buckets=3)
    orders: list[dict[str, Any]] = [{"completion_order": "random", "seed": 1, "hold": HELD} for _ in range(lab.size)]
    if case == "reversed completions on one rank":
        orders = [{}] * (lab.size - 1) + [{"completion_order": "reversed", "hold": HELD}]
    disturbed = call_in_lab(lab, hook, dtype, steps, each=orders)
    expect_finite(disturbed)
    if "random" not in implementation.description.claims:
        expect_as_at_leisure(disturbed, call_in_lab(lab, hook, dtype, steps), case)


@every_hook
@clauses("HOOK-COMPLETE")
@dtypes("float32")
@worlds(2, 3)
def test_complete(lab: World, hook: str, dtype: str) -> None:
    """After late completions nobody writes to the result, or to the bucket, once the future is complete."""
    seen = call_in_lab(lab, hook, dtype, laboratory.gradients(lab, hook, dtype), {"delay": LATE}, linger=2 * LATE)
    expect_no_error(seen)
    for call in each_call(seen):
        expect_unchanged(call, call.values, "later", "after the future was complete")
        expect_unchanged(call, call.record["buffer_then"], "buffer", "in the bucket, after the future was complete")


@every_hook
@stateful
@clauses("HOOK-HANDS-OFF")
@dtypes("float32")
@worlds(2, 3)
def test_hands_off(lab: World, hook: str, dtype: str) -> None:
    """Nobody writes to a tensor that a collective is about to read or write."""
    seen = call_in_lab(lab, hook, dtype, laboratory.gradients(lab, hook, dtype), {"delay": LATE})
    advice = "What a collective was given must be left alone until its work or its future is complete."
    expect_nothing_found(seen, "written", advice, WRITTEN)
    expect_no_error(seen)


@every_hook
@stateful
@clauses("HOOK-WAITED")
@dtypes("float32")
@worlds(2, 3)
def test_waited(lab: World, hook: str, dtype: str) -> None:
    """No collective is forgotten."""
    seen = call_in_lab(lab, hook, dtype, laboratory.gradients(lab, hook, dtype), {"delay": LATE})
    advice = "Keep the work that an asynchronous collective returns, and wait for it or chain to its future."
    expect_nothing_found(seen, "unwaited", advice, UNWAITED)
    expect_no_error(seen)


@every_hook
@clauses("HOOK-IDLE")
@dtypes("float32")
@worlds(2, 2)
def test_idle(lab: World, hook: str, dtype: str) -> None:
    """The rank that waits for a slow one computes for less than half of that time."""
    steps = laboratory.gradients(lab, hook, dtype, steps=1)
    seen = call_in_lab(lab, hook, dtype, steps, {"slow_rank": 1, "slow_at": 0, "slow_by": SLOW})
    expect_no_error(seen)
    busy = float(seen.results[0]["busy"])
    if busy > SLOW / 2:
        raise ClauseFailure(
            "busy",
            f"rank 0 computed for {busy:.3f} s while it waited {SLOW} s for rank 1. Wait for the work or its future in "
            "place of asking again and again whether it is complete.",
            expected="a rank that sleeps",
            found=f"{busy:.3f} s of computing",
            place=seen.place(0, "busy"),
            holds=f"found <= {SLOW / 2}",
        )
