"""allreduce_hook: the mean over the ranks, in the bucket's own dtype."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from commhooks.conformance import averages, inputs
from commhooks.conformance.expectations import expect_classes, expect_element, expect_values, expect_within
from commhooks.conformance.expected import FloatArray, float_type, ieee_mean_class, mean_bound
from commhooks.conformance.marks import clauses, dtypes, needs, worlds
from commhooks.conformance.observations import call_hook, without_hook
from commhooks.conformance.world import World

HOOK = "allreduce_hook"


@clauses("ALLREDUCE-MEAN")
@needs(HOOK)
@pytest.mark.parametrize("length", inputs.LENGTHS)
def test_mean(world: World, dtype: str, length: int) -> None:
    """The mean of random gradients is right for buckets of many lengths."""
    gradients = inputs.spread(world.size, length, dtype)
    averages.expect_mean(call_hook(world, HOOK, dtype, gradients).first, gradients, dtype)


@clauses("ALLREDUCE-MEAN")
@needs(HOOK)
@dtypes("float32")
@pytest.mark.parametrize("length", inputs.LONG_LENGTHS)
def test_mean_of_a_long_bucket(world: World, dtype: str, length: int) -> None:
    """The mean is right for a bucket of more than 65 thousand, and of more than a million elements."""
    gradients = inputs.spread(world.size, length, dtype)
    averages.expect_mean(call_hook(world, HOOK, dtype, gradients).first, gradients, dtype)


@clauses("ALLREDUCE-MEAN")
@needs(HOOK)
@pytest.mark.parametrize("case", ["cancelling", "integers", "below_maximum", "zeros"])
def test_mean_of_hard_values(world: World, dtype: str, case: str) -> None:
    """The mean is right where gradients cancel, are exact, are as large as their sum allows, and where all are zero."""
    gradients = inputs.by_name(case, world.size, 96, dtype)
    averages.expect_mean(call_hook(world, HOOK, dtype, gradients).first, gradients, dtype)


@clauses("ALLREDUCE-MEAN")
@needs(HOOK, "subnormals")
def test_mean_of_subnormals(world: World, dtype: str) -> None:
    """The mean is right around and below the smallest normal number."""
    gradients = inputs.subnormals(world.size, 96, dtype)
    averages.expect_mean(call_hook(world, HOOK, dtype, gradients).first, gradients, dtype)


@clauses("ALLREDUCE-MEAN")
@needs(HOOK)
@dtypes("float32", "bfloat16")
def test_mean_of_many_parameters(world: World, dtype: str) -> None:
    """The mean is right in a bucket of many parameters, some of them empty and some of no dimension."""
    shapes = [[3, 5], [], [0, 4], [7], [2, 1, 3], [1], *[[index % 4 + 1, 3] for index in range(30)]]
    gradients = inputs.spread(world.size, inputs.numel(shapes), dtype)
    averages.expect_mean(call_hook(world, HOOK, dtype, gradients, shapes=shapes).first, gradients, dtype)


@clauses("ALLREDUCE-EXACT")
@needs(HOOK)
@worlds(at_most=4)
@pytest.mark.parametrize("case", ["spread", "cancelling", "below_maximum"])
def test_exact(world: World, dtype: str, case: str) -> None:
    """Every element is a value that some order of summation gives."""
    gradients = inputs.by_name(case, world.size, 513, dtype)
    averages.expect_exact(call_hook(world, HOOK, dtype, gradients).first, gradients, dtype)


@clauses("ALLREDUCE-ONE-RANK")
@needs(HOOK)
@worlds(at_most=1)
def test_one_rank(world: World, dtype: str) -> None:
    """One rank gets its own buffer back, the ends of the range, infinities and NaN included."""
    kind = float_type(dtype)
    ends = [kind.largest, -kind.largest, kind.smallest_normal, 0.0, -0.0, np.inf, -np.inf, np.nan]
    gradients = inputs.spread(1, 64, dtype)
    gradients[0, : len(ends)] = ends
    for call in call_hook(world, HOOK, dtype, gradients).first:
        expect_values(call, gradients[0], "the rank's own")


@clauses("ALLREDUCE-AS-DDP")
@needs(HOOK, "ddp")
def test_as_ddp(world: World, dtype: str) -> None:
    """The result is what data-parallel training computes without a hook."""
    gradients = inputs.spread(world.size, 513, dtype)
    plain = without_hook(world, dtype, gradients)
    for call, values in zip(call_hook(world, HOOK, dtype, gradients).first, plain, strict=True):
        if world.size <= 2:
            expect_values(call, values, "without a hook")
            continue
        apart = np.abs(call.values.astype(np.float64) - values.astype(np.float64))
        expect_within(call, values, apart, 2 * mean_bound(gradients, dtype))


@clauses("ALLREDUCE-NONE-IS-WORLD")
@needs(HOOK)
@dtypes("float32")
def test_none_is_world(world: World, dtype: str) -> None:
    """None as the state means the world group."""
    averages.check_none_is_world(world, HOOK, dtype)


@clauses("ALLREDUCE-GROUP")
@needs(HOOK, "subgroups")
@dtypes("float32")
@worlds(at_least=2)
@pytest.mark.parametrize("case", averages.groups(2))
def test_group(world: World, dtype: str, case: str) -> None:
    """A subgroup averages over its members, and leaves every other rank alone."""
    averages.check_group(world, HOOK, dtype, averages.groups(world.size)[case])


@clauses("ALLREDUCE-NONFINITE")
@needs(HOOK)
def test_nonfinite(world: World, dtype: str) -> None:
    """Infinities and NaN on one rank or several reach every rank, and nothing else."""
    averages.check_nonfinite(world, HOOK, dtype)


@clauses("ALLREDUCE-NO-OVERFLOW")
@needs(HOOK)
def test_no_overflow(world: World, dtype: str) -> None:
    """The mean of values near the largest number of the dtype is finite and right."""
    gradients = near_maximum(world.size, dtype)
    calls = call_hook(world, HOOK, dtype, gradients).first
    for call in calls:
        expect_classes(call, ieee_mean_class(gradients))
    averages.expect_mean(calls, gradients, dtype)


@clauses("ALLREDUCE-SIGNED-ZERO")
@needs(HOOK)
@dtypes("float32")
def test_signed_zero(world: World, dtype: str, note: Callable[[str], None]) -> None:
    """The mean of negative zeros is a zero."""
    gradients = np.full((world.size, 8), -0.0, np.float32)
    calls = call_hook(world, HOOK, dtype, gradients).first
    for call in calls:
        expect_element(call, call.values == 0, lambda _: "a zero", lambda _: "found == 0")
    signs = {bool(sign) for call in calls for sign in np.signbit(call.values)}
    note("the mean of negative zeros is " + " or ".join("negative zero" if sign else "zero" for sign in sorted(signs)))


def near_maximum(world_size: int, dtype: str) -> FloatArray:
    """Values from 0.9 to 0.95 of the largest number, whose sum is out of range and whose mean is not."""
    largest = float_type(dtype).largest
    factors = np.linspace(0.9, 0.95, 32)[None, :] + np.zeros((world_size, 1))
    return inputs.carried(np.concatenate([factors, -factors], axis=1) * largest, dtype)
