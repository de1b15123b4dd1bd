"""batched_powerSGD_hook: the whole bucket approximated as one square matrix."""

from __future__ import annotations

import numpy as np
import pytest

from commhooks.conformance import inputs
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_equal
from commhooks.conformance.expected import FloatArray
from commhooks.conformance.low_rank import (
    BATCHED,
    Gradients,
    after_vanilla,
    full_rank,
    low_rank,
    options,
    run_steps,
)
from commhooks.conformance.marks import clauses, dtypes, needs
from commhooks.conformance.test_powersgd_edges import expect_finite
from commhooks.conformance.test_powersgd_traffic import collectives, expect_stats
from commhooks.conformance.tracks import Track
from commhooks.conformance.world import World

SIDE = 16
# A bucket that fills its square, and one of a matrix and two vectors that leaves the end of it to padding.
FULL: list[tuple[int, ...]] = [(24, 8), (60,), (4,)]
PADDED: list[tuple[int, ...]] = [(20, 10), (40,), (6,)]


def of_square(values: FloatArray, shapes: list[tuple[int, ...]]) -> list[Gradients]:
    """A step of one bucket that holds the first elements of a square matrix."""
    return [Gradients(tuple(shapes), values[:, : inputs.numel(shapes)].copy())]


def rough(world: World, seed: int, shapes: list[tuple[int, ...]]) -> list[Gradients]:
    """A step of one bucket whose square matrix is of full rank."""
    return of_square(full_rank(world.size, (SIDE, SIDE), seed=seed), shapes)


def exact(world: World, rank: int, shapes: list[tuple[int, ...]], dtype: str = "float32") -> list[Gradients]:
    """A step of one bucket whose mean, padded with zeros, has a low rank: its last row is zero."""
    values = low_rank(world.size, (SIDE, SIDE), rank, dtype).copy()
    values[:, -SIDE:] = 0
    return of_square(values, shapes)


@clauses("PSGD-BATCHED-COMPRESSES")
@needs(BATCHED, "PowerSGDState")
@pytest.mark.parametrize("case", ["rank 1", "rank 2", "rank 4"])
def test_compresses(world: World, case: str) -> None:
    """Compressed steps give results, of the approximation rank and no smaller error than any matrix of it."""
    rank = int(case[-1])
    for mode in ("neither", "both"):
        run = run_steps(
            world, BATCHED, options(mode, rank), after_vanilla(mode, *(rough(world, seed, FULL) for seed in range(2)))
        )
        Track(run, rank, len(run.steps) - 2, feedback=mode == "both", part=None).expect_low_rank()


@clauses("PSGD-BATCHED-SQUARE")
@needs(BATCHED, "PowerSGDState")
@pytest.mark.parametrize("case", ["full", "padded"])
def test_square(world: World, case: str) -> None:
    """The result is the projection of the padded square that the gradients so far determine.

    Two steps of one low-rank mean leave its row space as Q, however Q was drawn.
    """
    shapes = FULL if case == "full" else PADDED
    settling = exact(world, 2, shapes)
    steps = after_vanilla("warm start", settling, settling, rough(world, 0, shapes))
    track = Track(run_steps(world, BATCHED, options("warm start", 2), steps), 2, 2, feedback=False, part=None)
    track.expect_predicted(2, before=track.B[1])
    if case == "full":
        track.expect_projection()


@clauses("PSGD-BATCHED-ALWAYS")
@needs(BATCHED, "PowerSGDState")
@pytest.mark.parametrize("case", ["matrix and vectors", "vectors"])
def test_always(world: World, case: str) -> None:
    """A bucket is compressed at any minimum compression rate, and if there are only vectors in it."""
    shapes: list[tuple[int, ...]] = FULL if case == "matrix and vectors" else [(200,), (56,)]
    run = run_steps(world, BATCHED, options("neither", 2, min_compression_rate=1000), [rough(world, 0, shapes)])
    track = Track(run, 2, 0, feedback=False, part=None)
    track.expect_low_rank()
    track.expect_projection()


@clauses("PSGD-BATCHED-EXACT")
@needs(BATCHED, "PowerSGDState")
@dtypes("float32", "float64")
@pytest.mark.parametrize("case", ["full", "padded"])
def test_exact(world: World, dtype: str, case: str) -> None:
    """A mean whose padded square has at most the approximation rank is exact."""
    shapes = FULL if case == "full" else PADDED
    for own, rank in ((1, 1), (2, 2), (1, 3)):
        run = run_steps(world, BATCHED, options("neither", rank), [exact(world, own, shapes, dtype)], dtype)
        Track(run, rank, 0, feedback=False, part=None).expect_exact()


