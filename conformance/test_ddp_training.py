"""A small task trained with each hook inside data-parallel training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from commhooks.conformance import training
from commhooks.conformance.marks import clauses, every_hook, needs, unless, worlds
from commhooks.conformance.world import World

STATES: dict[str, Mapping[str, Any]] = {
    "powerSGD_hook, rank 1": {"matrix_approximation_rank": 1},
    "powerSGD_hook, rank 2, no warm start": {"matrix_approximation_rank": 2, "warm_start": False},
    "batched_powerSGD_hook, rank 2": {"matrix_approximation_rank": 2},
}


def train(world: World, hook: str, **arguments: Any) -> None:
    """Has a network learn which points lie inside of a ring, and expects it to learn as well as in one process."""
    points = np.random.default_rng(0).uniform(-1.5, 1.5, (128 * world.size, 2)).astype(np.float32)
    labels = ((points**2).sum(1) < 1.8).astype(np.int64)
    features = np.concatenate([points, points**2], 1)
    training.expect_trained(world, hook, features, labels, hidden=24, rate=0.2, steps=30, **arguments)


@every_hook
@unless("local")
@clauses("HOOK-TRAINS")
@needs("DistributedDataParallel")
@worlds(2, 4)
def test_training(world: World, hook: str) -> None:
    """A small network learns as well as in one process, and its parameters stay the same on all ranks."""
    train(world, hook)


@clauses("HOOK-TRAINS")
@needs("DistributedDataParallel", "powerSGD_hook", "PowerSGDState")
@worlds(2, 4)
@pytest.mark.parametrize("case", [case for case in STATES if case.startswith("powerSGD")])
def test_training_with_powersgd(world: World, case: str) -> None:
    """The same with powerSGD_hook and error feedback, which compresses from the third step on."""
    train(world, "powerSGD_hook", state={"start_powerSGD_iter": 2, **STATES[case]})


@clauses("HOOK-TRAINS")
@needs("DistributedDataParallel", "batched_powerSGD_hook", "PowerSGDState")
@worlds(2, 4)
@pytest.mark.parametrize("case", [case for case in STATES if case.startswith("batched")])
def test_training_with_batched_powersgd(world: World, case: str) -> None:
    """The same with batched_powerSGD_hook, which cuts the whole bucket into a square matrix."""
    train(world, "batched_powerSGD_hook", state={"start_powerSGD_iter": 2, **STATES[case]})
