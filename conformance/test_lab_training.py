"""In the laboratory: training with any hook, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import advising, expect_array
from commhooks.conformance.laboratory import PATIENCE, disturbances, drawn_seeds
from commhooks.conformance.marks import clauses, every_hook, needs, stateful, worlds
from commhooks.conformance.programs import ddp_training, lab
from commhooks.conformance.world import Implementation, World

# Enough for the PowerSGD hooks to compress in two of them.
TRAINED = 4


@every_hook
@stateful
@clauses("HOOK-LATE")
@needs("DistributedDataParallel")
@worlds(2, 2, searched=4)
@pytest.mark.parametrize("case", ["in training"])
def test_training(
    request: pytest.FixtureRequest,
    lab: World,
    implementation: Implementation,
    hook: str,
    case: str,
    note: Callable[[str], None],
) -> None:
    """Whatever completions do, a network that was trained for some steps has the same bits as without disturbances."""
    if "random" in implementation.description.claims:
        note("the hook claims that two calls may differ")
        return
    undisturbed = _train(lab, hook, {"options": {}})
    if any(result["refused"][0] for result in undisturbed):
        note(f"the hook cannot be registered: {': '.join(undisturbed[0]['refused'])}")
        return
    seeds = drawn_seeds(request.config)
    # There is one bucket, and so nothing to be reordered.
    for choice in disturbances(seeds, summation="rank", precision="own")[: len(seeds) or 1]:
        disturbed = _train(lab, hook, choice)
        for rank, (found, expected) in enumerate(zip(disturbed, undisturbed, strict=True)):
            place = f'results[{len(lab.programs) - 1}][{rank}]["result"]["parameters"]'
            if np.isnan(found["parameters"]).any():
                raise ClauseFailure(
                    "unfinished",
                    f"rank {rank}: parameters are NaN after {TRAINED} steps, which no gradient was: a tensor was read "
                    "before the collective that writes it was complete. Wait for the work or its future, or go on in a "
                    "callback.",
                    expected="numbers",
                    found="NaN",
                    place=f"np.isnan({place}).any()",
                    holds="not found",
                )
            with advising("Nothing may depend on when a collective completes."):
                name = f"the parameters after {TRAINED} steps"
                expect_array(rank, name, found["parameters"], expected["parameters"], place)


def _train(world: World, hook: str, choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    program = ddp_training.train
    points = np.random.default_rng(0).uniform(-1.5, 1.5, (8 * world.size, 2)).astype(np.float32)
    labels = ((points**2).sum(1) < 1.8).astype(np.int64)
    arguments = {"hook": hook, "features": points, "labels": labels, "hidden": 24, "rate": 0.2, "steps": TRAINED}
    results: list[dict[str, Any]] = world.run(
        lab.run_in_lab,
        module=program.__module__,
        name=program.__name__,
        arguments=arguments,
        **{**choice, "options": {**choice["options"], "patience": PATIENCE * world.patience}},
    )
    return [result["result"] for result in results]
