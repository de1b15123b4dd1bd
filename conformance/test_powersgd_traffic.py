"""powerSGD_hook: what is compressed and what is not, how it is counted, and what goes over the wire."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from commhooks.conformance import averages, inputs
from commhooks.conformance.cells import ClauseFailure, Unsupported
from commhooks.conformance.expectations import expect_equal, expect_unchanged, expect_within
from commhooks.conformance.expected import deviation, float_type, mean
from commhooks.conformance.low_rank import (
    BATCHED,
    HOOK,
    Gradients,
    Run,
    after_vanilla,
    bucket,
    full_rank,
    low_rank,
    options,
    run_steps,
)
from commhooks.conformance.marks import clauses, dtypes, needs, worlds
from commhooks.conformance.observations import Call
from commhooks.conformance.tracks import Track
from commhooks.conformance.world import World

# Where log records with both counts are, as an expression for the reproduction script.
LOGGED = """[
    (step, number) for step, buckets in enumerate({}) for number, one in enumerate(buckets)
    for level, text in one["log"]
    if level == "INFO" and one["stats"][2] > 0 and all(str(int(count)) in text for count in one["stats"][1:])
]"""
BIG, ROW, VECTOR = (24, 16), (1, 6), (33,)


def mixed(world: World, seed: int, dtype: str = "float32") -> list[Gradients]:
    """A step of one bucket with a vector, a large matrix, one of a single row, and another large one."""
    return [
        bucket(
            (VECTOR, inputs.spread(world.size, 33, dtype, seed)),
            (BIG, full_rank(world.size, BIG, dtype, seed)),
            (ROW, inputs.spread(world.size, 6, dtype, seed)),
            ((16, 12), full_rank(world.size, (16, 12), dtype, seed)),
        )
    ]


def expect_stats(run: Run, step: int, number: int, before: int, after: int) -> None:
    """Expects the two counts after a call, on every rank."""
    for rank in run.members:
        found, place = run.record(step, number, rank)["stats"], run.place(step, number, rank, "stats")
        name = f"compression_stats()[1:] after step {step}, bucket {number},"
        expect_equal(rank, name, list(found[1:]), [before, after], f"list({place}[1:])", "count")


@clauses("PSGD-UNCOMPRESSED")
@needs(HOOK, "PowerSGDState")
@dtypes("float32", "float64")
def test_uncompressed(world: World, dtype: str) -> None:
    """What is not compressed is averaged, in each of several steps with error feedback.

    In the first the bound is that of an average. Later a hook may add what the gradients of a rank so far differed
    from their means, since the mean of that is zero. Then it rounds numbers as large as all these together: once when
    it adds, once when it subtracts the mean, and as an average does in this step and the one before.
    """
    steps = after_vanilla("both", *(mixed(world, seed, dtype) for seed in range(4)))
    run = run_steps(world, HOOK, options("both", 2), steps, dtype)
    unit = float_type(dtype).unit_roundoff
    for part in (0, 2):
        carried = np.zeros(run.part(2, 0, part)[1].shape[1])
        for step in range(2, len(run.steps)):
            calls, gradients = run.part(step, 0, part)
            carried = carried + np.abs(gradients).mean(axis=0) + np.abs(mean(gradients))
            if step == 2:
                averages.expect_mean(calls, gradients, dtype)
                continue
            bound = 2 * np.expm1((len(gradients) + 4) * np.log1p(unit)) * carried
            for call in calls:
                expect_within(call, mean(gradients), deviation(call.values, gradients), bound)


@clauses("PSGD-VECTOR")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["rate 0", "rate 0.5"])
def test_vectors(world: World, case: str) -> None:
    """A vector is averaged, not approximated, and counted so, however low the minimum compression rate is."""
    step = [bucket((BIG, full_rank(world.size, BIG)), ((64,), inputs.spread(world.size, 64, "float32")))]
    chosen = options("neither", min_compression_rate=float(case.split()[1]))
    run = run_steps(world, HOOK, chosen, [step])
    expect_stats(run, 0, 0, 384 + 64, 40 + 64)
    Track(run, 1, 0, feedback=False).expect_low_rank()
    calls, gradients = run.part(0, 0, 1)
    averages.expect_mean(calls, gradients, run.dtype)


@clauses("PSGD-THRESHOLD")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["rank 1, rate 4", "rank 2, rate 2", "rank 2, rate 1.99", "rank 2, rate 2.01"])
def test_threshold(world: World, case: str) -> None:
    """Matrices are compressed below the threshold, and averaged at it and above.

    (rows + columns) * rank * rate is against rows * columns: 18 * rank * rate against 72 for 6 by 12, for example.
    """
    rank, rate = (float(part.split()[1]) for part in case.split(", "))
    shapes = [(12, 12), (6, 12), (12, 6), (4, 12)]
    step = [bucket(*((shape, full_rank(world.size, shape)) for shape in shapes))]
    run = run_steps(world, HOOK, options("neither", int(rank), min_compression_rate=rate), [step])
    for part, (rows, columns) in enumerate(shapes):
        if (rows + columns) * rank * rate < rows * columns:
            Track(run, int(rank), 0, feedback=False, part=part).expect_low_rank()
        else:
            calls, gradients = run.part(0, 0, part)
            averages.expect_mean(calls, gradients, run.dtype)


@clauses("PSGD-STATS-NONE")
@needs(HOOK, "PowerSGDState")
def test_stats_before_compression(world: World) -> None:
    """Before compression starts all three numbers are zero."""
    run = run_steps(world, HOOK, options("both", start_powerSGD_iter=3), [mixed(world, seed) for seed in range(3)])
    for rank in run.members:
        place = f'results[{run.program}][{rank}]["start_stats"]'
        expect_equal(rank, "compression_stats() at first", run.results[rank]["start_stats"], [0, 0, 0], place, "count")
        for step in range(3):
            place = run.place(step, 0, rank, "stats")
            found = run.record(step, 0, rank)["stats"]
            expect_equal(rank, f"compression_stats() after step {step}", found, [0, 0, 0], place, "count")


@clauses("PSGD-STATS-COUNT")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["rank 1", "rank 2", "rank 4"])
def test_stats_count(world: World, case: str) -> None:
    """Elements are counted before and after compression, from the first compressed step on, over several buckets."""
    rank = int(case[-1])
    one = mixed(world, 0)[0]
    two = bucket(((4, 3, 8), full_rank(world.size, (4, 3, 8))), ((5,), inputs.spread(world.size, 5, "float32")))
    run = run_steps(world, HOOK, options("both", rank), after_vanilla("both", *[[one, two]] * 2))
    first = (33 + 384 + 6 + 192, 33 + 40 * rank + 6 + 28 * rank)
    second = (96 + 5, (28 * rank if 28 * rank < 96 else 96) + 5)
    before = after = 0
    for step in (2, 3):
        for number, (held, sent) in enumerate((first, second)):
            before, after = before + held, after + sent
            expect_stats(run, step, number, before, after)


@clauses("PSGD-STATS-RATE")
@needs(HOOK, "PowerSGDState")
def test_stats_rate(world: World) -> None:
    """The rate is the number of elements before compression divided by the number after."""
    run = run_steps(world, HOOK, options("neither", 2), [mixed(world, seed) for seed in range(2)])
    for step in range(2):
        for rank in run.members:
            rate, before, after = run.record(step, 0, rank)["stats"]
            if after <= 0 or abs(rate - before / after) > 1e-9 * rate:
                raise ClauseFailure(
                    "rate",
                    f"rank {rank}, step {step}: the rate is {rate!r}, of {before:g} elements and {after:g}",
                    expected=repr(before / after) if after else "a number of elements after compression",
                    found=repr(rate),
                    place=run.place(step, 0, rank, "stats"),
                    holds="found[2] > 0 and abs(found[0] - found[1] / found[2]) <= 1e-9 * found[0]",
                )


@clauses("PSGD-STATS-LOG")
@needs(HOOK, "PowerSGDState")
@worlds(at_most=2)
@pytest.mark.parametrize("case", ["every step", "every 3 steps", "default", "every step, a vector in the last bucket"])
def test_stats_log(world: World, case: str) -> None:
    """The counts are in a log record of level INFO at the end of the first compressed step, and each so many later."""
    case, _, vector = case.partition(", ")
    frequency = {"every step": 1, "every 3 steps": 3, "default": 10_000}[case]
    chosen = options("both", 2, **({} if case == "default" else {"compression_stats_logging_frequency": frequency}))
    step = [bucket(((12, 8), full_rank(world.size, (12, 8), seed=seed))) for seed in range(2)]
    if vector:
        step[1] = bucket(((7,), inputs.spread(world.size, 7, "float32", reach=2)))
    expect_logged(run_steps(world, HOOK, chosen, [step] * 7, keep_log=True), frequency)


@clauses("PSGD-STATS-LOG")
@needs(BATCHED, "PowerSGDState")
@worlds(at_most=2)
@pytest.mark.parametrize("case", [BATCHED])
def test_stats_log_of_batched(world: World, case: str) -> None:
    """batched_powerSGD_hook logs the counts as powerSGD_hook does."""
    step = [bucket(((12, 8), full_rank(world.size, (12, 8), seed=seed))) for seed in range(2)]
    chosen = options("both", 2, compression_stats_logging_frequency=3)
    expect_logged(run_steps(world, case, chosen, [step] * 7, keep_log=True), frequency=3)


def expect_logged(run: Run, frequency: int) -> None:
    """Expects a record of the counts in the last bucket of the third of seven steps, and of each so many later."""
    expected = [(2 + number, 1) for number in range(0, 5, frequency)]
    for rank in run.members:
        logged = [
            (step, number)
            for step in range(7)
            for number in range(2)
            for level, text in run.record(step, number, rank)["log"]
            if level == "INFO" and _has_counts(text, run.record(step, number, rank)["stats"])
        ]
        place = f'results[{run.program}][{rank}]["steps"]'
        expect_equal(
            rank, "(step, bucket) of each record with the counts", logged, expected, LOGGED.format(place), "log"
        )


def _has_counts(text: str, stats: Sequence[float]) -> bool:
    numbers = {number.replace(",", "").replace("_", "") for number in re.findall(r"\d[\d,_]*", text)}
    return stats[2] > 0 and {str(int(count)) for count in stats[1:]} <= numbers


def collectives(run: Run, step: int, number: int, rank: int) -> list[str]:
    """The collectives of a call.

    Raises:
        Unsupported: They cannot be seen, because they are started in a way that leaves no note.
    """
    seen = run.record(step, number, rank)["collectives"]
    if not seen:
        raise Unsupported("its collectives cannot be seen: it does not start them by functions of torch.distributed")
    return list(seen)


@clauses("PSGD-WIRE")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["float32", "float16"])
def test_wire(world: World, case: str) -> None:
    """A compressed step sends all uncompressed gradients, all P and all Q, each in one allreduce, and nothing else."""
    steps = after_vanilla("both", *(mixed(world, seed, case) for seed in range(2)))
    run = run_steps(world, HOOK, options("both", 2), steps, case, watch=True)
    for step in (2, 3):
        expect_batches(run, step, case)


def expect_batches(run: Run, step: int, dtype: str) -> None:
    """Expects of a compressed step of ``mixed`` three allreduces: of what is not compressed, of all P and of all Q."""
    expected = sorted(f"all_reduce {dtype}[{count}]" for count in (33 + 6, 2 * (24 + 16), 2 * (16 + 12)))
    for rank in run.members:
        found = [text for text in collectives(run, step, 0, rank) if not text.endswith("[0]")]
        place = f'sorted(text for text in {run.place(step, 0, rank, "collectives")} if not text.endswith("[0]"))'
        expect_equal(rank, f"what is sent in step {step}", sorted(found), expected, place, "wire")


@clauses("PSGD-WIRE")
@needs(HOOK, "PowerSGDState.batch_tensors_with_same_shape")
@worlds(2, 2)
def test_wire_of_batches(world: World) -> None:
    """With tensors batched by their shape, too, all P are sent in one allreduce and all Q in another."""
    steps = after_vanilla("both", mixed(world, 0), mixed(world, 1))
    run = run_steps(world, HOOK, options("both", 2, batch_tensors_with_same_shape=True), steps, watch=True)
    expect_batches(run, 2, "float32")


@clauses("PSGD-WIRE-EMPTY")
@needs(HOOK, "PowerSGDState")
@pytest.mark.parametrize("case", ["only matrices", "no matrices"])
def test_nothing_to_send(world: World, case: str) -> None:
    """Where all gradients or none are compressed, no empty batch is sent."""
    step = [bucket((BIG, full_rank(world.size, BIG)))] if case == "only matrices" else [
        bucket((VECTOR, inputs.spread(world.size, 33, "float32")))
    ]  # fmt: skip
    run = run_steps(world, HOOK, options("neither", 2), [step], watch=True)
    for rank in run.members:
        empty = [text for text in collectives(run, 0, 0, rank) if text.endswith("[0]")]
        place = f'[text for text in {run.place(0, 0, rank, "collectives")} if text.endswith("[0]")]'
        expect_equal(rank, "what is sent without elements", empty, [], place, "wire")


@clauses("PSGD-GROUP")
@needs(HOOK, "PowerSGDState", "subgroups")
@worlds(at_least=2)
@pytest.mark.parametrize("case", averages.groups(2))
def test_group(world: World, case: str) -> None:
    """With a subgroup its members get the approximation of their own mean, and all other ranks keep what they have."""
    members = averages.groups(world.size)[case]
    exact = low_rank(len(members), BIG, 2)
    vector = inputs.spread(world.size, 7, "float32", reach=2)
    own = full_rank(world.size, BIG, seed=5).copy()
    own[members] = exact
    steps = after_vanilla("both", *[[bucket((BIG, own), ((7,), vector))]] * 2)
    run = run_steps(world, HOOK, options("both", 2), steps, members=members)
    Track(run, 2, 2, feedback=True).expect_exact(0)
    calls, gradients = run.part(2, 0, 1)
    averages.expect_mean(calls, gradients, run.dtype)
    for rank in set(range(world.size)) - set(members):
        call = Call(rank, run.record(2, 0, rank), run.place(2, 0, rank).removesuffix('["values"]'))
        expect_unchanged(call, run.steps[2][0].values[rank], "values", "on a rank outside the group")


@clauses("PSGD-NONE-IS-WORLD")
@needs(HOOK, "PowerSGDState")
def test_none_is_world(world: World) -> None:
    """Without a process group the result is that with the world group: of the mean over all ranks, bit for bit."""
    steps = after_vanilla("both", [bucket((BIG, low_rank(world.size, BIG, 2)))], mixed(world, 0), mixed(world, 1)[:1])
    steps = [steps[0], steps[1], steps[2], steps[0], steps[0]]
    with_none = run_steps(world, HOOK, options("both", 2), steps, group_as="none")
    with_group = run_steps(world, HOOK, options("both", 2), steps, group_as="group")
    Track(with_none, 2, 2, feedback=True).expect_exact(0)
    if world.size <= 2:
        for step in range(len(steps)):
            with_none.expect_values(step, 0, with_group.values(step), "the result with the world group")
