"""GradBucket: the flat buffer, and the gradients in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commhooks.conformance import inputs
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_array, expect_equal
from commhooks.conformance.expected import FloatArray
from commhooks.conformance.marks import clauses, dtypes, needs
from commhooks.conformance.observations import run_program
from commhooks.conformance.programs import buckets
from commhooks.conformance.world import World

SHAPES: dict[str, list[list[int]]] = {
    "one vector": [[5]],
    "one element": [[1]],
    "matrix and bias": [[3, 4], [3]],
    "no dimension": [[], [2], []],
    "empty parameters": [[0], [2, 2], [0, 3], [1]],
    "odd sizes": [[7], [1, 1, 1], [3, 1, 5], [2, 3, 2, 2]],
    "many parameters": [[index % 4 + 1, 2] for index in range(60)],
}
shape_cases = pytest.mark.parametrize("case", SHAPES)


def numbers(case: str) -> FloatArray:
    """A different number for each element of the buffer; all dtypes hold them."""
    return np.arange(1, inputs.numel(SHAPES[case]) + 1, dtype=np.float32) % 251


def examine(world: World, dtype: str, case: str, **arguments: Any) -> list[tuple[int, str, Any]]:
    """Builds and examines a bucket on every rank; gives each rank's number, place and record."""
    results, number = run_program(
        world, buckets.examine_bucket, shared=True, dtype=dtype, shapes=SHAPES[case], values=numbers(case), **arguments
    )
    return [(rank, f"results[{number}][{rank}]", record) for rank, record in enumerate(results)]


@clauses("BUCKET-INDEX")
@needs("GradBucket")
@dtypes("float32")
@pytest.mark.parametrize("case", ["0 of 1", "0 of 3", "1 of 3", "2 of 3"])
def test_index(world: World, dtype: str, case: str) -> None:
    """index() is the bucket's place, for the first, a middle and the last bucket."""
    index, count = int(case[0]), int(case[-1])
    for rank, place, record in examine(world, dtype, "matrix and bias", index=index, is_last=index == count - 1):
        expect_equal(rank, "index()", record["index"], ["int", index], f'{place}["index"]', "index")


@clauses("BUCKET-IS-LAST")
@needs("GradBucket")
@dtypes("float32")
@pytest.mark.parametrize("case", ["0 of 1", "0 of 3", "1 of 3", "2 of 3"])
def test_is_last(world: World, dtype: str, case: str) -> None:
    """is_last() is true for the last bucket only, whatever its index."""
    index, count = int(case[0]), int(case[-1])
    last = index == count - 1
    for rank, place, record in examine(world, dtype, "matrix and bias", index=index, is_last=last):
        expect_equal(rank, "is_last()", record["is_last"], ["bool", last], f'{place}["is_last"]', "is_last")


@clauses("BUCKET-BUFFER")
@needs("GradBucket")
@dtypes("float32", "bfloat16")
@shape_cases
def test_buffer(world: World, dtype: str, case: str) -> None:
    """buffer() is flat, contiguous, of the right length and dtype, and the same memory at each call."""
    for rank, place, record in examine(world, dtype, case):
        buffer = record["buffer"]
        expect_equal(
            rank, "buffer()'s shape", buffer["shape"], [len(numbers(case))], f'{place}["buffer"]["shape"]', "shape"
        )
        expect_equal(rank, "buffer()'s dtype", buffer["dtype"], dtype, f'{place}["buffer"]["dtype"]', "dtype")
        here = f'{place}["buffer"]["contiguous"]'
        expect_equal(rank, "buffer() being contiguous", buffer["contiguous"], True, here, "layout")
        expect_equal(
            rank, "giving the same memory again", record["same_memory"], True, f'{place}["same_memory"]', "memory"
        )
        expect_array(rank, "buffer()", buffer["values"], numbers(case), f'{place}["buffer"]["values"]')


