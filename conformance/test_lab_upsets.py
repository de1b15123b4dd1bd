"""In the laboratory: buckets that are laid out anew, numbers that are not finite, a state that was saved."""

from __future__ import annotations

import numpy as np

from commhooks.conformance import averages, inputs
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import advising, expect_length, expect_same, keeps
from commhooks.conformance.laboratory import STEPS, at_leisure, call_in_lab, gradients
from commhooks.conformance.laboratory_expectations import expect_finite, expect_same_collectives
from commhooks.conformance.marks import claims, clauses, dtypes, every_hook, stateful, worlds
from commhooks.conformance.world import Implementation, World

# The shapes of the parameters of each bucket: all in one in the first step, in two from the second on.
LAID_OUT = [[[[16, 9], [8, 12], [5]]], *[[[[8, 12], [5]], [[16, 9]]]] * (STEPS - 1)]
ANEW = (
    "After the first step the buckets were laid out anew, as DistributedDataParallel does: what a hook keeps for a "
    "bucket's index has to be dropped or made anew when the bucket has another length or other shapes."
)


@every_hook
@stateful
@clauses("HOOK-REBUILT")
@dtypes("float32")
@worlds(2, 2)
def test_rebuilt(lab: World, implementation: Implementation, hook: str, dtype: str) -> None:
    """A hook goes on when the one bucket of the first step becomes two of other lengths."""
    steps = [
        [inputs.spread(lab.size, inputs.numel(bucket), dtype, seed=step, reach=4) for bucket in buckets]
        for step, buckets in enumerate(LAID_OUT)
    ]
    with advising(ANEW):
        seen = call_in_lab(lab, hook, dtype, steps, shapes=LAID_OUT, one_by_one=True)
        expect_finite(seen)
        # What is no longer as claimed after the first step; a hook that never keeps a claim breaks another clause.
        claimed = implementation.description.claims & {"mean", "sum"}
        expect_values = averages.expect_sum if "sum" in claimed else averages.expect_mean
        kept = bool(claimed) and keeps(expect_values, seen.first, steps[0][0], dtype)
        for calls, expected in zip(seen.calls, [bucket for buckets in steps for bucket in buckets], strict=True):
            for call in calls:
                expect_length(call, expected.shape[1])
            if kept:
                expect_values(calls, expected, dtype)


@every_hook
@stateful
@clauses("HOOK-NONFINITE")
@dtypes("float32")
@worlds(2, 3)
def test_nonfinite(lab: World, implementation: Implementation, hook: str, dtype: str) -> None:
    """With NaN and infinities on one rank, all ranks start the same collectives and see them at the same places."""
    steps = [[bucket.copy() for bucket in buckets] for buckets in gradients(lab, dtype)]
    steps[-1][0][0, 3:5] = np.nan, np.inf
    seen = call_in_lab(lab, hook, dtype, steps)
    with advising("The gradients of rank 0 hold a NaN and an infinity in the last step, those of the others do not."):
        expect_same_collectives(seen)
    errors = [rank for rank, result in enumerate(seen.results) if result["error"]]
    if errors and len(errors) < lab.size:
        raise ClauseFailure(
            "one-sided",
            f"rank {errors[0]} raised {seen.results[errors[0]]['error']}, and others did not, when the gradients of "
            "rank 0 held a NaN and an infinity. Let all ranks decide alike: by something that they all have, such as "
            "the result of an allreduce.",
            expected="an error on all ranks, or on none",
            found=f"an error on the ranks {errors}",
            place=f"[result['error'] for result in results[{seen.program}]]",
            holds="all(found) or not any(found)",
        )
    if errors or "local" in implementation.description.claims or hook == "noop_hook":
        return
    for calls in seen.calls:
        for call in calls:
            call.require_tensor()
        first = ~np.isfinite(calls[0].values)
        for call in calls[1:]:
            other = ~np.isfinite(call.values)
            if not np.array_equal(first, other):
                element = int(np.argmax(first != other))
                raise ClauseFailure(
                    "disagreement",
                    f"element {element} is {calls[0].values[element]!r} on rank 0 and {call.values[element]!r} on rank "
                    f"{call.rank}, when the gradients of rank 0 held a NaN and an infinity: one rank would skip its "
                    "step, or lower its loss scale, and the others would not.",
                    expected="NaN and infinities at the same places on all ranks",
                    found="others on one rank",
                    place=f"np.isfinite({call.place}['values']) != np.isfinite({calls[0].place}['values'])",
                    holds="not found.any()",
                )


@every_hook
@claims("pickle")
@clauses("HOOK-RESUMES")
@dtypes("float32")
@worlds(2, 2)
def test_resumes(lab: World, hook: str, dtype: str) -> None:
    """With a pickled copy of the state in the last step, its result has the same bits as with the state itself."""
    advice = "Pickling has to keep all that decides over later steps: residuals, counters, generators."
    with advising(f"The state was pickled before the last step, and the copy used. {advice}"):
        seen = call_in_lab(lab, hook, dtype, gradients(lab, dtype), resumed_at=STEPS - 1)
        expect_finite(seen)
        expect_same(seen, at_leisure(lab, hook, dtype), "an unbroken run")
