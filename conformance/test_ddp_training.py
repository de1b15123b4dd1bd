"""A small task trained with each hook inside data-parallel training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from commhooks.conformance import training
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_array
from commhooks.conformance.marks import clauses, every_hook, needs, unless, worlds
from commhooks.conformance.programs import ddp_training
from commhooks.conformance.world import World


@every_hook
@unless("local")
@clauses("HOOK-TRAINS")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_training(world: World, hook: str) -> None:
    """A small network learns as well as in one process, and its parameters stay the same on both ranks."""
    expect_trained(world, hook=hook)


@clauses("HOOK-TRAINS")
@needs("DistributedDataParallel", "powerSGD_hook", "PowerSGDState")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["powerSGD_hook, rank 1", "powerSGD_hook, rank 2, no warm start"])
def test_training_with_powersgd(world: World, case: str) -> None:
    """The same with powerSGD_hook and error feedback, which compresses from the third step on."""
    state: Mapping[str, Any] = {
        "matrix_approximation_rank": 2 if "rank 2" in case else 1,
        "start_powerSGD_iter": 2,
        "warm_start": "no warm" not in case,
    }
    expect_trained(world, hook="powerSGD_hook", state=state)


def expect_trained(world: World, **arguments: Any) -> None:
    """Expects a loss near that of one process, and the same parameters on all ranks."""
    results = world.run(ddp_training.train, **arguments)
    expected = results[0].get("parameters")
    for rank, result in enumerate(results):
        training.expect_registered(rank, result, arguments["hook"])
        place = f"results[0][{rank}]"
        expect_array(
            rank, "all parameters, compared with rank 0,", result["parameters"], expected, f'{place}["parameters"]'
        )
        alone = results[0]["alone"]
        allowed = alone + 0.2 * (result["start"] - alone)
        if result["loss"] <= allowed:
            continue
        raise ClauseFailure(
            "loss",
            f"rank {rank}: training brought the loss from {result['start']:.3g} to {result['loss']:.3g}, "
            f"in one process to {alone:.3g}",
            expected=f"at most {allowed:.3g}",
            found=f"{result['loss']:.3g}",
            place=f'{place}["loss"]',
            holds=f"found <= {allowed!r}",
        )
