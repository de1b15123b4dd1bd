"""Buckets over the steps of data-parallel training, as a hook sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from commhooks.conformance import training
from commhooks.conformance.expectations import expect_array
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.training import STEPS, Rank, a_pass, given
from commhooks.conformance.world import World

MEBIBYTE = 2**20
# Six parameters of 64 numbers, two of which fill a bucket; the last one requires no gradient.
SHAPES = ((8, 8),) * 6 + ((3,),)
CAP = 400 / MEBIBYTE
HOOK = "allreduce_hook"
# Of each of SHAPES.
BYTES = {"float64": 512, "bfloat16": 128}
# Two of them fill the first bucket of 1 MiB, and the other three are in the second, of 25 MiB.
LARGE = ((400, 400),) * 5
ONCE = "sorted(sum(found, [])) == [0, 1, 2, 3, 4, 5]"
ORDERS = ([2, 0, 3, 1, 5, 4, 6], [1, 4, 0, 5, 2, 3, 6], [5, 4, 3, 2, 1, 0, 6], [0, 1, 2, 3, 4, 5, 6])


def watch(world: World, hook: str = "unchanged", **arguments: Any) -> list[Rank]:
    """Six passes in which the gradients become ready in another order on each rank."""
    arguments = {"shapes": SHAPES, "frozen": [6], "options": {"bucket_cap_mb": CAP}, **arguments}

    def actions(rank: int) -> Sequence[training.Action]:
        order = ORDERS[rank % len(ORDERS)]
        return [a_pass(given(rank, step, SHAPES), order=order) for step in range(STEPS)]

    return training.run(world, actions, hook=hook, **arguments)


def members(rank: Rank, step: int) -> list[list[int]]:
    """The parameters in each bucket of a step."""
    return [list(bucket["parameters"]) for bucket in rank.record["passes"][step]]


def expect_members(rank: Rank, step: int, expected: list[list[int]]) -> None:
    """Expects the parameters in each bucket of a step."""
    rank.expect_buckets(step, "parameters", f"{expected}", f"found == {expected}", "parameters")


@clauses("DDP-BUCKET-ORDER")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_order(world: World) -> None:
    """The hook is called with the indices 0, 1, 2 and so on in every step."""
    for rank in watch(world):
        for step in range(STEPS):
            rank.expect_buckets(step, "index", "0, 1, 2 and so on", "found == list(range(max(1, len(found))))", "order")


@clauses("DDP-BUCKET-LAST")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_last(world: World) -> None:
    """is_last() is true for the last call of a step and for no other."""
    for rank in watch(world):
        for step in range(STEPS):
            holds = "found == [False] * (len(found) - 1) + [True]"
            rank.expect_buckets(step, "is_last", "True for the last alone", holds, "last")


@clauses("DDP-BUCKET-ONCE")
@needs("DistributedDataParallel")
@worlds(1, 2)
def test_once(world: World) -> None:
    """Each parameter that requires a gradient is in one bucket once, in every step, and no other parameter is."""
    for rank in watch(world):
        for step in range(STEPS):
            rank.expect_buckets(step, "parameters", "each of 0 to 5 once", ONCE, "parameters")
        rank.expect_gradients(STEPS - 1, [*given(rank.rank, STEPS - 1, SHAPES)[:6], None], "at the end")


@clauses("DDP-BUCKET-CONTENTS")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_contents(world: World) -> None:
    """buffer() has the rank's own gradients of the step, one parameter after the other, undivided."""
    for rank in watch(world, hook=HOOK):
        for step, buckets in enumerate(rank.record["passes"][:-1]):
            local = given(rank.rank, step, SHAPES)
            for number, bucket in enumerate(buckets):
                expected = np.concatenate([local[place].ravel() for place in bucket["parameters"]])
                where = f"buffer() of bucket {number} in step {step}"
                place = f'{rank.place}["passes"][{step}][{number}]["buffer"]'
                expect_array(rank.rank, where, bucket["buffer"], expected, place)


