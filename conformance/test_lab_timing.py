"""In the laboratory: late and reordered completions, slow ranks, and tensors that are under way."""

from __future__ import annotations

from typing import Any

import pytest

from commhooks.conformance.expectations import each_call, expect_unchanged
from commhooks.conformance.findings import UNWAITED, WRITTEN
from commhooks.conformance.laboratory import (
    HELD,
    LATE,
    at_leisure,
    call_in_lab,
    gradients,
    with_late_completions,
    with_reversed_completions,
)
from commhooks.conformance.laboratory_expectations import (
    expect_as_at_leisure,
    expect_finite,
    expect_no_error,
    expect_nothing_found,
)
from commhooks.conformance.marks import clauses, dtypes, every_hook, stateful, worlds
from commhooks.conformance.world import Implementation, World


@every_hook
@stateful
@clauses("HOOK-LATE")
@dtypes("float32")
@worlds(2, 3)
@pytest.mark.parametrize("case", ["late completions", "slow rank"])
def test_late(lab: World, implementation: Implementation, hook: str, dtype: str, case: str) -> None:
    """With late completions, or a rank that comes late to each step, the results are the same bits as without."""
    slow: dict[str, Any] = {"slow_rank": lab.size - 1, "slow_at": 0, "slow_by": 2 * LATE}
    if case == "late completions":
        disturbed = with_late_completions(lab, hook, dtype)
    else:
        disturbed = call_in_lab(lab, hook, dtype, gradients(lab, dtype), slow)
    expect_finite(disturbed)
    if "random" not in implementation.description.claims:
        expect_as_at_leisure(disturbed, at_leisure(lab, hook, dtype), case)


@every_hook
@stateful
@clauses("HOOK-ANY-ORDER")
@dtypes("float32")
@worlds(2, 3)
@pytest.mark.parametrize("case", ["reversed completions on one rank", "random completions"])
def test_any_order(lab: World, implementation: Implementation, hook: str, dtype: str, case: str) -> None:
    """With three buckets under way the order of completions changes no bit of the results."""
    if case == "reversed completions on one rank":
        disturbed = with_reversed_completions(lab, hook, dtype)
    else:
        order = {"completion_order": "random", "seed": 1, "hold": HELD}
        disturbed = call_in_lab(lab, hook, dtype, gradients(lab, dtype, buckets=3), order)
    expect_finite(disturbed)
    if "random" not in implementation.description.claims:
        expect_as_at_leisure(disturbed, at_leisure(lab, hook, dtype, buckets=3), case)


@every_hook
@stateful
@clauses("HOOK-COMPLETE")
@dtypes("float32")
@worlds(2, 3)
def test_complete(lab: World, hook: str, dtype: str) -> None:
    """After late completions nobody writes to the result, or to the bucket, once the future is complete."""
    seen = with_late_completions(lab, hook, dtype)
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
    seen = with_late_completions(lab, hook, dtype)
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
    seen = with_late_completions(lab, hook, dtype)
    advice = "Keep the work that an asynchronous collective returns, and wait for it or chain to its future."
    expect_nothing_found(seen, "unwaited", advice, UNWAITED)
    expect_no_error(seen)
