"""In the laboratory: data-parallel training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from commhooks.conformance import training
from commhooks.conformance.expectations import expect_array
from commhooks.conformance.laboratory import PATIENCE, disturbances, drawn_seeds
from commhooks.conformance.marks import claims, clauses, every_hook, needs, worlds
from commhooks.conformance.programs import ddp_training, lab
from commhooks.conformance.world import World

# Three buckets of the model, from the second step on.
SMALL = {"bucket_cap_mb": 60 / 2**20}
STEPS = 3


@clauses("HOOK-IN-DDP")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_hook(request: pytest.FixtureRequest, lab: World, hook: str) -> None:
    """Whatever completions do, a model has the gradients of the joined batch, with noop_hook its own."""
    expect_gradients(lab, hook, drawn_seeds(request.config), own=hook == "noop_hook")


@every_hook
@claims("mean")
@clauses("HOOK-IN-DDP")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_hook_that_claims_a_mean(request: pytest.FixtureRequest, lab: World, hook: str) -> None:
    """Whatever completions do, a model has the gradients of the joined batch."""
    expect_gradients(lab, hook, drawn_seeds(request.config), own=False)


def expect_gradients(world: World, hook: str, seeds: Sequence[int], own: bool) -> None:
    """Expects the gradients of one process on the joined batch, or on each rank's own part of it.

    The laboratory disturbs the training in the ways of ``DISTURBANCES``, or in those drawn with each of the seeds.
    """
    for choice in disturbances(seeds):
        world.programs.clear()
        _expect_gradients(world, hook, choice, own)


def _expect_gradients(world: World, hook: str, choice: Mapping[str, Any], own: bool) -> None:
    program = ddp_training.compare_with_one_process
    results: list[dict[str, Any]] = world.run(
        lab.run_in_lab,
        module=program.__module__,
        name=program.__name__,
        arguments={"model": "mlp", "hook": hook, "own": own, "steps": STEPS, "options": SMALL},
        **{**choice, "options": {**choice["options"], "patience": PATIENCE * world.patience}},
    )
    for rank, result in enumerate(results):
        training.expect_registered(rank, result["result"], hook)
        for step, found in enumerate(result["result"]["found"]):
            expected = results[rank if own else 0]["result"]["expected"][step]
            place = f'results[0][{rank}]["result"]["found"][{step}]'
            expect_array(rank, f"the gradients in step {step}", found, expected, place)
