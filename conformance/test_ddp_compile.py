"""Models under data-parallel training that are compiled."""

from __future__ import annotations

import pytest

from commhooks.conformance import training
from commhooks.conformance.expectations import expect_equal
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.world import World

SMALL = {"bucket_cap_mb": 60 / 2**20}
# To compile takes a hundred times as long as other programs do.
COMPILING = 4.0
# Of the model "mlp".
PARAMETERS = 8


@clauses("DDP-COMPILED")
@needs("DistributedDataParallel", "DistributedDataParallel.compile", "allreduce_hook", "noop_hook")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["model", "wrapper", "model in small buckets"])
def test_compiled(world: World, case: str) -> None:
    """Compiled, with operations that stay as they are, a model has the gradients that its hook gives."""
    compiled, _, small = case.partition(" ")
    # What noop_hook gives would show a wrapper that averages by itself.
    hook = "noop_hook" if case == "model" else "allreduce_hook"
    results = training.compare(
        world,
        "mlp",
        hook,
        own=hook == "noop_hook",
        steps=2,
        options=SMALL if small else {},
        compiled=compiled,
        noted=True,
        longer=COMPILING,
    )
    for rank, result in enumerate(results):
        for step, calls in enumerate(result["calls"]):
            found = sorted(place for call in calls for place in call["parameters"])
            place = f'sorted(sum((call["parameters"] for call in results[0][{rank}]["calls"][{step}]), []))'
            name = f"parameters that {hook} got in step {step}"
            expect_equal(rank, name, found, list(range(PARAMETERS)), place, "parameters")
