"""Hooks that a framework has built into its data-parallel training, against those that are called."""

from __future__ import annotations

import numpy as np
import pytest

from commhooks.conformance import inputs, training
from commhooks.conformance.marks import clauses, dtypes, needs, worlds
from commhooks.conformance.training import a_pass, given, mean_over
from commhooks.conformance.world import World

BUILT_IN = {"ALLREDUCE": "allreduce_hook", "FP16_COMPRESS": "fp16_compress_hook"}
SMALL = {"bucket_cap_mb": 60 / 2**20}
STEPS = 3


@clauses("DDP-BUILT-IN")
@needs("DistributedDataParallel", "DistributedDataParallel.built_in", *BUILT_IN.values())
@dtypes("float32", "float64")
@worlds(1, 3)
@pytest.mark.parametrize("case", BUILT_IN)
def test_built_in(world: World, dtype: str, case: str) -> None:
    """A built-in hook gives the bits that the hook of that name gives, in several buckets and steps."""
    ends = np.cumsum([inputs.numel([shape]) for shape in training.SHAPES])[:-1]
    gradients = [inputs.spread(world.size, inputs.numel(training.SHAPES), dtype, step) for step in range(STEPS)]
    called, built_in = (
        training.run(
            world,
            lambda rank: [a_pass(np.split(values[rank], ends)) for values in gradients],
            dtypes=[dtype] * len(training.SHAPES),
            hook=hook,
            contents=False,
            options=SMALL,
        )
        for hook in (BUILT_IN[case], f"built-in {case}")
    )
    for one, other in zip(called, built_in, strict=True):
        for step in range(STEPS):
            expected = [note["values"] for note in one.record["notes"][step]]
            other.expect_gradients(step, expected, f"in step {step}, compared with {BUILT_IN[case]},")


@clauses("DDP-BUILT-IN-ONCE")
@needs("DistributedDataParallel", "DistributedDataParallel.built_in", "allreduce_hook", "noop_hook")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["built-in first", "built-in second", "built-in twice"])
def test_once(world: World, case: str) -> None:
    """After one registration another is a RuntimeError, and the first hook is the one that runs."""
    first, second = {
        "built-in first": ("built-in ALLREDUCE", "noop_hook"),
        "built-in second": ("noop_hook", "built-in ALLREDUCE"),
        "built-in twice": ("built-in ALLREDUCE", "built-in FP16_COMPRESS"),
    }[case]

    def actions(rank: int) -> list[training.Action]:
        return [{"do": "register", "hook": second, "catch": True}, a_pass(given(rank, 0))]

    for rank in training.run(world, actions, hook=first):
        error, text = rank.record["errors"][0]
        rank.expect(f"the error ({text})", error, "RuntimeError", '["errors"][0][0]', "error")
        expected = given(rank.rank, 0) if first == "noop_hook" else mean_over((0, 1), 0)
        rank.expect_gradients(0, expected, f"with {first} registered first")
