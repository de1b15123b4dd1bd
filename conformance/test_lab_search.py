"""In the laboratory: everything at once, drawn; a few fixed draws, or ``--search=N`` random ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from commhooks.conformance.expectations import advising
from commhooks.conformance.laboratory import HELD, at_leisure, call_in_lab, drawn_seeds, gradients
from commhooks.conformance.laboratory_expectations import (
    expect_as_at_leisure,
    expect_finite,
    expect_same_collectives,
)
from commhooks.conformance.marks import clauses, dtypes, every_hook, stateful, worlds
from commhooks.conformance.world import Implementation, World

# What a draw of the laboratory's options also decides, and what must not change a bit of the results.
UNDISTURBED: dict[str, Any] = {
    "delay": 0.0,
    "completion_order": "issued",
    "callback_threads": "each",
    "slow_rank": None,
}
# Without a search one draw for each world size, with sums as they are in undisturbed runs, which others look at too.
FIXED = {2: 1, 3: 2, 4: 12}
SUMS: dict[str, Any] = {"summation": "rank", "precision": "own"}


@every_hook
@stateful
@clauses("HOOK-ANY-ORDER", "HOOK-ORDER")
@dtypes("float32")
@worlds(2, 4)
def test_drawn(
    request: pytest.FixtureRequest, lab: World, implementation: Implementation, hook: str, dtype: str
) -> None:
    """Delays, orders of completion, callbacks on one thread and a slow rank change no bit of three buckets' results."""
    steps = gradients(lab, dtype, buckets=3)
    seeds: Sequence[int | None] = drawn_seeds(request.config) or [None]
    for seed in seeds:
        lab.programs.clear()
        drawn = FIXED[lab.size] if seed is None else seed
        chosen = {"hold": HELD, **(SUMS if seed is None else {})}
        with advising(f"The laboratory's options were drawn with the seed {drawn}."):
            disturbed = call_in_lab(lab, hook, dtype, steps, chosen, drawn=drawn)
            expect_same_collectives(disturbed)
            expect_finite(disturbed)
            if "random" in implementation.description.claims:
                continue
            if seed is None:
                undisturbed = at_leisure(lab, hook, dtype, buckets=3)
            else:
                undisturbed = call_in_lab(lab, hook, dtype, steps, UNDISTURBED, drawn=seed)
            expect_as_at_leisure(disturbed, undisturbed, "disturbances")
