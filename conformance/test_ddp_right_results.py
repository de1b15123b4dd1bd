"""What data-parallel training does with results of hooks that are as they should be: they become the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commhooks.conformance import inputs, training
from commhooks.conformance.expected import FloatArray
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.training import a_pass, given
from commhooks.conformance.world import World

SMALL = {"bucket_cap_mb": 60 / 2**20}


@clauses("DDP-HOOK-RESULT")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize(
    "case",
    ["unchanged", "unchanged, not finite", "unchanged, float64", "numbered", "numbered, views", "numbered, float64"],
)
def test_hook_result(world: World, case: str) -> None:
    """The gradients are what the hook's future holds, divided by nothing, also in a tensor of its own."""
    options = {"gradient_as_bucket_view": True} if "views" in case else {}
    kinds = ["float64" if "float64" in case else "float32"] * 3
    hook = case.partition(",")[0]

    def local(rank: int, step: int) -> training.Gradients:
        made = [one.astype(kinds[0]) / 3 for one in given(rank, step)]
        if "not finite" in case:
            made[0][0, :] = np.inf, np.nan, -np.inf
        return made

    def actions(rank: int) -> list[training.Action]:
        return [a_pass(local(rank, step)) for step in range(3)]

    for rank in training.run(world, actions, hook=hook, options=options, dtypes=kinds):
        for step in range(3):
            expected = local(rank.rank, step) if hook == "unchanged" else counted(rank, step)
            rank.expect_gradients(step, expected, f"in step {step} with a hook that gives back {case}")


@clauses("DDP-HOOK-RESULT")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_standard_hook(world: World, hook: str) -> None:
    """Called by a function of another name, each hook gives the mean, with noop_hook the rank's own gradients."""

    def local(rank: int, step: int) -> training.Gradients:
        made = given(rank, step)
        if step == 1 and rank == 1:
            made[0][0, 0] = np.inf
        return made

    def actions(rank: int) -> list[training.Action]:
        return [a_pass(local(rank, step)) for step in range(3)]

    for rank in training.run(world, actions, hook=hook, options=SMALL):
        for step in range(3):
            means = [np.mean(same, axis=0) for same in zip(local(0, step), local(1, step), strict=True)]
            expected = local(rank.rank, step) if hook == "noop_hook" else means
            rank.expect_gradients(step, expected, f"in step {step} with {hook}")


def counted(rank: training.Rank, step: int) -> list[FloatArray]:
    """1, 2, 3 and so on along each bucket, as gradients by parameter."""
    lengths = [inputs.numel([shape]) for shape in training.SHAPES]
    found: list[Any] = [None] * len(lengths)
    for bucket in rank.record["passes"][step]:
        start = 0
        for place in bucket["parameters"]:
            found[place] = np.arange(start + 1.0, start + 1.0 + lengths[place])
            start += lengths[place]
    return found


@clauses("DDP-HOOK-AWAITED")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["one bucket", "small buckets"])
def test_late_results(world: World, case: str) -> None:
    """When backward() returns, results that came late from another thread are in .grad."""
    options = {} if case == "one bucket" else {"bucket_cap_mb": 4 / 2**20}
    for rank in training.run(
        world, lambda rank: [a_pass(given(rank, step)) for step in range(2)], hook="late_double", options=options
    ):
        for step in range(2):
            expected = [2.0 * one for one in given(rank.rank, step)]
            rank.expect_gradients(step, expected, f"in step {step}")
