"""The comparisons of the checks fail just above what is allowed and pass just below, with messages that say why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commhooks.conformance import averages, inputs
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import (
    expect_agreement,
    expect_array,
    expect_classes,
    expect_equal,
    expect_length,
    expect_member,
    expect_unchanged,
    expect_values,
    expect_within,
)
from commhooks.conformance.expected import deviation, exact_set, in_exact_set, mean, mean_bound
from commhooks.conformance.observations import Call

X = np.array([[1.0, 2.0, 3.0], [3.0, 5.0, -4.0]], np.float32)


def call(values: Any, rank: int = 0, **noted: Any) -> Call:
    """A call with that result."""
    array = np.asarray(values, np.float32)
    record = {"is_future": True, "value": "Tensor", "dtype": "float32", "values": array, **noted}
    return Call(rank, record, f'results[0][{rank}]["calls"][0]')


def holds(failure: ClauseFailure, found: object) -> bool:
    """What the reproduction script would say of a value found at the failure's place."""
    return bool(eval(failure.holds, {"found": found, "inf": np.inf, "nan": np.nan, "np": np}))


def test_within_a_bound() -> None:
    """An error of 0.999 times the bound passes; one of 1.001 times fails, and the message has all that matters."""
    expected, bound = mean(X), np.full(3, 1e-3)
    below = call(expected + np.array([0, 0.999e-3, 0]))
    expect_within(below, expected, np.abs(below.values - expected), bound)
    above = call(expected + np.array([0, 1.01e-3, 0]))
    with pytest.raises(ClauseFailure, match="rank 0, element 1 of 3: found") as caught:
        expect_within(above, expected, np.abs(above.values - expected), bound)
    failure = caught.value
    assert failure.kind == "value"
    assert failure.expected == "3.5"
    assert failure.bound == "0.001"
    assert failure.excess.startswith("1.01 times")
    assert failure.place == 'results[0][0]["calls"][0]["values"][1]'
    assert holds(failure, 3.5005)
    assert not holds(failure, 3.502)


def test_within_a_bound_of_nan() -> None:
    """A NaN is never within a bound."""
    with pytest.raises(ClauseFailure):
        expect_within(call([np.nan, 3.5, -0.5]), mean(X), np.array([np.inf, 0, 0]), np.full(3, 1e30))


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_mean_just_below_and_above(factor: float) -> None:
    """The whole way from gradients to verdict accepts just below the proved bound and rejects just above."""
    gradients = inputs.spread(2, 64, "float32")
    bound = mean_bound(gradients, "float32")
    values = mean(gradients) + factor * bound
    expected = call(values)
    expected.record["values"] = values  # type: ignore[index]
    if factor < 1:
        averages.expect_mean([expected], gradients, "float32")
        return
    with pytest.raises(ClauseFailure):
        averages.expect_mean([expected], gradients, "float32")


def test_a_second_rank_is_looked_at() -> None:
    """A rank that differs from the first is judged by itself."""
    right = mean(X)
    with pytest.raises(ClauseFailure, match="rank 1"):
        averages.expect_mean([call(right), call(right * 2, rank=1)], X, "float32")


def test_exact_neighbour_is_rejected() -> None:
    """The next number beside the only possible result is no member."""
    expected = exact_set(X, "float32")[0].astype(np.float32)
    averages.expect_exact([call(expected)], X, "float32")
    neighbour = np.nextafter(expected, np.float32(9))
    with pytest.raises(ClauseFailure, match="one of") as caught:
        averages.expect_exact([call(neighbour)], X, "float32")
    assert holds(caught.value, expected[0])
    assert not holds(caught.value, neighbour[0])
    member = in_exact_set(neighbour, X, "float32")
    with pytest.raises(ClauseFailure):
        expect_member(call(neighbour), member, exact_set(X, "float32"))


def test_values_bit_for_bit() -> None:
    """Zeros of both signs are equal and so are NaN; the last bit counts."""
    expect_values(call([0.0, np.nan, 1.0]), np.array([-0.0, np.nan, 1.0], np.float32))
    with pytest.raises(ClauseFailure, match="element 2"):
        expect_values(call([0.0, np.nan, np.nextafter(np.float32(1), np.float32(2))]), np.array([0, np.nan, 1]))


def test_array_shapes() -> None:
    """An array of another shape is a failure of the shape, not an error."""
    with pytest.raises(ClauseFailure, match=r"shape of it is \[2\], expected \[3\]"):
        expect_array(0, "it", np.zeros(2), np.zeros(3), "results[0]")


def test_length() -> None:
    """Neither another length nor another number of dimensions passes."""
    expect_length(call([1, 2, 3]), 3)
    for wrong in ([1, 2], [[1, 2, 3]]):
        with pytest.raises(ClauseFailure) as caught:
            expect_length(call(wrong), 3)
        assert caught.value.kind == "length"


def test_agreement() -> None:
    """Ranks that differ in one bit disagree, and both are named."""
    expect_agreement([call([1.0, np.nan]), call([1.0, np.nan], rank=1)])
    with pytest.raises(ClauseFailure, match=r"rank 0 has 2.0, rank 2 has 2.000") as caught:
        expect_agreement([call([1, 2]), call([1, 2], rank=1), call([1, np.nextafter(np.float32(2), 3)], rank=2)])
    assert caught.value.kind == "disagreement"


def test_unchanged() -> None:
    """A value that became another one is shown with both."""
    with pytest.raises(ClauseFailure, match=r"1.0 became 5.0 later on"):
        expect_unchanged(call([1.0], later=np.array([5.0])), np.array([1.0]), "later", "later on")


@pytest.mark.parametrize(("expected", "found"), [("finite", np.inf), ("+inf", -np.inf), ("-inf", 1.0), ("nan", 0.0)])
def test_classes(expected: str, found: float) -> None:
    """A number of another class is rejected, and the script's condition agrees."""
    right = {"finite": 1.0, "+inf": np.inf, "-inf": -np.inf, "nan": np.nan}[expected]
    expect_classes(call([right]), np.array([expected]))
    with pytest.raises(ClauseFailure) as caught:
        expect_classes(call([found]), np.array([expected]))
    assert holds(caught.value, right)
    assert not holds(caught.value, found)


def test_equal_facts() -> None:
    """A fact is shown with its name, what was found and what was expected."""
    with pytest.raises(ClauseFailure, match="rank 3: the dtype is 'float16', expected 'float32'"):
        expect_equal(3, "the dtype", "float16", "float32", "results", "dtype")


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"is_future": False, "returned": "NoneType"}, "no future"),
        ({"is_future": True, "value": "list"}, "no tensor"),
    ],
)
def test_results_that_are_none(record: dict[str, Any], kind: str) -> None:
    """Without a future of a tensor there are no values, and that is the failure."""
    with pytest.raises(ClauseFailure) as caught:
        _ = Call(0, record, "results").values
    assert caught.value.kind == kind


def test_bound_is_shown_able_to_fail() -> None:
    """The deviation of a sum taken for a mean is far beyond the bound."""
    assert (deviation(X.sum(0), X) > 1e6 * mean_bound(X, "float32")).all()
