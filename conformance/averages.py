"""What every averaging hook is checked for, whatever dtype its sum is taken in."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from commhooks.adapters import Description
from commhooks.conformance import inputs
from commhooks.conformance.expectations import (
    advising,
    expect_classes,
    expect_length,
    expect_member,
    expect_unchanged,
    expect_values,
    expect_within,
)
from commhooks.conformance.expected import (
    FloatArray,
    compressed_mean_bound,
    compressed_mean_class,
    deviation,
    exact_set,
    ieee_mean_class,
    in_exact_set,
    mean,
    mean_bound,
)
from commhooks.conformance.observations import Call, call_hook
from commhooks.conformance.world import World


def expect_mean(
    calls: Sequence[Call], gradients: FloatArray, dtype: str, wire: str | None = None, allowed: float = 0.0
) -> None:
    """Expects the mean of ``gradients`` on every rank of ``calls``, within the proved bound.

    Args:
        calls: One call for each rank that took part.
        gradients: Shape ``(W, n)``, finite; the ranks whose mean is expected.
        dtype: dtype of the buckets.
        wire: dtype that a compressing hook averages in.
        allowed: What the hook may lose beside.
    """
    expected = mean(gradients)
    bound = mean_bound(gradients, dtype) if wire is None else compressed_mean_bound(gradients, dtype, wire)
    bound = bound + allowed
    for call in _differing(calls):
        with advising(functools.partial(_looks_like, call, gradients)):
            expect_within(call, expected, deviation(call.values, gradients), bound)


def expect_exact(calls: Sequence[Call], gradients: FloatArray, dtype: str, wire: str | None = None) -> None:
    """Expects one of the results that some order of summation gives, bit for bit; for at most 4 ranks."""
    divide = "either" if wire is None else "first"
    allowed = exact_set(gradients, dtype, divide=divide, wire=wire)
    for call in _differing(calls):
        expect_member(call, in_exact_set(call.values, gradients, dtype, divide=divide, wire=wire), allowed)


def expect_sum(calls: Sequence[Call], gradients: FloatArray, dtype: str) -> None:
    """Expects the sum of ``gradients`` on every rank of ``calls``, within the rounding of any order."""
    columns = gradients.astype(np.float64).T
    # A sum has one rounding less than the mean, times the number of ranks.
    bound = mean_bound(gradients, dtype) * len(gradients)
    for call in _differing(calls):
        expect_length(call, len(columns))
        pairs = zip(columns, call.values.astype(np.float64), strict=True)
        error = np.array([abs(math.fsum([*column, -value])) for column, value in pairs])
        expect_within(call, columns.sum(axis=1), error, bound)


def expect_as_claimed(calls: Sequence[Call], description: Description, gradients: FloatArray, dtype: str) -> None:
    """Expects the mean or the sum of ``gradients``, within the claimed error, of a hook that claims one."""
    if "sum" in description.claims:
        expect_sum(calls, gradients, dtype)
    elif description.claims & {"mean", "lossy"}:
        allowed = 0.0 if "mean" in description.claims else description.error * float(np.abs(gradients).max(initial=0.0))
        expect_mean(calls, gradients, dtype, allowed=allowed)


def check_group(world: World, hook: str, dtype: str, members: Sequence[int], wire: str | None = None) -> None:
    """Calls a hook on a subgroup: its members get their mean, and all others keep what they have."""
    gradients = inputs.spread(world.size, 64, dtype, reach=4)
    absent = [{"absent": rank not in members} for rank in range(world.size)]
    outcome = call_hook(world, hook, dtype, gradients, each=absent, group=list(members), look_again=True)
    expect_mean([outcome.first[rank] for rank in members], gradients[list(members)], dtype, wire)
    for rank in set(range(world.size)) - set(members):
        expect_unchanged(outcome.first[rank], gradients[rank], "buffer", "on a rank outside the group")


def check_none_is_world(world: World, hook: str, dtype: str, wire: str | None = None) -> None:
    """Calls a hook with None and with the world group: the mean is the same, to the bit where one order exists."""
    gradients = inputs.spread(world.size, 64, dtype, reach=4)
    with_group = call_hook(world, hook, dtype, gradients, group_as="group")
    with_none = call_hook(world, hook, dtype, gradients, group_as="none")
    expect_mean(with_none.first, gradients, dtype, wire)
    if world.size <= 2:
        for call, other in zip(with_none.first, with_group.first, strict=True):
            expect_values(call, other.values, "with the world group")


def check_nonfinite(world: World, hook: str, dtype: str, wire: str | None = None) -> None:
    """Puts infinities and NaN on some ranks: they spread as IEEE sums say, and all other elements are right."""
    gradients = inputs.spread(world.size, 16, dtype, reach=4)
    gradients[0, 1] = np.inf
    gradients[-1, 3] = -np.inf
    gradients[-1, 5] = np.nan
    gradients[:, 7] = np.inf
    gradients[0, 9], gradients[-1, 9] = np.inf, -np.inf
    gradients[0, 11], gradients[-1, 11] = np.nan, np.inf
    expected = ieee_mean_class(gradients) if wire is None else compressed_mean_class(gradients, wire)
    finite = np.isfinite(gradients).all(axis=0)
    bound = mean_bound(gradients, dtype) if wire is None else compressed_mean_bound(gradients, dtype, wire)
    for call in call_hook(world, hook, dtype, gradients).first:
        expect_classes(call, expected)
        error = np.where(finite, deviation(call.values, gradients), 0.0)
        expect_within(call, mean(gradients), error, bound)


def _looks_like(call: Call, gradients: FloatArray) -> str:
    """What somebody may have done who found no mean, if the result looks like it."""
    with np.errstate(over="ignore"):
        total, world_size = gradients.astype(np.float64).sum(axis=0), len(gradients)
    own = gradients[call.rank] if call.rank < world_size else total
    mistakes = {
        "It looks like the sum: it has to be divided by the number of ranks.": total,
        "It looks like the mean that was divided twice by the number of ranks.": total / world_size**2,
        "It looks like the rank's own gradients: what was reduced has to be given back.": own,
        "It looks like the rank's own gradients, divided: what was reduced has to be given back.": own / world_size,
    }
    found = call.record.get("values")
    if world_size < 2 or not isinstance(found, np.ndarray) or found.shape != total.shape:
        return ""
    scale = np.abs(gradients).astype(np.float64).max(axis=0)
    alike = (text for text, values in mistakes.items() if (np.abs(found - values) <= 0.02 * scale).all())
    return next(alike, "")


def _differing(calls: Sequence[Call]) -> list[Call]:
    """The first rank's call, and those whose result is another one: the rest needs no second look."""
    first = calls[0]
    return [first, *(call for call in calls[1:] if not np.array_equal(call.values, first.values, equal_nan=True))]


def groups(world_size: int) -> dict[str, list[int]]:
    """Subgroups worth trying in a world of that size, by what they are."""
    return {
        "every second rank": list(range(world_size - 1, -1, -2))[::-1],
        "all but the first": list(range(1, world_size)),
        "the last alone": [world_size - 1],
    }
