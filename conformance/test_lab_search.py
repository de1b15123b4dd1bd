"""In the laboratory: everything at once, drawn; a few fixed draws, or ``--search=N`` random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from commhooks.conformance import laboratory
from commhooks.conformance.laboratory import (
    call_in_lab,
    expect_as_at_leisure,
    expect_finite,
    expect_same_collectives,
)
from commhooks.conformance.marks import clauses, dtypes, every_hook, worlds
from commhooks.conformance.world import Implementation, World

# What a draw of the laboratory's options also decides, and what must not change a bit of the results.
UNDISTURBED: dict[str, Any] = {
    "delay": 0.0,
    "completion_order": "issued",
    "callback_threads": "each",
    "slow_rank": None,
}
HELD = 0.25
FIXED = (0, 1, 2, 3)


def seeds(config: pytest.Config) -> Sequence[int]:
    """The fixed seeds, or as many random ones as were asked for; they are replayed as other searches are.

    Hypothesis would run a failed example again, and call a hook flaky that fails by its timing.
    """
    count = config.getoption("--search")
    draw = random.Random(str(getattr(config.option, "hypothesis_seed", "")))
    return [draw.randrange(2**32) for _ in range(count)] if count else FIXED


@every_hook
@clauses("HOOK-LATE", "HOOK-ANY-ORDER", "HOOK-ORDER")
@dtypes("float32")
@worlds(2, 2)
def test_drawn(
    request: pytest.FixtureRequest, lab: World, implementation: Implementation, hook: str, dtype: str
) -> None:
    """Delays, orders of completion, callbacks on one thread and a slow rank change no bit of three buckets' results."""
    for seed in seeds(request.config):
        lab.programs.clear()
        steps = laboratory.gradients(lab, hook, dtype, buckets=3)
        disturbed = call_in_lab(lab, hook, dtype, steps, {"hold": HELD}, drawn=seed)
        expect_same_collectives(disturbed)
        expect_finite(disturbed)
        if "random" not in implementation.description.claims:
            undisturbed = call_in_lab(lab, hook, dtype, steps, UNDISTURBED, drawn=seed)
            expect_as_at_leisure(disturbed, undisturbed, f"disturbances (those drawn with the seed {seed})")
