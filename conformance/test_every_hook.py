"""What every hook must keep, whoever wrote it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from commhooks.conformance import averages, inputs
from commhooks.conformance.expectations import (
    advising,
    each_call,
    expect_agreement,
    expect_equal,
    expect_length,
    expect_same,
    expect_unchanged,
)
from commhooks.conformance.expected import FloatArray
from commhooks.conformance.marks import claims, clauses, dtypes, every_hook, needs, one_hook, unless, worlds
from commhooks.conformance.observations import Call, call_hook
from commhooks.conformance.world import Implementation, World

REACH = 4
# Seconds by which the last rank comes late, so that its peers cannot have their results before.
LATE = 0.03

SHAPES: dict[str, list[list[int]]] = {
    "one element": [[1]],
    "no dimension": [[]],
    "empty and odd parameters": [[0, 4], [3], [], [0], [2, 3]],
    "many parameters": [[index % 5 + 1] for index in range(100)],
}


LENGTH = 12
# Elements that are NaN or infinite on some rank.
NOT_FINITE = [1, 3, 5, 7]
# As long as the first bucket of data-parallel training, 1 MiB of float32, and a little more.
LONG = (1 << 18) + 3
# Lengths of the second bucket of a pass, which leave different remainders when they are cut into parts.
VALUES = {"spread": 97, "cancelling": 98, "integers": 99, "alike": 100, "zeros": 101}
# Enough for what a hook does every tenth or hundredth step only.
MANY = 110


def results(world: World, hook: str, dtype: str) -> Sequence[Call]:
    """One call on each rank, which the checks of what a result looks like share."""
    gradients = inputs.spread(world.size, LENGTH, dtype, reach=REACH)
    return call_hook(world, hook, dtype, gradients, shared=True).first


def lateness(world: World) -> list[dict[str, float]]:
    """The last rank comes late."""
    return [{"late": LATE if world.size > 1 and rank == world.size - 1 else 0.0} for rank in range(world.size)]


@every_hook
@clauses("HOOK-FUTURE")
def test_future(world: World, hook: str, dtype: str) -> None:
    """The hook returns a future of one tensor."""
    for call in results(world, hook, dtype):
        call.require_tensor()


@every_hook
@clauses("HOOK-LENGTH")
def test_length(world: World, hook: str, dtype: str) -> None:
    """The result is flat and as long as the bucket's buffer."""
    for call in results(world, hook, dtype):
        expect_length(call, LENGTH)


@every_hook
@clauses("HOOK-CONTIGUOUS")
def test_contiguous(world: World, hook: str, dtype: str) -> None:
    """The result is contiguous and starts at the beginning of its storage."""
    for call in results(world, hook, dtype):
        call.require_tensor()
        place = f'{call.place}["contiguous"]'
        expect_equal(call.rank, "being contiguous", call.record["contiguous"], True, place, "layout")
        place = f'{call.place}["storage_offset"]'
        expect_equal(call.rank, "the storage offset", call.record["storage_offset"], 0, place, "layout")


@every_hook
@clauses("HOOK-DTYPE")
def test_dtype(world: World, hook: str, dtype: str) -> None:
    """The result has the bucket's dtype."""
    for call in results(world, hook, dtype):
        expect_equal(call.rank, "the result's dtype", call.dtype, dtype, f'{call.place}["dtype"]', "dtype")


@every_hook
@clauses("HOOK-COMPLETE")
@dtypes("float32")
def test_complete(world: World, hook: str, dtype: str) -> None:
    """When the future is complete the result is too, even if another rank comes late."""
    gradients = inputs.spread(world.size, 513, dtype, reach=REACH)
    outcome = call_hook(world, hook, dtype, gradients, each=lateness(world), look_again=True)
    for call in outcome.first:
        expect_unchanged(call, call.values, "later", "after the future was complete")


@every_hook
@unless("local")
@clauses("HOOK-AGREE")
def test_agree(world: World, hook: str, dtype: str) -> None:
    """All ranks have the same bits, even if one of them comes late."""
    gradients = inputs.spread(world.size, 513, dtype, reach=REACH)
    late = lateness(world) if dtype == "float32" else None
    expect_agreement(call_hook(world, hook, dtype, gradients, each=late).first)


