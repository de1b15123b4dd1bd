"""What data-parallel training leaves behind: after a step, and when it is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from commhooks.conformance.cells import ClauseFailure, NotRun
from commhooks.conformance.expectations import expect_array, expect_equal
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.programs import ddp_lifetime
from commhooks.conformance.world import World

WIDTH = 512
BUCKET = 4 * WIDTH**2
# P and Q of powerSGD_hook, and whatever Python objects come and go; a half-precision copy of the bucket is larger.
SLACK = BUCKET // 4
STATES: dict[str, Mapping[str, Any]] = {
    "powerSGD_hook": {},
    "powerSGD_hook, no error feedback": {"use_error_feedback": False, "warm_start": False},
    "batched_powerSGD_hook": {},
}


@clauses("DDP-MEMORY")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_memory(world: World, hook: str) -> None:
    """After a step nothing of a bucket's size is left in memory by the hook."""
    expect_memory(world, hook, buckets=0)


@clauses("DDP-MEMORY")
@needs("DistributedDataParallel", "powerSGD_hook", "PowerSGDState")
@worlds(2, 2)
@pytest.mark.parametrize("case", [case for case in STATES if case.startswith("powerSGD")])
def test_memory_of_powersgd(world: World, case: str) -> None:
    """powerSGD_hook keeps the error of a bucket with error feedback, and nothing of its size without."""
    expect_memory(world, "powerSGD_hook", "no error" not in case, {"start_powerSGD_iter": 2, **STATES[case]})


@clauses("DDP-MEMORY")
@needs("DistributedDataParallel", "batched_powerSGD_hook", "PowerSGDState")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["batched_powerSGD_hook"])
def test_memory_of_batched_powersgd(world: World, case: str) -> None:
    """batched_powerSGD_hook keeps the error of a bucket."""
    expect_memory(world, "batched_powerSGD_hook", True, {"start_powerSGD_iter": 2, **STATES[case]})


def expect_memory(world: World, hook: str, buckets: int, state: Mapping[str, Any] | None = None) -> None:
    """Expects no more in use after a step than the parameter, the bucket's buffer, and so many buckets more."""
    allowed = (2 + buckets) * BUCKET + SLACK
    results = world.run(ddp_lifetime.memory_left, hook=hook, width=WIDTH, steps=4, allowed=allowed, state=state)
    for rank, left in enumerate(results):
        if left is None:
            raise NotRun("needs the GNU C library, which tells how much memory is in use")
        if left <= allowed:
            continue
        raise ClauseFailure(
            "memory",
            f"rank {rank}: after a step with {hook} and without gradients {left} bytes are in use, where parameter and "
            f"bucket have {BUCKET} each; expected at most {allowed}: let go of buffers and results when a step is over",
            expected=f"at most {allowed} bytes",
            found=f"{left} bytes",
            place=f"results[0][{rank}]",
            holds=f"found <= {allowed}",
        )


@clauses("DDP-LIFETIME")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_lifetime(world: World) -> None:
    """When the wrapper is dropped, the hook and its state go with it."""
    for rank, result in enumerate(world.run(ddp_lifetime.drop_the_wrapper)):
        place = f'results[0][{rank}]["alive"]'
        expect_equal(rank, "what is still alive", result["alive"], [], place, "lifetime")


@clauses("DDP-UNWRAPPED")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_unwrapped(world: World) -> None:
    """When the wrapper is dropped, the model has the rank's own gradients again."""
    for rank, result in enumerate(world.run(ddp_lifetime.drop_the_wrapper)):
        place = f'results[0][{rank}]["gradient"]'
        expect_array(rank, "the gradient", result["gradient"], np.full(6, 1.0 + rank), place)
