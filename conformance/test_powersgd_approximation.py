"""powerSGD_hook: each result is the right kind of approximation of the right matrix."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from commhooks.conformance import inputs
from commhooks.conformance.expectations import expect_equal
from commhooks.conformance.expected import FloatArray, float_type, mean
from commhooks.conformance.low_rank import (
    HOOK,
    Gradients,
    after_vanilla,
    bucket,
    full_rank,
    low_rank,
    options,
    run_steps,
)
from commhooks.conformance.marks import Half, clauses, dtypes, needs
from commhooks.conformance.tracks import Track
from commhooks.conformance.world import World

TALL, WIDE, CONVOLUTION, BIAS = (24, 16), (16, 24), (16, 4, 3, 2), (7,)
RANKS = {f"rank {rank}": rank for rank in (1, 2, 3, 4, 8)}
SCALES = {"scale 1e-6": 1e-6, "scale 1e-12": 1e-12, "scale 1e6": 1e6}


def layers(world: World, seed: int, dtype: str = "float32", scale: float = 1.0) -> list[Gradients]:
    """One bucket of a step: a tall matrix, a bias, a wide matrix and a convolution, all of full rank."""
    bias = inputs.carried(scale * inputs.spread(world.size, BIAS[0], dtype, seed, reach=2), dtype)
    return [
        bucket(
            (TALL, full_rank(world.size, TALL, dtype, seed, scale)),
            (BIAS, bias),
            (WIDE, full_rank(world.size, WIDE, dtype, seed + 1, scale)),
            (CONVOLUTION, full_rank(world.size, CONVOLUTION, dtype, seed + 2, scale)),
        )
    ]


def one_matrix(*gradients: FloatArray, shape: tuple[int, ...] = TALL) -> list[list[Gradients]]:
    """Steps of one bucket with one matrix."""
    return [[bucket((shape, values))] for values in gradients]


def three_tracks(world: World, mode: str, rank: int, scale: float = 1.0) -> list[Track]:
    """Runs two compressed steps of all ``layers``, and follows each of their matrices."""
    steps = after_vanilla(mode, *(layers(world, 3 * seed, scale=scale) for seed in range(2)))
    run = run_steps(world, HOOK, options(mode, rank), steps)
    chosen = options(mode)
    start, feedback = chosen["start_powerSGD_iter"], chosen["use_error_feedback"]
    return [Track(run, rank, start, feedback, part=part) for part in (0, 2, 3)]


@clauses("PSGD-PROJECTION")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", [*RANKS, *SCALES])
def test_projection(world: World, case: str) -> None:
    """Tall, wide and convolution gradients of several scales become projections of themselves."""
    for track in three_tracks(world, "both", RANKS.get(case, 2), SCALES.get(case, 1.0)):
        track.expect_projection()


@clauses("PSGD-RANK")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", list(RANKS))
def test_rank(world: World, case: str) -> None:
    """Results have no more than the approximation rank, and no smaller error than any matrix of it."""
    for track in three_tracks(world, "neither", RANKS[case]):
        track.expect_low_rank()


@clauses("PSGD-EXACT")
@needs(HOOK, "PowerSGDState")
@dtypes("float32", "float64")
@pytest.mark.parametrize("case", ["1 of 1", "2 of 2", "4 of 4", "1 of 2", "1 of 3", "2 of 4"])
def test_exact(world: World, dtype: str, case: str) -> None:
    """A mean whose rank is at most the approximation rank is exact, though the ranks' gradients are of full rank."""
    own, rank = int(case[0]), int(case[-1])
    step = [bucket(*((shape, low_rank(world.size, shape, own, dtype)) for shape in (TALL, WIDE)))]
    run = run_steps(world, HOOK, options("neither", rank), [step], dtype)
    for part in (0, 1):
        Track(run, rank, 0, False, part=part).expect_exact()


@clauses("PSGD-RANK-CAP")
@needs(HOOK, "PowerSGDState")
def test_rank_above_the_matrix(world: World) -> None:
    """An approximation rank above the number of rows or columns is lowered to it, so the result is exact."""
    shapes = [(5, 16), (16, 5), (3, 3)]
    step = [bucket(*((shape, full_rank(world.size, shape)) for shape in shapes))]
    run = run_steps(world, HOOK, options("neither", 8, min_compression_rate=0.1), [step])
    for part in range(len(shapes)):
        Track(run, 8, 0, False, part=part).expect_exact()


