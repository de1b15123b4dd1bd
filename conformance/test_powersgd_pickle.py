"""PowerSGDState: what is saved, and what a run that goes on from it gives; and that the state does not grow."""

from __future__ import annotations

import pytest

from commhooks.conformance import averages, inputs
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_equal
from commhooks.conformance.low_rank import (
    HOOK,
    MODES,
    Gradients,
    Run,
    after_vanilla,
    bucket,
    full_rank,
    options,
    run_steps,
)
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.world import World

SHAPE, PICKLE = (12, 8), "PowerSGDState.pickle"


def steps_of(world: World, count: int) -> list[list[Gradients]]:
    """Steps of two buckets, with a matrix and a vector in each."""
    return [
        [
            bucket(
                (SHAPE, full_rank(world.size, SHAPE, seed=2 * step + number)),
                ((5,), inputs.spread(world.size, 5, "float32", step, reach=2)),
            )
            for number in range(2)
        ]
        for step in range(count)
    ]


def expect_same_run(resumed: Run, unbroken: Run) -> None:
    """Expects two runs to have the same results, bit for bit."""
    for step in range(len(unbroken.steps)):
        for number in range(len(unbroken.steps[step])):
            resumed.expect_values(step, number, unbroken.values(step, number), "the unbroken run")


@clauses("PSGD-PICKLE")
@needs(HOOK, PICKLE)
@pytest.mark.parametrize("case", ["bytes", "file", "before the first step", "subgroup"])
def test_pickling(world: World, case: str) -> None:
    """A state can be pickled and loaded, in mid-run, with the world group in it or a subgroup, and used again."""
    run = run_steps(
        world,
        HOOK,
        options("both", 2),
        steps_of(world, 4),
        load_after=0 if case == "before the first step" else 3,
        load_from="file" if case == "file" else "bytes",
        alone=case == "subgroup",
    )
    if case != "subgroup":
        averages.expect_mean(run.calls(0), run.gradients(0), run.dtype)


@clauses("PSGD-PICKLE-GROUP")
@needs(HOOK, PICKLE, "subgroups")
def test_group_is_left_out(world: World) -> None:
    """States of one rank each average over the world group once they are loaded."""
    steps = steps_of(world, 3)
    run = run_steps(world, HOOK, options("both", start_powerSGD_iter=10), steps, load_after=2, alone=True)
    for rank in run.members:
        run_alone = Run(steps, run.dtype, run.results, run.program, (rank,))
        averages.expect_mean(run_alone.calls(1), run_alone.gradients(1), run.dtype)
    averages.expect_mean(run.calls(2), run.gradients(2), run.dtype)


@clauses("PSGD-PICKLE-SETTINGS")
@needs(HOOK, PICKLE)
@pytest.mark.parametrize("case", ["before compression", "after compression began"])
def test_settings_are_kept(world: World, case: str) -> None:
    """A loaded state goes on with all settings, the step and the statistics of the saved one, none a default."""
    chosen = options(
        "error feedback",
        2,
        start_powerSGD_iter=3,
        min_compression_rate=1.1,
        orthogonalization_epsilon=0.5,
        random_seed=7,
        compression_stats_logging_frequency=2,
    )
    steps, after = steps_of(world, 6), 2 if case == "before compression" else 5
    unbroken = run_steps(world, HOOK, chosen, steps, keep_log=True)
    resumed = run_steps(world, HOOK, chosen, steps, keep_log=True, load_after=after)
    expect_same_run(resumed, unbroken)
    for rank in resumed.members:
        for step in range(after, len(steps)):
            for number in range(2):
                found, expected = (run.record(step, number, rank) for run in (resumed, unbroken))
                place = resumed.place(step, number, rank, "stats")
                name = f"compression_stats() after step {step}, bucket {number},"
                expect_equal(rank, name, found["stats"], expected["stats"], place, "count")
                records = [len([one for one in run["log"] if one[0] == "INFO"]) for run in (found, expected)]
                place = f'len([one for one in {resumed.place(step, number, rank, "log")} if one[0] == "INFO"])'
                expect_equal(
                    rank, f"log records of step {step}, bucket {number},", records[0], records[1], place, "log"
                )


@clauses("PSGD-PICKLE-RESUME")
@needs(HOOK, PICKLE)
@pytest.mark.parametrize("case", list(MODES))
def test_resumed_run(world: World, case: str) -> None:
    """A run that goes on from a state saved in mid-run has the bits of the unbroken one."""
    steps = after_vanilla(case, *steps_of(world, 4))
    unbroken = run_steps(world, HOOK, options(case, 2), steps)
    load_from = "file" if case == "both" else "bytes"
    resumed = run_steps(world, HOOK, options(case, 2), steps, load_after=len(steps) - 2, load_from=load_from)
    expect_same_run(resumed, unbroken)


@clauses("PSGD-BOUNDED")
@needs(HOOK, PICKLE)
@worlds(at_most=2)
@pytest.mark.parametrize("case", ["neither", "both"])
def test_state_does_not_grow(world: World, case: str) -> None:
    """The state is as large after 50 steps as after 10, but for a few bytes that a larger number in it may take."""
    steps = [step[:1] for step in steps_of(world, 3)]
    run = run_steps(world, HOOK, options(case, 2), [steps[number % 3] for number in range(50)], measure_after=[10, 50])
    for rank in run.members:
        early, late = run.results[rank]["lengths"]
        if late > early + 64:
            raise ClauseFailure(
                "growth",
                f"rank {rank}: the pickled state has {early} bytes after 10 steps and {late} after 50",
                expected=f"at most {early + 64} bytes",
                found=f"{late} bytes",
                place=f'results[{run.program}][{rank}]["lengths"]',
                holds="found[1] <= found[0] + 64",
            )
