"""The same clauses on generated gradients: a few fixed examples, or ``--search=N`` random ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commhooks.conformance.expectations import expect_element
from commhooks.conformance.expected import (
    FloatArray,
    float_type,
    mean,
    within_compressed_bound,
    within_mean_bound,
)
from commhooks.conformance.inputs import carried
from commhooks.conformance.marks import Half, clauses, needs
from commhooks.conformance.observations import Outcome, call_hook
from commhooks.conformance.world import World

LONGEST = 12


@st.composite
def per_rank_gradients(draw: st.DrawFn, world_size: int, dtype: str) -> FloatArray:
    """Gradients of shape ``(W, n)``, n from 1 to 12, of any size that the dtype holds."""
    length = draw(st.integers(1, LONGEST))
    largest = float_type(dtype).largest
    special = st.sampled_from([0.0, -0.0, 1.0, largest, np.inf, -np.inf, np.nan])
    number = st.floats(-largest, largest) | st.floats(-4, 4) | special
    values = draw(st.lists(number, min_size=world_size * length, max_size=world_size * length))
    return carried(np.reshape(np.array(values), (world_size, length)), dtype)


def fresh(world: World) -> World:
    """Forgets the programs of earlier examples, so that a reproduction script has the last one only."""
    world.programs.clear()
    return world


def expect_good(outcome: Outcome, gradients: FloatArray, dtype: str, wire: str | None = None) -> None:
    """Expects results that a right hook can give, infinities and NaN included."""
    expected = mean(gradients)
    for call in outcome.first:
        if wire is None:
            good = within_mean_bound(call.values, gradients, dtype, divide="either")
        else:
            good = within_compressed_bound(call.values, gradients, dtype, wire)
        expect_element(call, good, lambda place: f"{expected[place]!r} within its bound", lambda _: "False")


@clauses("ALLREDUCE-MEAN")
@needs("allreduce_hook", "subnormals")
@given(data=st.data())
def test_allreduce(world: World, dtype: str, data: st.DataObject) -> None:
    """The mean of generated gradients is right."""
    gradients = data.draw(per_rank_gradients(world.size, dtype))
    expect_good(call_hook(fresh(world), "allreduce_hook", dtype, gradients), gradients, dtype)


@clauses("{half.prefix}-MEAN")
@needs("{half.hook}", "subnormals")
@given(data=st.data())
def test_compress(world: World, half: Half, dtype: str, data: st.DataObject) -> None:
    """The mean of generated gradients is right within half precision."""
    gradients = data.draw(per_rank_gradients(world.size, dtype))
    expect_good(call_hook(fresh(world), half.hook, dtype, gradients), gradients, dtype, half.dtype)