@clauses("PSGD-MEAN")
@needs(HOOK, "PowerSGDState", "subgroups")
@pytest.mark.parametrize("case", ["rank 1", "rank 2"])
def test_linear_in_the_mean(world: World, case: str) -> None:
    """All ranks together, and each alone with the mean, get the result that the gradients so far determine.

    Two steps of one low-rank mean leave its row space as the Q of both, however Q was drawn.
    """
    rank = RANKS[case]
    settling = low_rank(world.size, TALL, rank)
    gradients = [settling, settling, full_rank(world.size, TALL)]
    means = [inputs.carried(np.broadcast_to(mean(one), one.shape), "float32") for one in gradients]
    chosen = options("warm start", rank)
    together = run_steps(world, HOOK, chosen, after_vanilla("warm start", *one_matrix(*gradients)))
    alone = run_steps(world, HOOK, chosen, after_vanilla("warm start", *one_matrix(*means)), alone=True)
    for run in (together, dataclasses.replace(alone, members=(0,))):
        track = Track(run, rank, 2, feedback=False)
        track.expect_predicted(2, before=track.B[1])


@clauses("PSGD-SCALE")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["rank 1", "rank 4"])
def test_power_of_two(world: World, case: str) -> None:
    """Gradients that are 1024 times as large or small give results that are, bit for bit."""
    chosen = options("both", RANKS[case])
    seeds = range(0, 6, 3)
    plain = run_steps(world, HOOK, chosen, after_vanilla("both", *(layers(world, seed) for seed in seeds)))
    for factor in (2.0**10, 2.0**-10):
        steps = [
            [dataclasses.replace(one, values=one.values * np.float32(factor)) for one in step] for step in plain.steps
        ]
        scaled = run_steps(world, HOOK, chosen, steps)
        for number in range(len(steps)):
            scaled.expect_values(
                number, 0, plain.values(number) * np.float32(factor), f"{factor} times the plain result"
            )


@clauses("PSGD-FEEDBACK")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["error feedback", "both"])
def test_feedback(world: World, case: str) -> None:
    """Each result is the projection of all that was owed: the mean gradients so far minus the earlier results."""
    gradients = [full_rank(world.size, TALL, seed=seed) for seed in range(6)]
    run = run_steps(world, HOOK, options(case, 2), after_vanilla(case, *one_matrix(*gradients)))
    Track(run, 2, 2, feedback=True).expect_projection()


@clauses("PSGD-FEEDBACK-OFF")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["neither", "warm start"])
def test_no_feedback(world: World, case: str) -> None:
    """Without error feedback each result is a projection of the mean gradient alone."""
    gradients = [full_rank(world.size, TALL, seed=seed) for seed in range(4)]
    run = run_steps(world, HOOK, options(case, 2), after_vanilla(case, *one_matrix(*gradients)))
    Track(run, 2, options(case)["start_powerSGD_iter"], feedback=False).expect_projection()


@clauses("PSGD-WARM")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["warm start", "both"])
def test_warm_start(world: World, case: str) -> None:
    """After the first compressed step every result follows from the one before."""
    gradients = [full_rank(world.size, TALL, seed=seed) for seed in range(4)]
    for rank in (1, 2, 4):
        run = run_steps(world, HOOK, options(case, rank), after_vanilla(case, *one_matrix(*gradients)))
        Track(run, rank, 2, feedback=case == "both").expect_predicted()


@clauses("PSGD-MATRIX")
@needs(HOOK, "PowerSGDState")
def test_more_than_two_dimensions(world: World) -> None:
    """Gradients of three to five dimensions are seen as matrices of the first and all other dimensions."""
    shapes = [CONVOLUTION, (12, 4, 5), (8, 2, 2, 3, 2)]
    exact = [bucket(*((shape, low_rank(world.size, shape, 2)) for shape in shapes))]
    rough = [bucket(*((shape, full_rank(world.size, shape)) for shape in shapes))]
    run = run_steps(world, HOOK, options("neither", 2), [exact, rough])
    for part in range(len(shapes)):
        track = Track(run, 2, 0, feedback=False, part=part)
        track.expect_exact(0)
        track.expect_projection(1)
        track.expect_low_rank(1)


