"""Comparisons that a check makes, with messages that say what was expected, found and allowed.

Each raises ``ClauseFailure`` with the place of the first bad element, so that the reproduction script can look there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expected import BoolArray, Float64Array, FloatArray, classify, round_to, same_value
from commhooks.conformance.observations import Call, Outcome


def expect_within(call: Call, expected: FloatArray, error: Float64Array, bound: Float64Array) -> None:
    """Expects the result of one rank's call to be within a bound of the expected value.

    Args:
        call: The call.
        expected: Expected values, shape ``(n,)``, for the message.
        error: Distance of the result from the right value, element by element, computed precisely.
        bound: The largest allowed distance.
    """
    expect_length(call, len(expected))
    bad = ~(error <= bound)
    if not bad.any():
        return
    worst = int(np.argmax(np.where(bad, _excess(error, bound), -np.inf)))
    found, wanted, allowed = float(call.values[worst]), float(expected[worst]), float(bound[worst])
    times = float(_excess(error, bound)[worst])
    raise ClauseFailure(
        "value",
        f"rank {call.rank}, element {worst} of {len(expected)}: found {found!r}, expected {wanted!r}"
        f" ({int(bad.sum())} of {len(expected)} elements are wrong)",
        expected=repr(wanted),
        found=repr(found),
        bound=f"{allowed:.3g}",
        excess=f"{times:.3g} times the bound" if np.isfinite(times) else "not comparable",
        place=f'{call.place}["values"][{worst}]',
        holds=f"abs(float(found) - {wanted!r}) <= {allowed!r}",
    )


def expect_element(call: Call, good: BoolArray, expected: Callable[[int], str], holds: Callable[[int], str]) -> None:
    """Expects every element of a result to be good.

    Args:
        call: The call.
        good: Which elements are, shape ``(n,)``.
        expected: The expected value of an element, for the message.
        holds: The condition over ``found`` that an element has to meet, for the reproduction script.
    """
    if good.all():
        return
    place = int(np.argmin(good))
    found = float(call.values[place])
    raise ClauseFailure(
        "value",
        f"rank {call.rank}, element {place} of {len(good)}: found {found!r}, expected {expected(place)}"
        f" ({int((~good).sum())} of {len(good)} elements are wrong)",
        expected=expected(place),
        found=repr(found),
        place=f'{call.place}["values"][{place}]',
        holds=holds(place),
    )


def expect_values(call: Call, expected: FloatArray, what: str = "") -> None:
    """Expects a result that equals ``expected`` bit for bit, but for the sign of zero and the payload of NaN."""
    expect_length(call, len(expected))
    good = same_value(call.values.astype(np.float64), expected.astype(np.float64))
    expect_element(
        call,
        good,
        lambda place: f"{float(expected[place])!r}{f' ({what})' if what else ''}",
        lambda place: _equals(float(expected[place])),
    )


def expect_member(call: Call, member: BoolArray, allowed: Sequence[FloatArray] | FloatArray) -> None:
    """Expects every element of a result to be one of the values allowed for it."""
    expect_length(call, len(member))

    def choices(place: int) -> list[float]:
        return sorted({float(candidate[place]) for candidate in allowed})

    expect_element(
        call,
        member,
        lambda place: "one of " + ", ".join(map(repr, choices(place))),
        lambda place: " or ".join(_equals(value) for value in choices(place)),
    )


@contextlib.contextmanager
def advising(advice: str | Callable[[], str]) -> Iterator[None]:
    """Says in failures what to do, where the kind of failure alone would not tell; asks for it only then."""
    try:
        yield
    except ClauseFailure as failure:
        text = advice if isinstance(advice, str) else advice()
        failure.message = f"{failure.message}\n{text}".strip()
        raise


def keeps(expect: Callable[..., None], *arguments: Any) -> bool:
    """Whether an expectation is met, for what is allowed either way."""
    try:
        expect(*arguments)
    except ClauseFailure:
        return False
    return True


def expect_same(outcome: Outcome, other: Outcome, what: str, dtype: str | None = None) -> None:
    """Expects two programs to have given the same bits on every rank, call by call.

    With ``dtype`` results of another dtype are cast to it first, as data-parallel training does; whether the dtype is
    right is another clause.
    """
    for calls, others in zip(outcome.calls, other.calls, strict=True):
        for call, one in zip(calls, others, strict=True):
            expect_length(call, len(one.values))
            found, expected = (
                values if dtype is None else round_to(values, dtype) for values in (call.values, one.values)
            )
            expect_array(call.rank, f"the result, compared with {what},", found, expected, f'{call.place}["values"]')


def expect_array(rank: int, name: str, found: FloatArray, expected: FloatArray, place: str) -> None:
    """Expects an array that was noted to have the expected values, but for the sign of zero and the payload of NaN."""
    expect_equal(rank, f"the shape of {name}", list(found.shape), list(expected.shape), f"list({place}.shape)", "shape")
    good = same_value(found.astype(np.float64), expected.astype(np.float64))
    if good.all():
        return
    element = int(np.argmin(good))
    wanted, is_now = float(expected[element]), float(found[element])
    raise ClauseFailure(
        "value",
        f"rank {rank}: element {element} of {name} is {is_now!r}, expected {wanted!r}"
        f" ({int((~good).sum())} of {len(good)} elements are wrong)",
        expected=repr(wanted),
        found=repr(is_now),
        place=f"{place}[{element}]",
        holds=_equals(wanted),
    )


def expect_agreement(calls: Sequence[Call]) -> None:
    """Expects all ranks to have the same bits."""
    first = calls[0]
    for call in calls[1:]:
        expect_length(call, len(first.values))
        different = ~same_value(call.values.astype(np.float64), first.values.astype(np.float64))
        if different.any():
            place = int(np.argmax(different))
            one, other = float(first.values[place]), float(call.values[place])
            raise ClauseFailure(
                "disagreement",
                f"element {place}: rank {first.rank} has {one!r}, rank {call.rank} has {other!r}"
                f" ({int(different.sum())} of {len(different)} elements differ)",
                expected="the same bits on every rank",
                found=f"{one!r} and {other!r}",
                place=f'({first.place}["values"][{place}], {call.place}["values"][{place}])',
                holds="float(found[0]) == float(found[1])",
            )


def expect_unchanged(call: Call, before: FloatArray, key: str, when: str) -> None:
    """Expects the tensor that a call noted under ``key`` to have the values it had before."""
    after = call.record[key]
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        different = ~same_value(after.astype(np.float64), before.astype(np.float64))
    if different.any():
        place = int(np.argmax(different))
        was, is_now = float(before[place]), float(after[place])
        raise ClauseFailure(
            "changed",
            f"rank {call.rank}, element {place}: {was!r} became {is_now!r} {when}"
            f" ({int(different.sum())} of {len(different)} elements changed)",
            expected=repr(was),
            found=repr(is_now),
            place=f'{call.place}["{key}"][{place}]',
            holds=_equals(was),
        )


def expect_classes(call: Call, expected: npt.NDArray[np.str_]) -> None:
    """Expects infinities and NaN where they belong: ``expected`` has "finite", "+inf", "-inf" or "nan"."""
    expect_length(call, len(expected))
    conditions = {
        "finite": "np.isfinite(found)",
        "+inf": "found == inf",
        "-inf": "found == -inf",
        "nan": "found != found",
    }
    expect_element(
        call,
        classify(call.values) == expected,
        lambda place: f"{expected[place]}",
        lambda place: conditions[str(expected[place])],
    )


def expect_length(call: Call, length: int) -> None:
    """Expects a flat result of that many elements."""
    found = list(call.values.shape)
    expect_equal(call.rank, "shape", found, [length], f'{call.place}["shape"]', "length")


def expect_equal(rank: int, name: str, found: Any, expected: Any, place: str, kind: str) -> None:
    """Expects one noted fact, which is plain data, to be as it should."""
    if found != expected:
        raise ClauseFailure(
            kind,
            f"rank {rank}: {name} is {found!r}, expected {expected!r}",
            expected=repr(expected),
            found=repr(found),
            place=place,
            holds=f"found == {expected!r}",
        )


def each_call(outcome: Outcome) -> Iterable[Call]:
    """Every call of every rank."""
    return (call for calls in outcome.calls for call in calls)


def _excess(error: Float64Array, bound: Float64Array) -> Float64Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    return np.nan_to_num(ratio, nan=np.inf, posinf=np.inf)


def _equals(value: float) -> str:
    return "found != found" if np.isnan(value) else f"float(found) == float({str(value)!r})"
