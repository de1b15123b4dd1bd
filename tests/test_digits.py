"""Handwritten digits, learnt with each hook inside data-parallel training as well as in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from commhooks.conformance import training
from commhooks.conformance.world import Implementation, Launcher, RankSettings

datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn, whose package comes with the digits")

HOOKS: dict[str, tuple[str, Mapping[str, Any] | None]] = {
    "allreduce": ("allreduce_hook", None),
    "fp16": ("fp16_compress_hook", None),
    "bf16": ("bf16_compress_hook", None),
    "fp16 wrapper": ("fp16_compress_wrapper(allreduce_hook)", None),
    "PowerSGD": ("powerSGD_hook", {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2}),
    "PowerSGD, rank 2": ("powerSGD_hook", {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2}),
    "compressed PowerSGD": (
        "fp16_compress_wrapper(powerSGD_hook)",
        {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2},
    ),
    "batched PowerSGD": ("batched_powerSGD_hook", {"matrix_approximation_rank": 4, "start_powerSGD_iter": 2}),
}
# Without what torch 2.13 refuses or cannot do on the CPU.
CASES = [("reference", name) for name in HOOKS]
CASES += [("torch", name) for name in ("allreduce", "fp16", "fp16 wrapper", "PowerSGD", "PowerSGD, rank 2")]
EXAMPLES = 300
# How many fewer of them may be told apart. Without error feedback it would be about 40.
MARGIN = 3


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """Where ranks are forked from."""
    started = Launcher()
    yield started
    started.close()


@pytest.fixture(scope="module")
def implementations(launcher: Launcher) -> Iterator[Mapping[str, Implementation]]:
    """The reference in its own data-parallel training, and torch's hooks in torch's."""
    made = {name: Implementation(name, RankSettings(timeout=60.0), launcher) for name in ("reference", "torch")}
    for implementation in made.values():
        implementation.obstacle(1)  # asks for the backend too
        implementation.prepare()
    yield made
    for implementation in made.values():
        implementation.close()


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("implementation", "name"), CASES)
def test_digits(implementations: Mapping[str, Implementation], implementation: str, name: str, world_size: int) -> None:
    """All ranks end with the same parameters, which tell nearly as many digits apart as those of one process."""
    hook, state = HOOKS[name]
    digits = datasets.load_digits()
    features = (digits.data[:EXAMPLES] / 16.0).astype(np.float32)
    labels = digits.target[:EXAMPLES].astype(np.int64)
    world = implementations[implementation].world(world_size)
    results = training.expect_trained(world, hook, features, labels, hidden=24, rate=0.5, steps=120, state=state)
    alone = round(results[0]["right_alone"] * EXAMPLES)
    assert alone > 0.98 * EXAMPLES
    for result in results:
        assert round(result["right"] * EXAMPLES) >= alone - MARGIN