@every_hook
@unless("local")
@clauses("HOOK-AGREE")
@dtypes("float32")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["zeros on rank 0", "zeros on rank 1", "large on rank 1", "a long bucket"])
def test_agree_on(world: World, implementation: Implementation, hook: str, dtype: str, case: str) -> None:
    """All ranks have the same bits, whatever the gradients of one of them are, and in a bucket of 1 MiB too."""
    gradients = inputs.spread(world.size, LONG if case == "a long bucket" else 96, dtype, reach=REACH)
    if case.startswith("zeros"):
        gradients[int(case[-1])] = 0.0
    if case.startswith("large"):
        gradients[1] *= 512.0
    advice = (
        "What a rank decides by its own gradients, such as to leave out a bucket of zeros, the others do not know: "
        "decide by what all have. In a long bucket every element counts."
    )
    with advising(advice):
        calls = call_hook(world, hook, dtype, gradients).first
        expect_agreement(calls)
        if "mean" in implementation.description.claims:
            averages.expect_mean(calls, gradients, dtype)


@every_hook
@clauses("HOOK-RANDOM-STATE")
@dtypes("float32")
def test_random_state(world: World, hook: str, dtype: str) -> None:
    """The global random states are as before the call."""
    outcome = call_hook(world, hook, dtype, inputs.spread(world.size, 16, dtype, reach=REACH), watch_random=True)
    for rank, result in enumerate(outcome.results):
        place = f'results[0][{rank}]["random_untouched"]'
        name = "leaving the random states of Python, NumPy and the framework alone"
        with advising("Draw from a generator of the hook's own, such as torch.Generator().manual_seed(step)."):
            expect_equal(rank, name, result["random_untouched"], True, place, "random state")


@every_hook
@unless("random")
@clauses("HOOK-REPEAT")
@dtypes("float32", "bfloat16")
def test_repeat(world: World, hook: str, dtype: str) -> None:
    """The same gradients and a fresh state give the same bits again."""
    gradients = inputs.spread(world.size, 513, dtype, reach=REACH)
    first = call_hook(world, hook, dtype, gradients)
    expect_same(call_hook(world, hook, dtype, gradients), first, "the first time")


@every_hook
@clauses("HOOK-EARLIER-CALL")
@dtypes("float32")
def test_earlier_call(world: World, hook: str, dtype: str) -> None:
    """The call for a second bucket of a pass leaves the first one's result and buffer as they were.

    In the next pass a hook may use the memory of this one again, as data-parallel training does with its buckets.
    """
    gradients = [inputs.spread(world.size, 33, dtype, seed=seed, reach=REACH) for seed in range(2)]
    for call in call_hook(world, hook, dtype, *gradients, one_pass=True, look_again=True).calls[0]:
        expect_unchanged(call, call.values, "later", "in the result of an earlier call")
        expect_unchanged(call, call.record["buffer_then"], "buffer", "in the buffer of an earlier call")


@every_hook
@unless("random")
@clauses("HOOK-IN-FLIGHT")
@dtypes("float32")
@pytest.mark.parametrize("case", ["waiting in order", "waiting in reverse"])
def test_in_flight(world: World, hook: str, dtype: str, case: str) -> None:
    """Buckets that are under way at once get the results that they get one after the other."""
    # Two of the same length, which a hook must not take for each other.
    lengths = enumerate((65, 33, 65))
    gradients = [inputs.spread(world.size, length, dtype, seed=number, reach=REACH) for number, length in lengths]
    alone = call_hook(world, hook, dtype, *gradients, one_pass=True)
    order = [0, 1, 2] if case == "waiting in order" else [2, 1, 0]
    # As one rank is late, the others have called the hook for all buckets before the first collective is complete.
    late = lateness(world)
    together = call_hook(world, hook, dtype, *gradients, each=late, in_flight=True, wait_order=order, look_again=True)
    expect_same(together, alone, "alone")
    for call in each_call(together):
        expect_unchanged(call, call.values, "later", "while the other bucket was under way")


@every_hook
@clauses("HOOK-LENGTHS")
@dtypes("float32")
@pytest.mark.parametrize("case", SHAPES)
def test_lengths(world: World, implementation: Implementation, hook: str, dtype: str, case: str) -> None:
    """The hook works for buckets of one element, and with parameters that are empty or have no dimension."""
    shapes = SHAPES[case]
    gradients = inputs.spread(world.size, inputs.numel(shapes), dtype, reach=REACH)
    calls = call_hook(world, hook, dtype, gradients, shapes=shapes).first
    for call in calls:
        expect_length(call, inputs.numel(shapes))
    averages.expect_as_claimed(calls, implementation.description, gradients, dtype)


@every_hook
@claims("mean")
@clauses("HOOK-MEAN")
@pytest.mark.parametrize("case", VALUES)
def test_mean(world: World, implementation: Implementation, hook: str, dtype: str, case: str) -> None:
    """A hook that claims to average gives the mean, in both buckets of a pass."""
    _expect_values(world, implementation, hook, dtype, case)


