"""What is not offered, and what a hook does beyond its claims."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from commhooks.adapters import Description
from commhooks.conformance import averages, inputs, training
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import (
    advising,
    expect_agreement,
    expect_equal,
    expect_length,
    expect_same,
    keeps,
)
from commhooks.conformance.expected import FloatArray
from commhooks.conformance.laboratory import STEPS, Seen, at_leisure, call_in_lab, gradients
from commhooks.conformance.laboratory_expectations import expect_collectives_among, expect_no_error
from commhooks.conformance.marks import HALVES, clauses, denied, dtypes, every_hook, one_hook, stateful, worlds
from commhooks.conformance.observations import Call, call_hook
from commhooks.conformance.world import Implementation, RankFailure, World

REACH = 4
LENGTH = 33
# Seconds for a collective of ranks that are all there.
IMPATIENT = 0.5
REFUSE = (
    "The implementation says that it does not offer {}. Refuse what is not offered with an error, before anything is "
    "sent: somebody who uses it all the same trains with wrong numbers, or waits for ever."
)


@every_hook
@stateful
@denied("dtype")
@clauses("HOOK-DENIED")
@worlds(1, 2)
def test_denied_dtype(
    world: World, implementation: Implementation, hook: str, dtype: str, note: Callable[[str], None]
) -> None:
    """A bucket of a dtype that is not offered is refused, or handled rightly."""
    given = inputs.spread(world.size, LENGTH, dtype, reach=REACH)
    with _or_refused_by_all(note), advising(REFUSE.format(dtype)):
        calls = call_hook(world, hook, dtype, given).first
        for call in calls:
            expect_length(call, LENGTH)
            expect_equal(call.rank, "the result's dtype", call.dtype, dtype, f'{call.place}["dtype"]', "dtype")
        _expect_right(calls, implementation.description, hook, given, dtype)
        note("not refused, and right")


@denied("subgroups")
@clauses("HOOK-DENIED")
@dtypes("float32")
@worlds(2, 3)
def test_denied_group(
    world: World, implementation: Implementation, hook: str, dtype: str, note: Callable[[str], None]
) -> None:
    """A process group of some of the ranks is refused as state, or the hook keeps to it."""
    members = list(range(1, world.size))
    given = inputs.spread(world.size, LENGTH, dtype, reach=REACH)
    absent = [{"absent": rank not in members} for rank in range(world.size)]
    with _or_refused_by_all(note), advising(REFUSE.format("process groups of some of the ranks")):
        outcome = call_hook(world, hook, dtype, given, each=absent, group=members)
        calls = [outcome.first[rank] for rank in members]
        _expect_right(calls, implementation.description, hook, given, dtype)
        note("not refused, and right")


@every_hook
@one_hook
@clauses("HOOK-CLAIMS")
@dtypes("float32")
@worlds(2, 3)
@pytest.mark.parametrize("claim", ["values", "mean", "sum", "local", "random", "subgroups", "pickle"])
def test_beyond_its_claims(
    lab: World, implementation: Implementation, hook: str, dtype: str, note: Callable[[str], None], claim: str
) -> None:
    """Reports what a hook does without a claim, and which leave that it claims it does not take."""
    claims = implementation.description.claims
    seen = at_leisure(lab, hook, dtype)
    expect_no_error(seen)
    given, values_claimed = gradients(lab, dtype)[0][0], claims & {"mean", "sum", "lossy"}
    if claim == "values" and not values_claimed:
        note('it claims no "mean", no "sum" and no commhooks_error, so the values of its results were not checked')
    if claim == "mean" and not values_claimed and keeps(averages.expect_mean, seen.first, given, dtype):
        note(f'it gives the mean of {lab.size} ranks: claim "mean" if it always does')
    if claim == "sum" and not values_claimed and keeps(averages.expect_sum, seen.first, given, dtype):
        note(f'it gives the sum over {lab.size} ranks: claim "sum" if it always does')
    if claim == "local" and claim in claims and all(keeps(expect_agreement, calls) for calls in seen.calls):
        note('it claims "local", and all ranks have the same bits')
    if claim == "random" and claim in claims and keeps(_expect_repeats, lab, hook, dtype, seen):
        note('it claims "random", and gave the same bits twice')
    if claim == "subgroups" and claim not in claims and keeps(_expect_own_group, lab, hook, dtype):
        note('it keeps to its process group: claim "subgroups" to have that checked')
    if claim == "pickle" and claim not in claims and keeps(_expect_resumes, lab, hook, dtype, seen):
        note('it goes on with a pickled state: claim "pickle" to have that checked')


def _expect_repeats(lab: World, hook: str, dtype: str, seen: Seen) -> None:
    expect_same(call_in_lab(lab, hook, dtype, gradients(lab, dtype)), seen, "the first time")


def _expect_own_group(lab: World, hook: str, dtype: str) -> None:
    members = list(range(1, lab.size))
    # A hook that uses the default group waits for the rank that is absent.
    options = {"patience": IMPATIENT}
    alone = call_in_lab(lab, hook, dtype, gradients(lab, dtype), options, group=members, absent=(0,))
    expect_no_error(alone)
    expect_collectives_among(alone, members)


def _expect_resumes(lab: World, hook: str, dtype: str, seen: Seen) -> None:
    resumed = call_in_lab(lab, hook, dtype, gradients(lab, dtype), resumed_at=STEPS - 1)
    expect_no_error(resumed)
    expect_same(resumed, seen, "an unbroken run")


@contextlib.contextmanager
def _or_refused_by_all(note: Callable[[str], None]) -> Iterator[None]:
    """Notes an error on every rank; fails where a rank waits for one that refused."""
    with training.or_refused(note):
        try:
            yield
        except RankFailure as failure:
            waiting = any(report.outcome == "waiting" and report.collectives for report in failure.reports)
            if failure.kind == "hangs" or not waiting:
                raise
            raise ClauseFailure(
                "one-sided",
                f"a rank refused, and another waits for it: {failure.summary()}",
                expected="an error on every rank, before anything is sent",
                found="an error on some ranks",
            ) from None


def _expect_right(calls: Sequence[Call], description: Description, hook: str, given: FloatArray, dtype: str) -> None:
    """Expects of the ranks that called what the hook stands for, by its name or, where it has its own, its claims."""
    theirs = given[[call.rank for call in calls]]
    if description.hook is None:
        wire = next((half.dtype for half in HALVES if hook.startswith(half.hook.partition("_")[0])), None)
        if "noop_hook" in hook:
            for call in calls:
                averages.expect_mean([call], given[[call.rank]], dtype, wire)
        else:
            averages.expect_mean(calls, theirs, dtype, wire)
    else:
        averages.expect_as_claimed(calls, description, theirs, dtype)