@clauses("PSGD-STRIDES")
@needs(HOOK, "PowerSGDState")
def test_channels_last(world: World) -> None:
    """A convolution's gradient in channels_last order is approximated as well as in row-major order.

    That order only moves columns, so in memory order too the result is a projection, exact where the rank is low.
    """
    shape = (12, 4, 3, 2)
    gradients = [low_rank(world.size, shape, 2), *(full_rank(world.size, shape, seed=seed) for seed in range(2))]
    steps = after_vanilla("both", *one_matrix(*gradients, shape=shape))
    run = run_steps(world, HOOK, options("both", 2), steps, channels_last=True)
    track = Track(run, 2, 2, feedback=True)
    track.expect_exact(0)
    track.expect_projection()
    track.expect_predicted()


@clauses("PSGD-BATCH-SAME")
@needs(HOOK, "PowerSGDState.batch_tensors_with_same_shape")
@pytest.mark.parametrize("case", ["rank 1", "rank 2", "rank 4"])
def test_batching(world: World, case: str) -> None:
    """Batched and not, each of several matrices of the same shape gets the result that the gradients so far determine.

    Two steps of low-rank means leave their row spaces as the Qs, however those were drawn.
    """
    rank, shapes = RANKS[case], [TALL, WIDE, TALL, (3,), TALL]
    own = [
        [low_rank(world.size, shape, rank, seed=number) for number, shape in enumerate(shapes)],
        [full_rank(world.size, shape, seed=number) for number, shape in enumerate(shapes)],
    ]
    own[0][3] = own[1][3] = inputs.spread(world.size, 3, "float32")
    settling, rough = ([bucket(*zip(shapes, values, strict=True))] for values in own)
    for batching in (True, False):
        chosen = options("warm start", rank, batch_tensors_with_same_shape=batching)
        run = run_steps(world, HOOK, chosen, after_vanilla("warm start", settling, settling, rough))
        for part in (0, 1, 2, 4):
            track = Track(run, rank, 2, feedback=False, part=part)
            track.expect_exact(0)
            track.expect_predicted(2, before=track.B[1])


@clauses("PSGD-BATCH-SAME", "PSGD-FEEDBACK")
@needs(HOOK, "PowerSGDState.batch_tensors_with_same_shape")
@pytest.mark.parametrize("case", ["error feedback", "both"])
def test_batching_with_feedback(world: World, case: str) -> None:
    """Batched, each of several matrices of the same shape, a convolution among them, is owed what it was not given."""
    shapes = [TALL, CONVOLUTION, TALL, CONVOLUTION]
    steps = [
        [bucket(*((shape, full_rank(world.size, shape, seed=10 * step + n)) for n, shape in enumerate(shapes)))]
        for step in range(4)
    ]
    run = run_steps(world, HOOK, options(case, 2, batch_tensors_with_same_shape=True), after_vanilla(case, *steps))
    for part in range(len(shapes)):
        Track(run, 2, 2, feedback=True, part=part).expect_projection()


@clauses("PSGD-DTYPE")
@needs(HOOK, "PowerSGDState")
def test_dtype(world: World, dtype: str) -> None:
    """Buckets of each dtype are approximated, and the result has their dtype."""
    shape = (8, 6)
    gradients = [
        low_rank(world.size, shape, 1, dtype),
        *(full_rank(world.size, shape, dtype, seed) for seed in range(2)),
    ]
    run = run_steps(world, HOOK, options("both"), after_vanilla("both", *one_matrix(*gradients, shape=shape)), dtype)
    for step in range(len(run.steps)):
        for rank in run.members:
            found, place = run.record(step, 0, rank)["dtype"], run.place(step, 0, rank, "dtype")
            expect_equal(rank, f"the dtype of the result of step {step}", found, dtype, place, "dtype")
    track = Track(run, 1, 2, feedback=True)
    track.expect_projection()
    track.expect_low_rank()


@clauses("PSGD-DTYPE")
@needs(HOOK, "PowerSGDState", "{half.wrapper}")
def test_under_a_wrapper(world: World, half: Half) -> None:
    """Under a compression wrapper the cast gradients are approximated, with the precision of the half type."""
    shape = (8, 6)
    gradients = [inputs.carried(full_rank(world.size, shape, half.dtype, seed), "float32") for seed in range(3)]
    steps = after_vanilla("both", *one_matrix(*gradients, shape=shape))
    run = run_steps(world, f"{half.wrapper}({HOOK})", options("both"), steps)
    track = Track(run, 1, 2, feedback=True, wire=half.dtype)
    assert track.setting.unit_roundoff == float_type(half.dtype).unit_roundoff
    track.expect_projection()
    track.expect_low_rank()