@every_hook
@claims("mean", "sum")
@clauses("HOOK-HIDES-NOTHING")
@dtypes("float32", "bfloat16")
def test_hides_nothing(world: World, hook: str, dtype: str) -> None:
    """A hook that claims to average or to add is not finite where some rank's gradient is NaN or infinite."""
    gradients = inputs.spread(world.size, 16, dtype, reach=REACH)
    one, other, third, on_all = NOT_FINITE
    gradients[0, one], gradients[-1, other], gradients[-1, third], gradients[:, on_all] = (
        np.nan,
        np.inf,
        -np.inf,
        np.nan,
    )
    advice = (
        "Whoever trains looks for numbers that are not finite, to skip the step or to lower the loss scale: they must "
        "not be replaced on the way."
    )
    with advising(advice):
        for call in call_hook(world, hook, dtype, gradients).first:
            expect_length(call, gradients.shape[1])
            place = f'np.isfinite({call.place}["values"])[{NOT_FINITE}].tolist()'
            found = np.isfinite(call.values)[NOT_FINITE].tolist()
            name = f"whether the elements {NOT_FINITE} are finite"
            expect_equal(call.rank, name, found, [False] * len(NOT_FINITE), place, "hidden")


@every_hook
@claims("sum")
@clauses("HOOK-SUM")
@pytest.mark.parametrize("case", VALUES)
def test_sum(world: World, implementation: Implementation, hook: str, dtype: str, case: str) -> None:
    """A hook that claims to sum gives the sum, in both buckets of a pass."""
    _expect_values(world, implementation, hook, dtype, case)


@every_hook
@claims("mean")
@needs("subgroups")
@clauses("HOOK-MEAN")
@dtypes("float32")
@worlds(2)
def test_mean_in_a_group(world: World, hook: str, dtype: str) -> None:
    """A hook that claims to average, and to keep to its group, gives the mean over the group's ranks."""
    averages.check_group(world, hook, dtype, list(range(1, world.size)))


@every_hook
@claims("lossy")
@clauses("HOOK-LOSSY")
@pytest.mark.parametrize("case", VALUES)
def test_lossy(world: World, implementation: Implementation, hook: str, dtype: str, case: str) -> None:
    """A hook that claims to average with a loss is as near to the mean as it says in both buckets of a pass."""
    _expect_values(world, implementation, hook, dtype, case)


@every_hook
@one_hook
@claims("mean")
@clauses("HOOK-MEAN")
@dtypes("float32")
@worlds(2, 3)
def test_mean_in_many_steps(world: World, implementation: Implementation, hook: str, dtype: str) -> None:
    """A hook that claims to average still does after a hundred steps."""
    _expect_in_many_steps(world, implementation, hook, dtype)


@every_hook
@one_hook
@claims("sum")
@clauses("HOOK-SUM")
@dtypes("float32")
@worlds(2, 3)
def test_sum_in_many_steps(world: World, implementation: Implementation, hook: str, dtype: str) -> None:
    """A hook that claims to sum still does after a hundred steps."""
    _expect_in_many_steps(world, implementation, hook, dtype)


@every_hook
@one_hook
@unless("local")
@clauses("HOOK-AGREE")
@dtypes("float32")
@worlds(2, 3)
def test_agree_in_many_steps(world: World, hook: str, dtype: str) -> None:
    """All ranks have the same bits in each of a hundred steps."""
    for calls in call_hook(world, hook, dtype, *_many_steps(world, dtype), shared=True).calls:
        expect_agreement(calls)


def _many_steps(world: World, dtype: str) -> list[FloatArray]:
    return [inputs.spread(world.size, 16, dtype, seed=step, reach=REACH) for step in range(MANY)]


def _expect_in_many_steps(world: World, implementation: Implementation, hook: str, dtype: str) -> None:
    steps = _many_steps(world, dtype)
    for step, calls in enumerate(call_hook(world, hook, dtype, *steps, shared=True).calls):
        with advising(f"This is step {step}, counted from 0."):
            averages.expect_as_claimed(calls, implementation.description, steps[step], dtype)


def _expect_values(world: World, implementation: Implementation, hook: str, dtype: str, case: str) -> None:
    buckets = [inputs.by_name(case, world.size, length, dtype) for length in (96, VALUES[case])]
    outcome = call_hook(world, hook, dtype, *buckets, one_pass=True)
    for number, calls in enumerate(outcome.calls):
        with advising(f"This is bucket {number} of its pass." if number else ""):
            averages.expect_as_claimed(calls, implementation.description, buckets[number], dtype)