@clauses("PSGD-BATCHED-FEEDBACK")
@needs(BATCHED, "PowerSGDState")
@pytest.mark.parametrize("case", ["error feedback", "both"])
def test_feedback(world: World, case: str) -> None:
    """Each result is the projection of all that was owed: the mean buffers so far minus the earlier results."""
    steps = after_vanilla(case, *(rough(world, seed, FULL) for seed in range(5)))
    Track(run_steps(world, BATCHED, options(case, 2), steps), 2, 2, feedback=True, part=None).expect_projection()


@clauses("PSGD-BATCHED-PADDING")
@needs(BATCHED, "PowerSGDState")
def test_padding(world: World) -> None:
    """With error feedback too, each step approximates a square whose padding is zero.

    What the hook had at the padded places is cut off. But the rows above the last are enough to know the row space.
    """
    steps = after_vanilla("both", *(rough(world, seed, PADDED) for seed in range(4)))
    track = Track(run_steps(world, BATCHED, options("both", 2), steps), 2, 2, feedback=True, part=None)
    for step in range(1, track.count):
        before = track.out(step - 1)
        before[-1] = 0
        track.expect_predicted(step, before=before)


@clauses("PSGD-BATCHED-STATS")
@needs(BATCHED, "PowerSGDState")
@pytest.mark.parametrize("case", ["full", "padded"])
def test_stats(world: World, case: str) -> None:
    """The elements of the bucket and of P and Q are counted, from the first compressed step on."""
    shapes, rank = (FULL, 2) if case == "full" else (PADDED, 3)
    run = run_steps(world, BATCHED, options("both", rank), after_vanilla("both", *[rough(world, 0, shapes)] * 2))
    for step, count in ((0, 0), (1, 0), (2, 1), (3, 2)):
        expect_stats(run, step, 0, count * inputs.numel(shapes), count * 2 * SIDE * rank)


@clauses("PSGD-BATCHED-WIRE")
@needs(BATCHED, "PowerSGDState")
@pytest.mark.parametrize("case", ["float32", "float16"])
def test_wire(world: World, case: str) -> None:
    """A compressed step sends P and Q, each in one allreduce, and nothing else."""
    values = full_rank(world.size, (SIDE, SIDE), case)
    steps = after_vanilla("both", *[of_square(values, PADDED)] * 2)
    run = run_steps(world, BATCHED, options("both", 2), steps, case, watch=True)
    for step in (2, 3):
        for rank in run.members:
            flat = f"{SIDE},2]", f"{2 * SIDE}]"  # P and Q may be sent as matrices
            found = sorted(text.replace(*flat) for text in collectives(run, step, 0, rank))
            place = f"sorted(text.replace(*{flat}) for text in {run.place(step, 0, rank, 'collectives')})"
            expected = [f"all_reduce {case}[{2 * SIDE}]"] * 2
            expect_equal(rank, f"what is sent in step {step}", found, expected, place, "wire")


@clauses("PSGD-BATCHED-NONFINITE")
@needs(BATCHED, "PowerSGDState")
@pytest.mark.parametrize("case", ["inf", "nan"])
def test_nonfinite(world: World, case: str) -> None:
    """An infinity or NaN on one rank makes the result non-finite on all; the step after it begins anew."""
    bad = full_rank(world.size, (SIDE, SIDE), seed=1).copy()
    bad[0, 5] = float(case)
    steps = after_vanilla(
        "both", rough(world, 0, FULL), of_square(bad, FULL), exact(world, 2, FULL), rough(world, 2, FULL)
    )
    run = run_steps(world, BATCHED, options("both", 2), steps)
    for rank in run.members:
        if np.isfinite(run.values(3, 0, rank)).all():
            raise ClauseFailure(
                "finite",
                f"rank {rank}, step 3: the result is finite, although rank 0 had {case} in its bucket",
                expected="an infinity or NaN",
                found="finite numbers",
                place=run.place(3, 0, rank),
                holds="not np.isfinite(found).all()",
            )
    for step in (4, 5):
        expect_finite(run, step, part=0)
    track = Track(run, 2, 4, feedback=True, part=None)
    track.expect_exact(0)
    track.expect_projection()
