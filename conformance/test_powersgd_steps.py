"""PowerSGD over many steps: when compression begins, what a step is, where Q comes from, several buckets."""

from __future__ import annotations

import numpy as np
import pytest

from commhooks.conformance import averages, inputs
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_equal
from commhooks.conformance.expected import Float64Array
from commhooks.conformance.expected.low_rank import best_error, project, row_space
from commhooks.conformance.low_rank import (
    BATCHED,
    HOOK,
    MODES,
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
from commhooks.conformance.marks import clauses, dtypes, needs, worlds
from commhooks.conformance.programs.powersgd import run_steps_in_flight
from commhooks.conformance.tracks import Track
from commhooks.conformance.training import hang_limit
from commhooks.conformance.world import World

SHAPE, SMALL = (24, 16), (12, 8)
# Two different subspaces, and two different results, are never as close as this, in parts of B.
APART = 1e-3
# Seconds by which the last rank comes late.
LATE = 0.05


def rough(world: World, seed: int, shape: tuple[int, ...] = SMALL) -> Gradients:
    """A bucket with one matrix of full rank."""
    return bucket((shape, full_rank(world.size, shape, seed=seed)))


def expect_averaged(run: Run, *steps: int) -> None:
    """Expects all buckets of some steps to be averaged without compression."""
    for step in steps:
        for number in range(len(run.steps[step])):
            averages.expect_mean(run.calls(step, number), run.gradients(step, number), run.dtype)


def expect_apart(track: Track, step: int, other: Float64Array, what: str) -> None:
    """Expects the result of a compressed step to differ from another matrix."""
    distance = track.distance(step, other)
    if distance > APART:
        return
    number, rank = track.start + step, track.run.members[0]
    raise ClauseFailure(
        "same",
        f"rank {rank}, step {number}, bucket {track.bucket}: the result is {what}, to {distance:.3g} of |B|",
        expected=f"a distance above {APART:g} of |B|",
        found=f"{distance:.3g}",
        place=track.run.place(number, track.bucket, rank),
        holds=f"np.linalg.norm(np.array(found[{track.part.start}:{track.part.stop}], np.float64) - "
        f"np.array({other.ravel().tolist()!r})) > {APART * float(np.linalg.norm(track.B[step]))!r}",
    )


@clauses("PSGD-VANILLA")
@needs(HOOK, BATCHED, "PowerSGDState")
@dtypes("float32", "float16")
@pytest.mark.parametrize("case", [HOOK, BATCHED])
def test_vanilla(world: World, dtype: str, case: str) -> None:
    """Before compression starts every step is an average, with the bits that an average has."""
    steps = [
        [bucket((SMALL, inputs.spread(world.size, 96, dtype, seed)), ((5,), inputs.spread(world.size, 5, dtype)))]
        for seed in range(3)
    ]
    run = run_steps(world, case, options("both", start_powerSGD_iter=3), steps, dtype)
    expect_averaged(run, 0, 1, 2)
    if world.size <= 4:
        for step in range(3):
            averages.expect_exact(run.calls(step), run.gradients(step), dtype)


@clauses("PSGD-START")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["start 0", "start 1", "start 2", "start 3"])
def test_start(world: World, case: str) -> None:
    """Compression starts in the chosen step, with each combination of error feedback and warm start."""
    start = int(case[-1])
    steps = [[rough(world, seed)] for seed in range(start + 1)]
    for mode in {2: list(MODES), 3: ["neither", "both"]}.get(start, ["neither"]):
        run = run_steps(world, HOOK, options(mode, start_powerSGD_iter=start), steps)
        expect_averaged(run, *range(start))
        Track(run, 1, start, feedback=bool(MODES[mode]["use_error_feedback"])).expect_low_rank()


