"""In the laboratory: which collectives a hook starts, in which order, in which group, and what its callbacks do."""

from __future__ import annotations

from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.findings import BLOCKS, DEADLOCK
from commhooks.conformance.laboratory import HELD, at_leisure, call_in_lab, gradients, with_reversed_completions
from commhooks.conformance.laboratory_expectations import (
    expect_collectives_among,
    expect_no_error,
    expect_nothing_found,
    expect_same_collectives,
)
from commhooks.conformance.marks import clauses, dtypes, every_hook, needs, stateful, worlds
from commhooks.conformance.world import World

# Seconds for which a callback may wait while the others wait for its thread.
DEADLOCK_AFTER = 0.05


@every_hook
@stateful
@clauses("HOOK-ORDER")
@dtypes("float32")
@worlds(2, 3)
def test_order(lab: World, hook: str, dtype: str) -> None:
    """With three buckets under way, and completions in another order on one rank, all ranks start the same."""
    seen = with_reversed_completions(lab, hook, dtype)
    expect_same_collectives(seen)
    expect_no_error(seen)


@every_hook
@stateful
@clauses("HOOK-NO-BLOCKING")
@dtypes("float32")
@worlds(2, 3)
def test_no_blocking(lab: World, hook: str, dtype: str) -> None:
    """With two buckets that complete in reverse, and one thread for all callbacks, no callback waits."""
    order = {"completion_order": "reversed", "hold": HELD}
    options = {**order, "callback_threads": "one", "deadlock_after": DEADLOCK_AFTER}
    seen = call_in_lab(lab, hook, dtype, gradients(lab, dtype, buckets=2), options)
    advice = "Wait in the hook itself: where all callbacks share a thread, this one waits for ever."
    expect_nothing_found(seen, "blocks", advice, BLOCKS, DEADLOCK)
    expect_no_error(seen)


@every_hook
@stateful
@needs("subgroups")
@clauses("HOOK-GROUP")
@dtypes("float32")
@worlds(2, 3)
def test_group(lab: World, hook: str, dtype: str) -> None:
    """With a subgroup as state no collective is started in a group that has other ranks."""
    members = list(range(1, lab.size))
    seen = call_in_lab(lab, hook, dtype, gradients(lab, dtype), group=members, absent=(0,))
    expect_collectives_among(seen, members)
    expect_no_error(seen)


@every_hook
@stateful
@clauses("HOOK-NO-NEW-GROUP")
@dtypes("float32")
@worlds(2, 3)
def test_no_new_group(lab: World, hook: str, dtype: str) -> None:
    """Of three steps the second and the third make no process group."""
    seen = at_leisure(lab, hook, dtype)
    expect_no_error(seen)
    for rank, result in enumerate(seen.results):
        made = result["groups"][result["steps"][1][1] :]
        if made:
            raise ClauseFailure(
                "new group",
                f"rank {rank}: the steps after the first made {len(made)} process groups, the first of {made[0]}. "
                "Make groups once, where the state is made.",
                expected="no process group",
                found=f"{len(made)} process groups",
                place=f"len({seen.place(rank, 'groups')}) - {seen.place(rank, 'steps')}[1][1]",
                holds="found == 0",
            )
