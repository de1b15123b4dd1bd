"""In the laboratory: sums in the orders and precisions of real backends."""

from __future__ import annotations

from typing import Any

import pytest

from commhooks.conformance import averages, inputs
from commhooks.conformance.laboratory import call_in_lab
from commhooks.conformance.laboratory_expectations import expect_no_error
from commhooks.conformance.marks import Half, claims, clauses, dtypes, every_hook, needs, worlds
from commhooks.conformance.world import World

SUMS: dict[str, dict[str, Any]] = {
    "ring": {"summation": "ring"},
    "tree, in float32": {"summation": "tree", "precision": "float32"},
    "reversed, in float64": {"summation": "reversed", "precision": "float64"},
}
cases = pytest.mark.parametrize("case", SUMS)
LENGTH = 150


@cases
@clauses("ALLREDUCE-MEAN")
@needs("allreduce_hook")
@worlds(2, 3)
def test_allreduce(lab: World, dtype: str, case: str) -> None:
    """The mean is within the bound whatever the order and the precision of the sum."""
    gradients = inputs.spread(lab.size, LENGTH, dtype)
    averages.expect_mean(_calls(lab, "allreduce_hook", dtype, gradients, case), gradients, dtype)


@cases
@clauses("{half.prefix}-MEAN")
@needs("{half.hook}")
@dtypes("float32")
@worlds(2, 3)
def test_compress(lab: World, half: Half, dtype: str, case: str) -> None:
    """The compressed mean is within the bound whatever the order and the precision of the sum."""
    gradients = inputs.spread(lab.size, LENGTH, dtype, reach=4)
    averages.expect_mean(_calls(lab, half.hook, dtype, gradients, case), gradients, dtype, half.dtype)


@every_hook
@cases
@claims("mean")
@clauses("HOOK-MEAN")
@worlds(2, 3)
def test_mean(lab: World, hook: str, dtype: str, case: str) -> None:
    """A hook that claims to average does so whatever the order and the precision of the sum."""
    gradients = inputs.spread(lab.size, LENGTH, dtype, reach=4)
    averages.expect_mean(_calls(lab, hook, dtype, gradients, case), gradients, dtype)


@every_hook
@cases
@claims("sum")
@clauses("HOOK-SUM")
@worlds(2, 3)
def test_sum(lab: World, hook: str, dtype: str, case: str) -> None:
    """A hook that claims to sum does so whatever the order and the precision of the sum."""
    gradients = inputs.spread(lab.size, LENGTH, dtype, reach=4)
    averages.expect_sum(_calls(lab, hook, dtype, gradients, case), gradients, dtype)


def _calls(lab: World, hook: str, dtype: str, gradients: Any, case: str) -> Any:
    seen = call_in_lab(lab, hook, dtype, [[gradients]], SUMS[case], shapes=[[[[LENGTH]]]])
    expect_no_error(seen)
    return seen.first
