"""fp16_compress_hook and bf16_compress_hook: the mean over the ranks, in a half-precision type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from commhooks.conformance import averages, inputs
from commhooks.conformance.expectations import (
    expect_classes,
    expect_element,
    expect_equal,
    expect_same,
    expect_values,
)
from commhooks.conformance.expected import (
    FloatArray,
    compressed_mean_class,
    is_representable,
    round_to,
    witnesses_for,
)
from commhooks.conformance.marks import Half, clauses, dtypes, needs, worlds
from commhooks.conformance.observations import call_hook
from commhooks.conformance.world import World

# Between 2**-REACH and 2**REACH lie numbers that every half type holds without overflow or underflow.
REACH = 5
# A value that fits the half type, and one beyond its range whose half fits.
LARGE = {"float16": 60_000.0, "bfloat16": 3.0e38}
BEYOND = {"float16": 1.0e5, "bfloat16": 3.4e38}
# A value whose half is half of the half type's smallest number: a tie, which goes to zero.
TINY = {"float16": 6.0e-8, "bfloat16": 9.0e-41}


@clauses("{half.prefix}-MEAN")
@needs("{half.hook}")
@pytest.mark.parametrize("length", inputs.LENGTHS)
def test_mean(world: World, half: Half, dtype: str, length: int) -> None:
    """The mean of random gradients is right, within half precision, for buckets of many lengths."""
    gradients = inputs.spread(world.size, length, dtype, reach=REACH)
    averages.expect_mean(call_hook(world, half.hook, dtype, gradients).first, gradients, dtype, half.dtype)


@clauses("{half.prefix}-MEAN")
@needs("{half.hook}")
@dtypes("float32")
@worlds(at_least=2, at_most=2)
@pytest.mark.parametrize("length", inputs.LONG_LENGTHS)
def test_mean_of_a_long_bucket(world: World, half: Half, dtype: str, length: int) -> None:
    """The mean is right for a bucket of more than 65 thousand, and of more than a million elements."""
    gradients = inputs.spread(world.size, length, dtype, reach=REACH)
    averages.expect_mean(call_hook(world, half.hook, dtype, gradients).first, gradients, dtype, half.dtype)


@clauses("{half.prefix}-MEAN")
@needs("{half.hook}")
@pytest.mark.parametrize("case", ["cancelling", "integers", "zeros"])
def test_mean_of_hard_values(world: World, half: Half, dtype: str, case: str) -> None:
    """The mean is right where gradients cancel, are exact in every dtype, and are zero."""
    gradients = inputs.carried(inputs.by_name(case, world.size, 96, "float16"), dtype)
    averages.expect_mean(call_hook(world, half.hook, dtype, gradients).first, gradients, dtype, half.dtype)


@clauses("{half.prefix}-MEAN")
@needs("{half.hook}", "subnormals")
@dtypes("float32", "float64")
def test_mean_of_subnormals(world: World, half: Half, dtype: str) -> None:
    """The mean is right around and below the smallest normal number of the half type."""
    gradients = inputs.carried(inputs.subnormals(world.size, 96, half.dtype).astype(np.float64) * 1.25, dtype)
    averages.expect_mean(call_hook(world, half.hook, dtype, gradients).first, gradients, dtype, half.dtype)


@clauses("{half.prefix}-EXACT")
@needs("{half.hook}")
@worlds(at_most=4)
@pytest.mark.parametrize("case", ["spread", "halfway"])
def test_exact(world: World, half: Half, dtype: str, case: str) -> None:
    """Every element is a value that cast, division and some order of summation in the half type give."""
    gradients = inputs.spread(world.size, 513, dtype, reach=REACH)
    if case == "halfway":
        gradients = halfway(gradients, half, dtype)
    averages.expect_exact(call_hook(world, half.hook, dtype, gradients).first, gradients, dtype, half.dtype)


@clauses("{half.prefix}-EXACT")
@needs("{half.hook}", "subnormals")
@dtypes("float32", "float64")
@worlds(at_least=2, at_most=4)
def test_exact_on_witnesses(world: World, half: Half, dtype: str) -> None:
    """Gradients on which another order of steps, or another rounding, shows, come out as the steps say."""
    columns = [witness.x for witness in witnesses_for(half.dtype, world.size)]
    gradients = inputs.carried(np.concatenate(columns, axis=1), dtype)
    averages.expect_exact(call_hook(world, half.hook, dtype, gradients).first, gradients, dtype, half.dtype)


@clauses("{half.prefix}-CAST-FIRST")
@needs("{half.hook}")
@dtypes("float32", "float64")
def test_cast_first(world: World, half: Half, dtype: str) -> None:
    """A gradient beyond the half type's range becomes infinite on every rank, even if only one rank has it."""
    gradients = np.zeros((world.size, 8), dtype)
    gradients[0, 0], gradients[-1, 1], gradients[0, 2] = BEYOND[half.dtype], -BEYOND[half.dtype], LARGE[half.dtype]
    for call in call_hook(world, half.hook, dtype, gradients).first:
        expect_classes(call, compressed_mean_class(gradients, half.dtype))


