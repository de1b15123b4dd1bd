"""Data-parallel training where forward passes, gradients or the loss have another dtype or scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from commhooks.conformance import inputs, training
from commhooks.conformance.expectations import expect_equal
from commhooks.conformance.marks import clauses, dtypes, needs, stateful, worlds
from commhooks.conformance.training import a_pass
from commhooks.conformance.world import World

HOOK = "allreduce_hook"
# powerSGD_hook compresses in the last two.
STEPS = 4
SCALES = {"up": 2.0**6, "down": 2.0**-6}


@clauses("DDP-AUTOCAST")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["mlp", "convolutions"])
def test_autocast(world: World, case: str) -> None:
    """After a forward pass that casts to bfloat16 the buckets have the parameters' dtype, the gradients the mean."""
    for rank, result in enumerate(training.compare(world, case, HOOK, steps=3, autocast="bfloat16", noted=True)):
        for step, calls in enumerate(result["calls"]):
            for number, call in enumerate(calls):
                place = f'results[0][{rank}]["calls"][{step}][{number}]["dtype"]'
                expect_equal(rank, f"the bucket's dtype in step {step}", call["dtype"], "float32", place, "dtype")


@clauses("DDP-MIXED-PRECISION")
@needs("DistributedDataParallel", "DistributedDataParallel.mixed_precision", HOOK)
@worlds(2, 2)
def test_mixed_precision(world: World, note: Callable[[str], None]) -> None:
    """With mixed_precision the gradients are the mean, or the hook is refused."""
    with training.or_refused(note):
        training.compare(world, "mlp", HOOK, steps=3, mixed_precision="bfloat16")


@stateful
@clauses("DDP-LOSS-SCALE")
@needs("DistributedDataParallel")
@dtypes("float32")
@worlds(1, 2)
@pytest.mark.parametrize("case", SCALES)
def test_loss_scale(world: World, hook: str, dtype: str, case: str) -> None:
    """With the loss scaled by a power of two the gradients are scaled by it, bit for bit, in every step."""
    ends = np.cumsum([inputs.numel([shape]) for shape in training.SHAPES])[:-1]
    spread = [inputs.spread(world.size, inputs.numel(training.SHAPES), dtype, step, reach=2) for step in range(STEPS)]
    # No number is so near to zero that a half type would lose some of its bits.
    gradients = [np.copysign(np.maximum(np.abs(values), 0.1), values).astype(np.float32) for values in spread]

    def steps(world: World, scale: float) -> list[training.Rank]:
        def actions(rank: int) -> list[training.Action]:
            return [a_pass(np.split(values[rank], ends), scale=scale) for values in gradients]

        return training.run(world, actions, hook=hook, contents=False)

    plain, scaled = steps(world, 1.0), steps(world, SCALES[case])
    for one, other in zip(plain, scaled, strict=True):
        for step in range(STEPS):
            expected = [note["values"] * SCALES[case] for note in one.record["notes"][step]]
            other.expect_gradients(step, expected, f"in step {step}, with the loss times {SCALES[case]:g},")
