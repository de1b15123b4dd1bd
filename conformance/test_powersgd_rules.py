"""The PowerSGD hooks keep what every hook must, over steps with and without compression."""

from __future__ import annotations

import numpy as np
import pytest

from commhooks.conformance import inputs
from commhooks.conformance.expectations import expect_array, expect_equal
from commhooks.conformance.low_rank import (
    BATCHED,
    HOOK,
    Gradients,
    Run,
    after_vanilla,
    bucket,
    full_rank,
    options,
    run_steps,
)
from commhooks.conformance.marks import clauses, dtypes, needs
from commhooks.conformance.world import World

SHAPE = (12, 8)
cases = pytest.mark.parametrize("case", [HOOK, BATCHED])


def steps_of(world: World, dtype: str = "float32") -> list[list[Gradients]]:
    """Two steps to be averaged and three to be compressed, of a matrix and a vector."""
    steps = (
        [
            bucket(
                (SHAPE, full_rank(world.size, SHAPE, dtype, seed)),
                ((5,), inputs.spread(world.size, 5, dtype, seed, reach=2)),
            )
        ]
        for seed in range(3)
    )
    return list(map(list, after_vanilla("both", *steps)))


def run_of(world: World, hook: str, dtype: str = "float32", seed: int | None = None) -> Run:
    """Runs these steps with error feedback and warm start."""
    return run_steps(world, hook, options("both", 2), steps_of(world, dtype), dtype, random_seed=seed)


@clauses("HOOK-FUTURE", "HOOK-LENGTH", "HOOK-CONTIGUOUS", "HOOK-DTYPE")
@needs(HOOK, BATCHED, "PowerSGDState")
@dtypes("float32", "bfloat16")
@cases
def test_form(world: World, dtype: str, case: str) -> None:
    """The result is a future of a flat, contiguous tensor with the bucket's length and dtype."""
    run = run_of(world, case, dtype)
    length = inputs.numel([SHAPE, (5,)])
    facts = {"dtype": dtype, "shape": [length], "contiguous": True, "storage_offset": 0}
    for step in range(len(run.steps)):
        for rank in run.members:
            for name, expected in facts.items():
                found, place = run.record(step, 0, rank).get(name), run.place(step, 0, rank, name)
                expect_equal(rank, f"{name} of the result of step {step}", found, expected, place, name)


@clauses("HOOK-COMPLETE", "HOOK-EARLIER-CALL")
@needs(HOOK, BATCHED, "PowerSGDState")
@cases
def test_results_stay(world: World, case: str) -> None:
    """Nobody writes to a result once its future is complete, later steps included."""
    run = run_steps(world, case, options("both", 2), steps_of(world), look_again=True)
    for step in range(len(run.steps)):
        for rank in run.members:
            later = run.record(step, 0, rank)["later"]
            name = f"the result of step {step} at the end"
            expect_array(rank, name, later, run.values(step, 0, rank), run.place(step, 0, rank, "later"))


@clauses("HOOK-AGREE")
@needs(HOOK, BATCHED, "PowerSGDState")
@cases
def test_agreement(world: World, case: str) -> None:
    """All ranks have the same bits in every step, whatever their global random states are."""
    seeds = [{"random_seed": rank} for rank in range(world.size)]
    run = run_steps(world, case, options("both", 2), steps_of(world), each=seeds)
    for step in range(len(run.steps)):
        run.expect_values(step, 0, run.values(step), "rank 0's")


@clauses("HOOK-REPEAT")
@needs(HOOK, BATCHED, "PowerSGDState")
@cases
def test_repetition(world: World, case: str) -> None:
    """The same steps with a fresh state give the same bits again."""
    first, again = run_of(world, case, seed=1), run_of(world, case, seed=2)
    for step in range(len(first.steps)):
        again.expect_values(step, 0, first.values(step), "the first time")


@clauses("HOOK-RANDOM-STATE")
@needs(HOOK, BATCHED, "PowerSGDState")
@cases
def test_random_states(world: World, case: str) -> None:
    """The global random states are as before."""
    run = run_of(world, case, seed=3)
    for rank in run.members:
        found, place = run.results[rank]["random_untouched"], f'results[0][{rank}]["random_untouched"]'
        expect_equal(rank, "leaving the random states alone", found, True, place, "random state")


@clauses("HOOK-LENGTHS")
@needs(HOOK, BATCHED, "PowerSGDState")
@pytest.mark.parametrize(
    "case", [f"{hook}, {what}" for hook in (HOOK, BATCHED) for what in ("one element", "no dimension", "empty")]
)
def test_lengths(world: World, case: str) -> None:
    """Buckets of one element, and with 0-dimensional and empty gradients, come through compressed steps."""
    hook, what = case.split(", ")
    shapes: dict[str, list[tuple[int, ...]]] = {
        "one element": [(1,)],
        "no dimension": [(), (12, 8)],
        "empty": [(0, 4), (12, 8), (0,)],
    }
    parts = [(shape, np.ones((world.size, inputs.numel([shape])), np.float32)) for shape in shapes[what]]
    run = run_steps(world, hook, options("neither"), [[bucket(*parts)]] * 2)
    for step in range(2):
        for rank in run.members:
            finite, place = bool(np.isfinite(run.values(step, 0, rank)).all()), run.place(step, 0, rank)
            expect_equal(
                rank, f"being finite in step {step}", finite, True, f"np.isfinite({place}).all()", "not finite"
            )
