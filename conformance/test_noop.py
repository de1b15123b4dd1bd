"""noop_hook: each rank's own gradients, untouched."""

from __future__ import annotations

from commhooks.conformance import inputs
from commhooks.conformance.expectations import expect_equal, expect_values
from commhooks.conformance.marks import clauses, dtypes, needs, worlds
from commhooks.conformance.observations import call_hook
from commhooks.conformance.world import World


@clauses("NOOP-BUFFER")
@needs("noop_hook")
def test_buffer(world: World, dtype: str) -> None:
    """The result is the bucket's buffer itself, and it has the rank's own values."""
    gradients = inputs.spread(world.size, 33, dtype)
    for call in call_hook(world, "noop_hook", dtype, gradients).first:
        expect_values(call, gradients[call.rank], "the rank's own")
        expect_equal(
            call.rank,
            "being the buffer itself",
            call.record["is_buffer"],
            True,
            f'{call.place}["is_buffer"]',
            "identity",
        )


@clauses("NOOP-ALONE")
@needs("noop_hook")
@dtypes("float32")
@worlds(at_least=2)
def test_alone(world: World, dtype: str) -> None:
    """One rank can call the hook while all others do not."""
    gradients = inputs.spread(world.size, 8, dtype)
    absent = [{"absent": rank > 0} for rank in range(world.size)]
    outcome = call_hook(world, "noop_hook", dtype, gradients, each=absent)
    expect_values(outcome.first[0], gradients[0], "the rank's own")