@clauses("DDP-HOOK-NO-GRAD")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_no_grad(world: World) -> None:
    """When the hook is called, nothing that it does is recorded for a backward pass."""
    for rank in watch(world):
        for step in range(STEPS):
            rank.expect_buckets(step, "records", "False: no gradients are recorded", "not any(found)", "grad mode")


@clauses("DDP-BUCKET-PARAMETERS")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_parameters(world: World) -> None:
    """parameters() has the very parameters of the model."""
    for rank in watch(world):
        for step in range(STEPS):
            holds = "-1 not in sum(found, [])"
            rank.expect_buckets(step, "parameters", "nothing but the model's parameters", holds, "parameters")


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no dimension and no elements": {"shapes": ((), (0, 4), (3,), (2, 2))},
    "channels_last": {"shapes": ((2, 3, 2, 2), (4,)), "channels_last": True},
    "complex": {"shapes": ((3, 2), (4,)), "dtypes": ["complex64"] * 2},
}


@clauses("DDP-BUCKET-GRADIENTS")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", KINDS)
def test_gradients(world: World, case: str) -> None:
    """gradients() has the rank's own gradient of each of parameters(), in every step."""
    kind = {"shapes": training.SHAPES, **KINDS[case]}

    def local(rank: int, step: int) -> training.Gradients:
        return given(rank, step, kind["shapes"], pairs=case == "complex")

    ranks = training.run(world, lambda rank: [a_pass(local(rank, step)) for step in range(3)], hook="unchanged", **kind)
    for rank in ranks:
        for step, buckets in enumerate(rank.record["passes"][:-1]):
            for bucket in buckets:
                pairs = list(zip(bucket["parameters"], bucket["gradients"], strict=True))
                for number, (parameter, gradient) in enumerate(pairs):
                    name = f"gradients()[{number}] of bucket {bucket['index']} in step {step}"
                    place = f'{rank.place}["passes"][{step}][{bucket["index"]}]["gradients"][{number}]'
                    expect_array(rank.rank, name, gradient, local(rank.rank, step)[parameter].ravel(), place)


@clauses("DDP-BUCKET-SAME-ORDER")
@needs("DistributedDataParallel")
@worlds(2, 3)
def test_same_order(world: World) -> None:
    """All ranks have the same parameters in the same buckets, whichever gradients become ready first."""
    first, *others = watch(world, hook=HOOK)
    for other in others:
        for step in range(STEPS):
            expect_members(other, step, members(first, step))


@clauses("DDP-REBUILD-ORDER")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_rebuild_order(world: World) -> None:
    """From the second step on the parameters are in the order in which they became ready on rank 0 in the first."""
    for rank in watch(world):
        for step in range(1, STEPS):
            holds = f"sum(found, []) == {ORDERS[0][:6]}"
            rank.expect_buckets(step, "parameters", f"the order {ORDERS[0][:6]}", holds, "order")


@clauses("DDP-REBUILD-ONCE")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_rebuild_once(world: World) -> None:
    """From the second step on the buckets stay as they are, although the order of readiness changes."""

    def actions(rank: int) -> Sequence[training.Action]:
        orders = [ORDERS[step % 4] for step in range(STEPS)]
        return [a_pass(given(rank, step, SHAPES), order=order) for step, order in enumerate(orders)]

    for rank in training.run(
        world, actions, hook="unchanged", shapes=SHAPES, frozen=[6], options={"bucket_cap_mb": CAP}
    ):
        for step in range(2, STEPS):
            expect_members(rank, step, members(rank, 1))


@clauses("DDP-REBUILD-UNUSED")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_rebuild_with_unused_parameters(world: World) -> None:
    """With find_unused_parameters the buckets of the first step stay."""
    for rank in watch(world, options={"bucket_cap_mb": CAP, "find_unused_parameters": True}):
        for step in range(1, STEPS):
            expect_members(rank, step, members(rank, 0))


