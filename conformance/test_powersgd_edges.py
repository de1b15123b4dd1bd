"""powerSGD_hook at the edges: zeros, epsilon, infinities and NaN, empty and 0-dimensional gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from commhooks.conformance import averages, inputs
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expected import FloatArray
from commhooks.conformance.low_rank import (
    HOOK,
    Gradients,
    Run,
    after_vanilla,
    bucket,
    full_rank,
    low_rank,
    options,
    run_steps,
    start_of,
)
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.tracks import Track
from commhooks.conformance.world import World

SHAPE = (24, 16)
ZEROS = ("first", "later"), ("rank 1", "rank 2"), ("epsilon 0", "epsilon 1e-8")


def one(values: FloatArray, shape: tuple[int, ...] = SHAPE) -> list[Gradients]:
    """A step of one bucket with one matrix."""
    return [bucket((shape, values))]


def zeros(world: World) -> list[Gradients]:
    """A step of zeros on every rank."""
    return one(np.zeros((world.size, SHAPE[0] * SHAPE[1]), np.float32))


def expect_finite(run: Run, step: int, part: int = 0) -> None:
    """Expects one matrix, or other gradient, of a step to be finite on every rank."""
    place = run.steps[step][0].part(part)
    for rank in run.differing(step):
        found = run.values(step, 0, rank)[place]
        bad = ~np.isfinite(found)
        if bad.any():
            first = place.start + int(np.argmax(bad))
            raise ClauseFailure(
                "not finite",
                f"rank {rank}, step {step}: element {first} is {float(run.values(step, 0, rank)[first])!r} "
                f"({int(bad.sum())} of {len(bad)} elements of the gradient are not finite)",
                expected="a finite number",
                found=repr(float(run.values(step, 0, rank)[first])),
                place=f"{run.place(step, 0, rank)}[{first}]",
                holds="np.isfinite(found)",
            )


def expect_zeros(run: Run) -> None:
    """Expects zeros, and nothing else, in every step."""
    for step in range(len(run.steps)):
        expect_finite(run, step)
        run.expect_values(step, 0, np.zeros_like(run.values(step)), "zeros")


@clauses("PSGD-EPSILON")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["rank 1", "rank 2", "rank 4"])
def test_zeros_with_epsilon(world: World, case: str) -> None:
    """With a positive epsilon zeros give zeros, in each combination of error feedback and warm start."""
    for mode in ("neither", "both"):
        chosen = options(mode, int(case[-1]), orthogonalization_epsilon=1e-8)
        expect_zeros(run_steps(world, HOOK, chosen, after_vanilla(mode, *[zeros(world)] * 3)))


@clauses("PSGD-EPSILON-SMALL")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["rank 1", "rank 2", "rank 4"])
def test_small_epsilon(world: World, case: str) -> None:
    """An epsilon of 1e-8 changes nothing that rounding does not where gradients are of ordinary size."""
    gradients = [full_rank(world.size, SHAPE, seed=seed) for seed in range(3)]
    chosen = options("both", int(case[-1]), orthogonalization_epsilon=1e-8)
    track = Track(
        run_steps(world, HOOK, chosen, after_vanilla("both", *map(one, gradients))),
        chosen["matrix_approximation_rank"],
        2,
        feedback=True,
    )
    track.expect_projection()
    track.expect_predicted()


@clauses("PSGD-ZERO")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["rank 1", "rank 2", "rank 3", "rank 4"])
def test_zeros(world: World, case: str) -> None:
    """With the default epsilon of 0 as well, zeros give zeros, in each combination of error feedback and warm start."""
    for mode in ("neither", "both"):
        expect_zeros(run_steps(world, HOOK, options(mode, int(case[-1])), after_vanilla(mode, *[zeros(world)] * 3)))


@clauses("PSGD-ZERO-RECOVERS")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", [*map(", ".join, itertools.product(*ZEROS)), "first, rank 4, epsilon 0"])
def test_recovery_from_zeros(world: World, case: str) -> None:
    """After two steps of zeros, from the first compressed one on or later, gradients are approximated again.

    Where their rank is low, what is owed is paid at the latest in the second step of them.
    """
    when, rank, epsilon = case.split(", ")
    chosen = options("both", int(rank[-1]), orthogonalization_epsilon=float(epsilon.split()[1]))
    real = one(low_rank(world.size, SHAPE, chosen["matrix_approximation_rank"]))
    steps = (
        [zeros(world), zeros(world), real, real] if when == "first" else [real, zeros(world), zeros(world), real, real]
    )
    run = run_steps(world, HOOK, chosen, after_vanilla("both", *steps))
    for step in range(len(run.steps)):
        expect_finite(run, step)
    Track(run, chosen["matrix_approximation_rank"], 2, feedback=True).expect_exact(len(steps) - 1)


@clauses("PSGD-ZERO-COLUMNS")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["rows", "columns", "all but three columns"])
def test_zero_columns(world: World, case: str) -> None:
    """Zero rows or columns on all ranks give a finite result."""
    chosen = {"rows": np.s_[:, ::2], "columns": np.s_[:, :, ::2], "all but three columns": np.s_[:, :, 3:]}[case]
    values = full_rank(world.size, SHAPE).reshape(world.size, *SHAPE).copy()
    values[chosen] = 0
    for rank in (1, 2):
        run = run_steps(
            world, HOOK, options("both", rank), after_vanilla("both", *[one(values.reshape(world.size, -1))] * 2)
        )
        for step in range(len(run.steps)):
            expect_finite(run, step)


@clauses("PSGD-ZERO-COLUMNS")
@needs(HOOK, "PowerSGDState")
@worlds(at_least=2)
def test_zeros_on_some_ranks(world: World) -> None:
    """Zeros on all ranks but one give the approximation of the mean."""
    values = full_rank(world.size, SHAPE).copy()
    values[1:] = 0
    for rank in (1, 2):
        run = run_steps(world, HOOK, options("both", rank), after_vanilla("both", *[one(values)] * 2))
        for step in range(len(run.steps)):
            expect_finite(run, step)
        Track(run, rank, 2, feedback=True).expect_projection()


def poisoned(world: World, case: str, rank: int) -> Run:
    """Two compressed steps with a non-finite number in the second, and two more: two matrices and a vector."""
    shapes, value = [SHAPE, (16, 12), (7,)], {"inf": np.inf, "-inf": -np.inf, "nan": np.nan}[case.split(" in ")[0]]
    steps = []
    for seed in range(4):
        first = low_rank(world.size, SHAPE, rank) if seed == 2 else full_rank(world.size, SHAPE, seed=seed)
        values = [first, full_rank(world.size, shapes[1], seed=seed), inputs.spread(world.size, 7, "float32", reach=2)]
        if seed == 1:
            part = 2 if "vector" in case else 0
            values[part] = values[part].copy()
            values[part][0, 5] = value
        steps.append([bucket(*zip(shapes, values, strict=True))])
    return run_steps(world, HOOK, options("both", rank), after_vanilla("both", *steps))


@clauses("PSGD-NONFINITE")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["inf in matrix", "-inf in matrix", "nan in matrix"])
def test_nonfinite(world: World, case: str) -> None:
    """An infinity or NaN on one rank makes its matrix non-finite on all, in the same places, and no other gradient."""
    run = poisoned(world, case, 2)
    place = run.steps[3][0].part(0)
    first = np.isfinite(run.values(3)[place])
    for rank in run.members:
        finite = np.isfinite(run.values(3, 0, rank)[place])
        if finite.all() or not np.array_equal(finite, first):
            raise ClauseFailure(
                "finite" if finite.all() else "disagreement",
                f"rank {rank}, step 3: {int((~finite).sum())} elements of the matrix are not finite, on rank 0 "
                f"{int((~first).sum())}; rank 0 had {case.split()[0]} in it",
                expected="an infinity or NaN, at the same places on all ranks",
                found=f"{int((~finite).sum())} of {len(finite)} elements",
                place=f"{run.place(3, 0, rank)}[{place.start}:{place.stop}]",
                holds="not np.isfinite(found).all()",
            )
    expect_finite(run, 3, part=1)
    expect_finite(run, 3, part=2)
    Track(run, 2, 2, feedback=True, part=1).expect_projection()


@clauses("PSGD-NONFINITE-RECOVERS")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["inf in matrix", "nan in matrix", "nan in vector"])
def test_recovery_from_nonfinite(world: World, case: str) -> None:
    """In the step after, all is finite, and the matrix is approximated from its gradient alone."""
    run = poisoned(world, case, 2)
    for step in (4, 5):
        for part in range(3):
            expect_finite(run, step, part)
    calls, gradients = run.part(4, 0, 2)
    averages.expect_mean(calls, gradients, run.dtype) if "vector" in case else None
    if "matrix" in case:
        track = Track(run, 2, 4, feedback=True)
        track.expect_exact(0)
        track.expect_projection()


@clauses("PSGD-EMPTY")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["no dimension", "empty matrix", "empty vector", "only matrices", "no matrices"])
def test_unusual_buckets(world: World, case: str) -> None:
    """Buckets with 0-dimensional or empty gradients, with only compressed ones and with none, come out right."""
    extra: dict[str, list[tuple[int, ...]]] = {
        "no dimension": [()],
        "empty matrix": [(0, 3), (3, 0)],
        "empty vector": [(0,)],
        "only matrices": [],
        "no matrices": [(7,), (1, 6)],
    }
    kept: list[tuple[int, ...]] = [] if case == "no matrices" else [SHAPE]
    shapes = [*kept, *extra[case]]
    parts: list[tuple[tuple[int, ...], FloatArray]] = [(shape, low_rank(world.size, SHAPE, 2)) for shape in kept]
    parts += [(shape, inputs.spread(world.size, inputs.numel([shape]), "float32", reach=2)) for shape in extra[case]]
    for mode in ("neither", "both"):
        run = run_steps(world, HOOK, options(mode, 2), after_vanilla(mode, *[[bucket(*parts)]] * 2))
        start = start_of(mode)
        for number in range(len(kept), len(shapes)):
            calls, gradients = run.part(start, 0, number)
            averages.expect_mean(calls, gradients, run.dtype)
        if kept:
            Track(run, 2, start, feedback=mode == "both").expect_exact(0)