@clauses("PSGD-STEP")
@needs(HOOK, BATCHED, "PowerSGDState")
@pytest.mark.parametrize("case", ["1 bucket", "2 buckets", "5 buckets"])
def test_step(world: World, case: str) -> None:
    """Each backward pass counts as one step with any number of buckets: none or all are compressed in a step."""
    count = int(case[0])
    steps = [[rough(world, 10 * step + number) for number in range(count)] for step in range(4)]
    run = run_steps(world, HOOK, options("both", start_powerSGD_iter=3), steps)
    expect_averaged(run, 0, 1, 2)
    for number in range(count):
        Track(run, 1, 3, feedback=True, bucket=number).expect_low_rank()
    expect_averaged(run_steps(world, BATCHED, options("both", start_powerSGD_iter=3), steps[:3]), 0, 1, 2)


@clauses("PSGD-SEED-RANKS")
@needs(HOOK, "PowerSGDState")
@worlds(at_least=2)
def test_same_draws_on_all_ranks(world: World) -> None:
    """Ranks whose global random states differ draw the same Q: with different ones no result would be exact."""
    exact = [bucket((SHAPE, low_rank(world.size, SHAPE, 2)))]
    seeds = [{"random_seed": 100 + rank} for rank in range(world.size)]
    run = run_steps(world, HOOK, options("neither", 2), [exact] * 3, each=seeds)
    Track(run, 2, 0, feedback=False).expect_exact()


@clauses("PSGD-SEED-GLOBAL")
@needs(HOOK, "PowerSGDState")
def test_global_random_states(world: World) -> None:
    """Steps that draw Q leave the global random states alone."""
    steps = [[rough(world, seed)] for seed in range(4)]
    for number, mode in enumerate(("neither", "both")):
        run = run_steps(world, HOOK, options(mode, 2), steps, random_seed=7)
        for rank, result in enumerate(run.results):
            place = f'results[{number}][{rank}]["random_untouched"]'
            found = result["random_untouched"]
            expect_equal(rank, "leaving the random states alone", found, True, place, "random state")


@clauses("PSGD-SEED-REPEAT")
@needs(HOOK, "PowerSGDState")
def test_same_seed(world: World) -> None:
    """A second state with the same seed gives the same bits, whatever the global random states are."""
    steps = [[rough(world, seed)] for seed in range(3)]
    first = run_steps(world, HOOK, options("neither", 2, random_seed=5), steps, random_seed=1)
    again = run_steps(world, HOOK, options("neither", 2, random_seed=5), steps, random_seed=2)
    for step in range(len(steps)):
        again.expect_values(step, 0, first.values(step), "the first state's")


@clauses("PSGD-SEED-OTHER")
@needs(HOOK, "PowerSGDState")
def test_other_seed(world: World) -> None:
    """States with other seeds give other results."""
    steps = [[rough(world, 0)]]
    tracks = [
        Track(run_steps(world, HOOK, options("neither", random_seed=seed), steps), 1, 0, feedback=False)
        for seed in (0, 1, 12345)
    ]
    for number, track in enumerate(tracks):
        for other in tracks[:number]:
            expect_apart(track, 0, other.out(0), "that of another seed")


@clauses("PSGD-DRAW")
@needs(HOOK, "PowerSGDState")
def test_draws_differ(world: World) -> None:
    """Equal matrices in one bucket, and in two, have different first results."""
    same = full_rank(world.size, SHAPE)
    step = [bucket((SHAPE, same), (SHAPE, same)), bucket((SHAPE, same))]
    run = run_steps(world, HOOK, options("neither"), [step])
    tracks = [Track(run, 1, 0, feedback=False, bucket=number, part=part) for number, part in ((0, 0), (0, 1), (1, 0))]
    expect_apart(tracks[1], 0, tracks[0].out(0), "that of the other matrix in the bucket, which is equal")
    expect_apart(tracks[2], 0, tracks[0].out(0), "that of an equal matrix in the other bucket")
    expect_apart(tracks[2], 0, tracks[1].out(0), "that of an equal matrix in the other bucket")


