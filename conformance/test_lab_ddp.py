"""In the laboratory: data-parallel training."""

from __future__ import annotations

from typing import Any

import pytest

from commhooks.conformance import training
from commhooks.conformance.expectations import expect_array
from commhooks.conformance.laboratory import PATIENCE
from commhooks.conformance.marks import claims, clauses, every_hook, needs, worlds
from commhooks.conformance.programs import ddp_training, lab
from commhooks.conformance.world import World

DISTURBANCES: dict[str, dict[str, Any]] = {
    "late completions, slow rank": {"delay": 0.003, "slow_rank": 1, "slow_by": 0.003},
    "random completions": {"completion_order": "random", "hold": 0.002},
}
cases = pytest.mark.parametrize("case", DISTURBANCES)
# Three buckets of the model, from the second step on.
SMALL = {"bucket_cap_mb": 60 / 2**20}
STEPS = 3


@cases
@clauses("HOOK-IN-DDP")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_hook(lab: World, hook: str, case: str) -> None:
    """Whatever completions do, a model has the gradients of the joined batch, with noop_hook its own."""
    expect_gradients(lab, hook, case, own=hook == "noop_hook")


@every_hook
@cases
@claims("mean")
@clauses("HOOK-IN-DDP")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_hook_that_claims_a_mean(lab: World, hook: str, case: str) -> None:
    """Whatever completions do, a model has the gradients of the joined batch."""
    expect_gradients(lab, hook, case, own=False)


def expect_gradients(world: World, hook: str, case: str, own: bool) -> None:
    """Expects the gradients of one process on the joined batch, or on each rank's own part of it."""
    program = ddp_training.compare_with_one_process
    results: list[dict[str, Any]] = world.run(
        lab.run_in_lab,
        module=program.__module__,
        name=program.__name__,
        arguments={"model": "mlp", "hook": hook, "own": own, "steps": STEPS, "options": SMALL},
        options={**DISTURBANCES[case], "patience": PATIENCE * world.patience},
    )
    for rank, result in enumerate(results):
        training.expect_registered(rank, result["result"], hook)
        for step, found in enumerate(result["result"]["found"]):
            expected = results[rank if own else 0]["result"]["expected"][step]
            place = f'results[0][{rank}]["result"]["found"][{step}]'
            expect_array(rank, f"the gradients in step {step}", found, expected, place)