@clauses("BUCKET-GRADIENT-SHAPES")
@needs("GradBucket")
@dtypes("float32", "bfloat16")
@shape_cases
def test_gradient_shapes(world: World, dtype: str, case: str) -> None:
    """gradients() has a tensor for each parameter, with its shape and the buffer's dtype."""
    for rank, place, record in examine(world, dtype, case):
        found = [gradient["shape"] for gradient in record["gradients"]]
        expect_equal(rank, "the gradients' shapes", found, SHAPES[case], _each(place, "gradients", "shape"), "shape")
        kinds = sorted({gradient["dtype"] for gradient in record["gradients"]})
        expect_equal(
            rank, "the gradients' dtype", kinds, [dtype], f"sorted(set({_each(place, 'gradients', 'dtype')}))", "dtype"
        )


@clauses("BUCKET-GRADIENT-VIEWS")
@needs("GradBucket")
@dtypes("float32", "bfloat16")
@shape_cases
def test_gradient_views(world: World, dtype: str, case: str) -> None:
    """A number written to a gradient shows in the buffer, and one written to the buffer shows in the gradient."""
    for rank, place, record in examine(world, dtype, case):
        here = f'{place}["written_to_gradients"]'
        expect_array(rank, "buffer() after writing to the gradients", record["written_to_gradients"], marks(case), here)
        for number, (values, part) in enumerate(zip(record["written_to_buffer"], parts(case), strict=False)):
            here = f'{place}["written_to_buffer"][{number}].ravel()'
            expect_array(rank, f"gradient {number} after writing to the buffer", values.ravel(), part, here)


@clauses("BUCKET-GRADIENT-COVER")
@needs("GradBucket")
@dtypes("float32", "bfloat16")
@shape_cases
def test_gradient_cover(world: World, dtype: str, case: str) -> None:
    """The gradients one after the other are the buffer, each element once."""
    for rank, place, record in examine(world, dtype, case):
        found = [gradient["values"].ravel() for gradient in record["gradients"]]
        together = np.concatenate([*found, np.zeros(0, np.float32)])
        here = f'np.concatenate([one["values"].ravel() for one in {place}["gradients"]])'
        expect_array(rank, "the gradients one after the other", together, numbers(case), here)


@clauses("BUCKET-LAYOUT")
@needs("GradBucket")
@dtypes("float32")
def test_layout(world: World, dtype: str) -> None:
    """The gradient of a channels_last parameter has that parameter's strides."""
    shapes = [[2, 3, 4, 5], [4, 2, 3, 3]]
    values = np.arange(inputs.numel(shapes), dtype=np.float32)
    results, number = run_program(
        world, buckets.examine_bucket, dtype=dtype, shapes=shapes, values=values, channels_last=True
    )
    for rank, record in enumerate(results):
        strides = [gradient["stride"] for gradient in record["gradients"]]
        place = _each(f"results[{number}][{rank}]", "gradients", "stride")
        expect_equal(rank, "the gradients' strides", strides, record["parameter_strides"], place, "strides")


@clauses("BUCKET-PARAMETERS")
@needs("GradBucket")
@dtypes("float32")
@shape_cases
def test_parameters(world: World, dtype: str, case: str) -> None:
    """parameters() has the bucket's very parameters in order."""
    for rank, place, record in examine(world, dtype, case):
        count, own = record["parameter_count"], record["own_parameters"]
        expect_equal(rank, "the number of parameters", count, len(SHAPES[case]), f'{place}["parameter_count"]', "count")
        expect_equal(
            rank, "their being the bucket's own", own, [True] * count, f'{place}["own_parameters"]', "identity"
        )


def replace(world: World, dtype: str, case: str, new_dtype: str) -> list[tuple[int, str, Any]]:
    """Replaces the buffer by its negative in another dtype, on every rank."""
    results, number = run_program(
        world,
        buckets.replace_buffer,
        shared=True,
        dtype=dtype,
        shapes=SHAPES[case],
        values=numbers(case),
        new_dtype=new_dtype,
    )
    return [(rank, f"results[{number}][{rank}]", record) for rank, record in enumerate(results)]


