"""fp16_compress_wrapper and bf16_compress_wrapper: any hook, on a bucket in half precision."""

from __future__ import annotations

import numpy as np

from commhooks.conformance import averages, inputs
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_equal, expect_member, expect_same
from commhooks.conformance.expected import FloatArray, casts, round_to, same_value
from commhooks.conformance.marks import HALVES, Half, clauses, needs
from commhooks.conformance.observations import call_hook, look_inside_wrapper
from commhooks.conformance.world import World

REACH = 5
SHAPES = [[3, 4], [], [0, 2], [5]]


@clauses("{half.prefix}-WRAPPER-IDENTITY")
@needs("{half.hook}", "{half.wrapper}", "allreduce_hook")
def test_identity(world: World, half: Half, dtype: str) -> None:
    """The wrapper around allreduce_hook equals the compress hook, bit for bit, at the ends of the range too."""
    gradients = inputs.spread(world.size, 513, dtype, reach=REACH)
    ends = inputs.carried(np.array([1e5, 60000.0, 6e-8, 3.4e38, np.inf, np.nan, 9e-41, -0.0]), dtype)
    gradients[:, : len(ends)] = ends
    compressed = call_hook(world, half.hook, dtype, gradients)
    expect_same(call_hook(world, f"{half.wrapper}(allreduce_hook)", dtype, gradients), compressed, half.hook, dtype)


@clauses("{half.prefix}-WRAPPER-INNER")
@needs("{half.wrapper}")
def test_inner(world: World, half: Half, dtype: str) -> None:
    """The inner hook sees the half-precision cast as buffer and as gradients, the bucket's place, and the state."""
    gradients = inputs.spread(world.size, inputs.numel(SHAPES), dtype, reach=REACH)
    outcome = look_inside_wrapper(world, half.wrapper, dtype, gradients, SHAPES)
    for rank, result in enumerate(outcome.results):
        place = f'results[{outcome.program}][{rank}]["seen"]'
        seen = result["seen"]
        if not seen:
            raise ClauseFailure("not called", f"rank {rank}: the inner hook was not called", place=place, holds="found")
        buffer = seen["buffer"]
        expect_equal(
            rank, "the inner buffer's dtype", buffer["dtype"], half.dtype, f'{place}["buffer"]["dtype"]', "dtype"
        )
        expect_cast(rank, buffer["values"], gradients[rank], dtype, half, f'{place}["buffer"]["values"]')
        start = 0
        expect_equal(
            rank,
            "the number of inner gradients",
            len(seen["gradients"]),
            len(SHAPES),
            f'len({place}["gradients"])',
            "gradients",
        )
        for number, (view, shape) in enumerate(zip(seen["gradients"], SHAPES, strict=True)):
            here = f'{place}["gradients"][{number}]'
            expect_equal(rank, f"gradient {number}'s dtype", view["dtype"], half.dtype, f'{here}["dtype"]', "dtype")
            expect_equal(rank, f"gradient {number}'s shape", view["shape"], shape, f'{here}["shape"]', "shape")
            own = gradients[rank][start : start + view["values"].size]
            expect_cast(rank, view["values"].ravel(), own, dtype, half, f'{here}["values"].ravel()')
            start += view["values"].size
        expect_equal(rank, "the inner bucket's index", seen["index"], 0, f'{place}["index"]', "bucket")
        expect_equal(rank, "the inner bucket's is_last", seen["is_last"], True, f'{place}["is_last"]', "bucket")
        expect_equal(rank, "getting the very state", seen["same_state"], True, f'{place}["same_state"]', "state")


@clauses("{half.prefix}-WRAPPER-DTYPE")
@needs("{half.wrapper}")
def test_dtype(world: World, half: Half, dtype: str) -> None:
    """The result has the dtype of the bucket's own buffer."""
    gradients = inputs.spread(world.size, inputs.numel(SHAPES), dtype, reach=REACH)
    for call in look_inside_wrapper(world, half.wrapper, dtype, gradients, SHAPES).first:
        expect_equal(call.rank, "the result's dtype", call.dtype, dtype, f'{call.place}["dtype"]', "dtype")


@clauses("{half.prefix}-WRAPPER-NOOP")
@needs("{half.wrapper}", "noop_hook")
def test_noop(world: World, half: Half, dtype: str) -> None:
    """Around noop_hook each rank gets its own gradients, cast to the half type and back."""
    gradients = inputs.spread(world.size, 64, dtype, reach=REACH)
    for call in call_hook(world, f"{half.wrapper}(noop_hook)", dtype, gradients).first:
        allowed = [round_to(sent, dtype) for sent in casts(gradients[call.rank], dtype, half.dtype)]
        member = np.any([same_value(call.values.astype(np.float64), values) for values in allowed], axis=0)
        expect_member(call, member, allowed)


@clauses("{half.prefix}-WRAPPER-NEST")
@needs("fp16_compress_wrapper", "bf16_compress_wrapper", "noop_hook")
def test_nest(world: World, half: Half, dtype: str) -> None:
    """Around the other wrapper the gradients are cast to both half types, the outer wrapper's first."""
    other = next(one for one in HALVES if one != half)
    gradients = inputs.spread(world.size, 64, dtype, reach=REACH)
    for call in call_hook(world, f"{half.wrapper}({other.wrapper}(noop_hook))", dtype, gradients).first:
        allowed = [
            round_to(round_to(round_to(sent, other.dtype), half.dtype), dtype)
            for sent in casts(gradients[call.rank], dtype, half.dtype)
        ]
        member = np.any([same_value(call.values.astype(np.float64), values) for values in allowed], axis=0)
        expect_member(call, member, allowed)


@clauses("{half.prefix}-WRAPPER-REUSE")
@needs("{half.wrapper}", "allreduce_hook")
def test_reuse(world: World, half: Half, dtype: str) -> None:
    """A bucket object that serves three steps gives each step's mean, and has its own buffer back after each."""
    steps = [inputs.spread(world.size, 33, dtype, seed=step, reach=REACH) for step in range(3)]
    outcome = call_hook(world, f"{half.wrapper}(allreduce_hook)", dtype, *steps, same_bucket=True)
    for calls, gradients in zip(outcome.calls, steps, strict=True):
        for call in calls:
            call.require_tensor()
            restored = call.record["buffer_restored"]
            place = f'{call.place}["buffer_restored"]'
            expect_equal(call.rank, "having its own buffer back", restored, True, place, "bucket")
        averages.expect_mean(calls, gradients, dtype, half.dtype)


def expect_cast(rank: int, found: FloatArray, own: FloatArray, dtype: str, half: Half, place: str) -> None:
    """Expects values that are the cast of a rank's own gradients to the half type."""
    allowed = casts(own, dtype, half.dtype)
    good = np.any([same_value(found.astype(np.float64), values) for values in allowed], axis=0)
    if not good.all():
        element = int(np.argmin(good))
        expected = sorted({float(values[element]) for values in allowed})
        raise ClauseFailure(
            "value",
            f"rank {rank}, element {element}: the inner hook saw {float(found[element])!r}, the cast of"
            f" {float(own[element])!r} is {expected[0]!r}",
            expected=repr(expected[0]),
            found=repr(float(found[element])),
            place=f"{place}[{element}]",
            holds=f"float(found) in {expected!r}",
        )