@clauses("{half.prefix}-DIVIDE-BEFORE-SUM")
@needs("{half.hook}")
def test_divide_before_sum(world: World, half: Half, dtype: str) -> None:
    """Gradients at the end of the half type's range, the same on every rank, have a finite mean."""
    large = LARGE["float16"] if dtype == "float16" else LARGE[half.dtype]
    gradients = inputs.carried(np.full((world.size, 8), large), dtype)
    calls = call_hook(world, half.hook, dtype, gradients).first
    for call in calls:
        expect_classes(call, compressed_mean_class(gradients, half.dtype))
    averages.expect_mean(calls, gradients, dtype, half.dtype)
    if world.size <= 2:
        for call in calls:
            expect_values(call, round_to(round_to(gradients[0], half.dtype), dtype), "the value itself")


@clauses("{half.prefix}-UNDERFLOW")
@needs("{half.hook}", "subnormals")
@dtypes("float32", "float64")
@worlds(at_least=2, at_most=2)
def test_underflow(world: World, half: Half, dtype: str, note: Callable[[str], None]) -> None:
    """A gradient whose share is a tie between zero and the smallest number is lost or kept, and nothing else."""
    tiny = np.full((world.size, 8), TINY[half.dtype], dtype)
    kept = float(round_to(tiny, half.dtype)[0, 0])
    calls = call_hook(world, half.hook, dtype, tiny).first
    for call in calls:
        good = (call.values == 0) | (call.values == kept)
        expect_element(call, good, lambda _: f"0 or {kept!r}", lambda _: f"float(found) in (0.0, {kept!r})")
    note("the smallest shares are " + ("lost" if (calls[0].values == 0).all() else "kept"))


@clauses("{half.prefix}-WIRE")
@needs("{half.hook}")
def test_wire(world: World, half: Half, dtype: str) -> None:
    """Every element of the result is a number of the half type, as it must be if the half type was sent."""
    gradients = inputs.spread(world.size, 512, dtype, reach=REACH)
    for call in call_hook(world, half.hook, dtype, gradients).first:
        expect_element(
            call,
            is_representable(call.values, half.dtype),
            lambda _: f"a {half.dtype} number",
            lambda _: "False",
        )


@clauses("{half.prefix}-DTYPE")
@needs("{half.hook}")
def test_dtype(world: World, half: Half, dtype: str) -> None:
    """The result has the bucket's dtype."""
    gradients = inputs.spread(world.size, 5, dtype, reach=REACH)
    for call in call_hook(world, half.hook, dtype, gradients).first:
        expect_equal(call.rank, "the result's dtype", call.dtype, dtype, f'{call.place}["dtype"]', "dtype")


@clauses("{half.prefix}-ONE-RANK")
@needs("{half.hook}")
@worlds(at_most=1)
def test_one_rank(world: World, half: Half, dtype: str) -> None:
    """One rank gets its own buffer, cast to the half type and back."""
    gradients = inputs.spread(1, 64, dtype, reach=REACH)
    gradients[0, :4] = [np.inf, -np.inf, np.nan, 0.0]
    averages.expect_exact(call_hook(world, half.hook, dtype, gradients).first, gradients, dtype, half.dtype)


@clauses("{half.prefix}-SAME-TYPE")
@needs("{half.hook}", "allreduce_hook")
def test_same_type(world: World, half: Half) -> None:
    """On a bucket of the half type itself the hook equals allreduce_hook, bit for bit."""
    gradients = inputs.spread(world.size, 513, half.dtype)
    plain = call_hook(world, "allreduce_hook", half.dtype, gradients)
    expect_same(call_hook(world, half.hook, half.dtype, gradients), plain, "allreduce_hook")


@clauses("{half.prefix}-NONE-IS-WORLD")
@needs("{half.hook}")
@dtypes("float32")
def test_none_is_world(world: World, half: Half, dtype: str) -> None:
    """None as the state means the world group."""
    averages.check_none_is_world(world, half.hook, dtype, half.dtype)


@clauses("{half.prefix}-GROUP")
@needs("{half.hook}", "subgroups")
@dtypes("float32")
@worlds(at_least=2)
@pytest.mark.parametrize("case", averages.groups(2))
def test_group(world: World, half: Half, dtype: str, case: str) -> None:
    """A subgroup averages over its members, and leaves every other rank alone."""
    averages.check_group(world, half.hook, dtype, averages.groups(world.size)[case], half.dtype)


@clauses("{half.prefix}-NONFINITE")
@needs("{half.hook}")
def test_nonfinite(world: World, half: Half, dtype: str) -> None:
    """Infinities and NaN on one rank or several reach every rank, and nothing else."""
    averages.check_nonfinite(world, half.hook, dtype, half.dtype)


def halfway(gradients: FloatArray, half: Half, dtype: str) -> FloatArray:
    """Moves each gradient half way to the next number of the half type, where rounding has to choose."""
    rounded = round_to(gradients, half.dtype)
    bits = {"float16": 10, "bfloat16": 7}[half.dtype]
    step = 2.0 ** (np.floor(np.log2(np.abs(rounded) + (rounded == 0))) - bits)
    return inputs.carried(rounded + step / 2, dtype)