@clauses("BUCKET-SET-BUFFER")
@needs("GradBucket", "float16")
@dtypes("float32", "bfloat16")
@shape_cases
def test_set_buffer(world: World, dtype: str, case: str) -> None:
    """After set_buffer() with a float16 tensor, buffer() is that tensor, and the old one is as it was."""
    for rank, place, record in replace(world, dtype, case, "float16"):
        expect_equal(rank, "buffer() being the new tensor", record["is_new"], True, f'{place}["is_new"]', "identity")
        found = record["buffer"]["dtype"]
        expect_equal(rank, "buffer()'s dtype", found, "float16", f'{place}["buffer"]["dtype"]', "dtype")
        expect_array(rank, "buffer()", record["buffer"]["values"], -numbers(case), f'{place}["buffer"]["values"]')
        expect_array(rank, "the replaced tensor", record["old"], numbers(case), f'{place}["old"]')


@clauses("BUCKET-SET-GRADIENTS")
@needs("GradBucket", "float16")
@dtypes("float32", "bfloat16")
@shape_cases
def test_set_gradients(world: World, dtype: str, case: str) -> None:
    """After set_buffer() the gradients are views of the new tensor, with its dtype and the parameters' shapes."""
    for rank, place, record in replace(world, dtype, case, "float16"):
        found = [gradient["shape"] for gradient in record["gradients"]]
        expect_equal(rank, "the gradients' shapes", found, SHAPES[case], _each(place, "gradients", "shape"), "shape")
        kinds = sorted({gradient["dtype"] for gradient in record["gradients"]})
        here = f"sorted(set({_each(place, 'gradients', 'dtype')}))"
        expect_equal(rank, "the gradients' dtype", kinds, ["float16"], here, "dtype")
        for number, (gradient, part) in enumerate(zip(record["gradients"], parts(case), strict=True)):
            here = f'{place}["gradients"][{number}]["values"].ravel()'
            expect_array(rank, f"gradient {number}", gradient["values"].ravel(), -part, here)
        expect_array(
            rank, "the new tensor, written through gradients", record["written"], marks(case), f'{place}["written"]'
        )


@clauses("BUCKET-ARGUMENTS")
@needs("GradBucket.constructor", "float32")
@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("index", "negative"),
        ("index", "text"),
        ("buffer", "a list of numbers"),
        ("buffer", "two dimensions"),
        ("parameters", "too few elements"),
        ("parameters", "too many elements"),
        ("is_last", "text"),
    ],
)
def test_arguments(world: World, argument: str, wrong: str) -> None:
    """The constructor refuses a wrong argument with an error that names it."""
    results, number = run_program(world, buckets.build_wrongly, argument=argument, wrong=wrong)
    for rank, record in enumerate(results):
        place = f'results[{number}][{rank}]["error"]'
        if record["error"] not in ("TypeError", "ValueError"):
            raise ClauseFailure(
                "error",
                f"rank {rank}: {argument} that is {wrong} gave {record['error'] or 'no error'}",
                expected="TypeError or ValueError",
                found=record["error"] or "no error",
                place=place,
                holds="found in ('TypeError', 'ValueError')",
            )
        if argument not in record["text"]:
            raise ClauseFailure(
                "message",
                f"rank {rank}: the error does not name {argument!r}: {record['text']}",
                expected=f"a message with {argument!r} in it",
                found=record["text"],
                place=f'results[{number}][{rank}]["text"]',
                holds=f"{argument!r} in found",
            )


def marks(case: str) -> FloatArray:
    """The buffer when gradient i is full of 100 + i; float16 and bfloat16 hold these up to 256."""
    sizes = [inputs.numel([shape]) for shape in SHAPES[case]]
    return np.repeat(100.0 + np.arange(len(sizes), dtype=np.float32), sizes)


def parts(case: str) -> list[FloatArray]:
    """The parts of ``numbers(case)`` that belong to each parameter."""
    sizes = [inputs.numel([shape]) for shape in SHAPES[case]]
    ends = np.cumsum(sizes)
    return [numbers(case)[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _each(place: str, what: str, fact: str) -> str:
    return f'[one["{fact}"] for one in {place}["{what}"]]'