@clauses("DDP-BUCKET-KINDS")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_kinds(world: World) -> None:
    """All parameters of a bucket have its dtype."""
    dtypes = ["float32", "float64", "float32", "bfloat16", "float64", "float32", "float32"]
    for rank in watch(world, dtypes=dtypes, options={}):
        for step in range(STEPS):
            kinds = f"all(len({{{dtypes}[place] for place in one}}) == 1 for one in found)"
            rank.expect_buckets(step, "parameters", f"parameters of one dtype, of {dtypes}", kinds, "dtype")
            found = [dtypes[bucket["parameters"][0]] for bucket in rank.record["passes"][step]]
            rank.expect_buckets(step, "dtype", f"{found}", f"found == {found}", "dtype")


@clauses("DDP-BUCKET-CAP")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", BYTES)
def test_cap(world: World, case: str) -> None:
    """From the second step on no bucket takes another parameter when it has bucket_cap_mb."""
    for rank in watch(world, dtypes=[case] * len(SHAPES)):
        for step in range(1, STEPS):
            holds = f"all({BYTES[case]} * (len(one) - 1) < 400 for one in found)"
            rank.expect_buckets(step, "parameters", "less than 400 bytes without the last one", holds, "size")


@clauses("DDP-BUCKET-SIZES")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["with bucket_cap_mb", "without", *(f"of {dtype}" for dtype in BYTES)])
def test_sizes(world: World, case: str) -> None:
    """Each bucket but the last is filled up to its cap: the first to 1 MiB and others to 25 MiB by default."""
    if case == "with bucket_cap_mb":
        ranks, expected = watch(world), [2, 2, 2]
    elif case.startswith("of "):
        dtype = case.removeprefix("of ")
        together = -(-400 // BYTES[dtype])
        ranks = watch(world, dtypes=[dtype] * len(SHAPES))
        expected = [len(range(6)[start : start + together]) for start in range(0, 6, together)]
    else:
        ranks, expected = large(world), [2, 3]
    for rank in ranks:
        for step in range(1, len(rank.record["notes"])):
            holds = f"[len(one) for one in found] == {expected}"
            rank.expect_buckets(step, "parameters", f"buckets of {expected} parameters", holds, "size")


def large(world: World) -> list[Rank]:
    """Three passes with five parameters of 625 KiB; the gradients are 1 on rank 0 and 2 on rank 1."""

    def actions(rank: int) -> Sequence[training.Action]:
        return [a_pass([1.0 + rank] * 5)] * 3

    return training.run(world, actions, hook=HOOK, shapes=LARGE, contents=False, shared=True)


@clauses("DDP-HOOK-RESULT")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
def test_large_buckets(world: World) -> None:
    """In buckets of more than 1 MiB, too, the gradients are what the hook gives."""
    for rank in large(world):
        rank.expect_gradients(2, [np.full(shape, 1.5) for shape in LARGE], "in step 2")


@clauses("DDP-FIRST-PASS")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_first_pass(world: World, note: Callable[[str], None]) -> None:
    """In the first step each parameter is in one bucket, whichever that is."""
    for rank in watch(world):
        rank.expect_buckets(0, "parameters", "each of 0 to 5 once", ONCE, "parameters")
        if rank.rank == 0:
            note(f"buckets of the first step: {members(rank, 0)}")


@clauses("DDP-BUCKET-FRESH")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_fresh(world: World) -> None:
    """A buffer that the hook puts into its bucket is gone in the next step."""
    for rank in watch(world, hook="replacing"):
        for step in range(STEPS):
            rank.expect_gradients(step, [*given(rank.rank, step, SHAPES)[:6], None], f"in step {step}")


@clauses("DDP-OVERLAP")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_overlap(world: World) -> None:
    """A bucket is handed to the hook before the gradients of the next bucket are computed."""
    shapes = ((8, 8),) * 4
    actions = [a_pass([1.0] * 4, order=[3, 2, 1, 0])] * 3
    ranks = training.run(
        world, lambda _: actions, hook="unchanged", shapes=shapes, options={"bucket_cap_mb": 200 / MEBIBYTE}
    )
    expected = [word for number in range(4) for word in (f"gradient {3 - number}", f"hook {number}")]
    for rank in ranks:
        for step in (1, 2):
            course = rank.record["courses"][step]
            rank.expect(f"the course of step {step}", course, expected, f'["courses"][{step}]', "order")