@clauses("PSGD-WARM-OFF")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["neither", "error feedback"])
def test_cold_start(world: World, case: str) -> None:
    """Without warm start each step has a subspace of its own, which has nothing to do with the one before."""
    run = run_steps(world, HOOK, options(case, 2), after_vanilla(case, *[[rough(world, 0, SHAPE)]] * 3))
    track = Track(run, 2, start_of(case), feedback=case == "error feedback")
    for step in range(1, track.count):
        for earlier in range(step):
            same_space = project(track.B[step], project(track.B[0].T, track.out(earlier)))
            expect_apart(track, step, track.out(earlier), f"that of step {earlier}")
            expect_apart(track, step, same_space, f"in the space of that of step {earlier}")
        warm = project(track.B[step], row_space(track.out(step - 1), 2))
        expect_apart(track, step, warm, "what warm start would give")


@clauses("PSGD-WARM-CONVERGES")
@needs(HOOK, "PowerSGDState")
def test_convergence(world: World) -> None:
    """The error for a constant gradient falls to the best one, here by a factor of 16 in each step."""
    left, right = (np.linalg.qr(full_rank(1, (size, 16), seed=9)[0].reshape(size, 16))[0] for size in (24, 16))
    mean = (left * ([8.0] * 2 + [2.0] * 14)) @ right.T
    apart = full_rank(world.size, SHAPE, seed=3)
    gradients = inputs.carried(mean.reshape(1, -1) + apart - apart.mean(axis=0), "float32")
    run = run_steps(
        world, HOOK, options("warm start", 2), after_vanilla("warm start", *[[bucket((SHAPE, gradients))]] * 8)
    )
    track = Track(run, 2, 2, feedback=False)
    errors = [float(np.linalg.norm(track.B[step] - track.out(step))) for step in range(track.count)]
    slack = 2 * track.setting.orthogonality_bound(track.A[-1])
    for step in range(1, track.count):
        track.expect_error(step, errors[step - 1] + slack, "in the step before")
    track.expect_error(track.count - 1, best_error(track.B[-1], 2) + slack, "of the best approximation")


@clauses("PSGD-BUCKETS")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["2 buckets", "5 buckets"])
def test_buckets_are_independent(world: World, case: str) -> None:
    """Each bucket of a step has its own error and its own Q: its results follow from its own earlier ones."""
    count = int(case[0])
    steps = [[rough(world, 10 * step + number) for number in range(count)] for step in range(3)]
    run = run_steps(world, HOOK, options("both", 2), after_vanilla("both", *steps))
    for number in range(count):
        track = Track(run, 2, 2, feedback=True, bucket=number)
        track.expect_projection()
        track.expect_predicted()


@clauses("PSGD-NO-NESTED-WAIT", "HOOK-IN-FLIGHT")
@needs(HOOK, "PowerSGDState")
@worlds(at_least=2)
@pytest.mark.parametrize("case", [HOOK])
def test_buckets_in_flight(world: World, case: str) -> None:
    """Five buckets, then two, that are all under way before the first is waited for get their results in time."""
    late = [{"late": LATE if rank == world.size - 1 else 0.0} for rank in range(world.size)]
    limit = 2 * hang_limit(world)
    for count in (5, 2):
        steps = [[rough(world, 10 * step + number) for number in range(count)] for step in range(2)]
        run = run_steps(
            world,
            case,
            options("both", 2),
            after_vanilla("both", *steps),
            each=late,
            program=run_steps_in_flight,
            limit=limit,
            attempts=1,
        )
        for number in range(count):
            track = Track(run, 2, 2, feedback=True, bucket=number)
            track.expect_projection()
            track.expect_predicted()


@clauses("PSGD-RELAYOUT")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["other length", "same length"])
def test_bucket_changes(world: World, case: str) -> None:
    """When other gradients come in a bucket, they get nothing of the error and the Q of those before."""
    before = [[rough(world, seed, SHAPE)] for seed in range(2)]
    new = (16, 24) if case == "same length" else (20, 10)
    after = [[bucket((new, low_rank(world.size, new, 2)))], *([rough(world, seed, new)] for seed in range(2))]
    run = run_steps(world, HOOK, options("both", 2), after_vanilla("both", *before, *after))
    track = Track(run, 2, 4, feedback=True)
    track.expect_exact(0)
    track.expect_projection()
