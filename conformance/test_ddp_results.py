"""What data-parallel training does with what a hook gives back, and with hooks that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from commhooks.conformance import training
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_array
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.programs import ddp_results
from commhooks.conformance.world import World

NUMBERS = np.arange(1.0, 13.0)


def give_back(world: World, what: str, **arguments: Any) -> list[dict[str, Any]]:
    """Has a hook give something back in ranks that are used for nothing else afterwards."""
    try:
        # The hook's result, and the collective of another rank, may be waited for that long.
        limit = training.hang_limit(world) + 2 * float(arguments.get("seconds", 0.0))
        return world.run(ddp_results.give_back, what=what, limit=limit, **arguments)
    finally:
        world.close()


def expect_error(results: list[dict[str, Any]], what: str, *errors: str, text: str = "", key: str = "") -> None:
    """Expects one of ``errors`` on every rank, with ``text`` in it; ``key`` is "next_" for the step after."""
    for rank, result in enumerate(results):
        found, message = result[f"{key}error"], result[f"{key}text"]
        if found in errors and text in message:
            continue
        with_text = f" with {text!r}" if text else ""
        raise ClauseFailure(
            "no error" if not found else "error",
            f"rank {rank}: a hook that gives back, or does, this: {what}; the backward pass raised "
            f"{found or 'nothing'}{f': {message}' if message else ''}, expected {' or '.join(errors)}{with_text}"
            + (f"; the gradients became {result['gradient'].tolist()}" if not found else ""),
            expected=f"{' or '.join(errors)}{with_text}",
            found=f"{found}: {message}" if found else "no error",
            place=f'(results[0][{rank}]["{key}error"], results[0][{rank}]["{key}text"])',
            holds=f"found[0] in {errors!r} and {text!r} in found[1]",
        )


@clauses("DDP-RESULT-NOT-A-FUTURE")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["None", "a tensor", "a number", "text"])
def test_not_a_future(world: World, case: str) -> None:
    """What is no future is a RuntimeError."""
    expect_error(give_back(world, case), case, "RuntimeError", "TypeError")


@clauses("DDP-RESULT-NOT-A-TENSOR")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize(
    "case", ["future of None", "future of a list", "future of a tuple", "future of a number", "future of a collective"]
)
def test_not_a_tensor(world: World, case: str) -> None:
    """A future of something else than one tensor is a RuntimeError that speaks of a tensor."""
    expect_error(give_back(world, case), case, "RuntimeError", "TypeError", text="ensor")


@clauses("DDP-RESULT-LENGTH")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["shorter", "shorter view of the buffer", "longer"])
def test_length(world: World, case: str) -> None:
    """A result of another length is a RuntimeError."""
    expect_error(give_back(world, case), case, "RuntimeError", "ValueError")


@clauses("DDP-RESULT-DTYPE")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["half", "double", "int64"])
def test_dtype(world: World, case: str, note: Callable[[str], None]) -> None:
    """A result of another dtype is a RuntimeError, or its values become the gradients."""
    expect_error_or_values(give_back(world, case), case, note)


@clauses("DDP-RESULT-LAYOUT")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["two dimensions", "not contiguous", "with an offset"])
def test_layout(world: World, case: str, note: Callable[[str], None]) -> None:
    """A result that is not flat or lies otherwise in memory is a RuntimeError, or its values become the gradients."""
    expect_error_or_values(give_back(world, case), case, note)


def expect_error_or_values(results: list[dict[str, Any]], case: str, note: Callable[[str], None]) -> None:
    """Expects a RuntimeError on every rank, or the gradients 1 to 12."""
    for rank, result in enumerate(results):
        if result["error"]:
            expect_error(results, case, "RuntimeError", "TypeError", "ValueError")
            note(f"{case}: refused")
            continue
        name = f"the gradient after a result {case}"
        expect_array(rank, name, result["gradient"], NUMBERS, f'results[0][{rank}]["gradient"]')
        note(f"{case}: accepted")


@clauses("DDP-HOOK-RAISES")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["in the first step", "in step 3"])
def test_hook_raises(world: World, case: str) -> None:
    """An exception raised in the hook comes out of that backward pass with its type and text."""
    results = give_back(world, "raises", at_step=3 if case == "in step 3" else 0)
    expect_error(results, "raises LookupError", "LookupError", text="the hook's own text")


@clauses("DDP-FUTURE-FAILS")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["set_exception", "raises in then"])
def test_future_fails(world: World, case: str) -> None:
    """An exception in the future comes out of the backward pass with its text."""
    text = "the future's own text" if case == "set_exception" else "the callback's own text"
    expect_error(give_back(world, case), case, "RuntimeError", "LookupError", text=text)


@clauses("DDP-FUTURE-NEVER")
@needs("DistributedDataParallel")
@worlds(1, 1)
def test_future_never_completes(world: World) -> None:
    """A future that never completes is a RuntimeError when the time is over that was set."""
    expect_error(give_back(world, "never completes", seconds=0.2), "never completes", "RuntimeError", "TimeoutError")


@clauses("DDP-FAILED")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["raises", "raises in then"])
def test_next_step(world: World, case: str, note: Callable[[str], None]) -> None:
    """The step after a failure works, or is a RuntimeError that says what failed."""
    results = give_back(world, case)
    for rank, result in enumerate(results):
        if not result["next_error"]:
            place = f'results[0][{rank}]["next_gradient"]'
            expect_array(rank, "the gradient of the step after", result["next_gradient"], np.full(12, 5.0), place)
            note("the next step works")
            continue
        note(f"refused: {result['next_text'][:60]}")
        expect_error(results, f"{case}, one step later", "RuntimeError", text="own text", key="next_")


@clauses("DDP-ONE-RANK-FAILS")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_one_rank_fails(world: World) -> None:
    """If the hook raises on rank 1 in step 3, rank 0 has an error when the time limit is over."""
    first, second = give_back(world, "raises", at_step=3, only_rank=1, seconds=0.8)
    expect_error([first], "waits for a collective that rank 1 never starts", "RuntimeError", "DistBackendError")
    expect_error([second], "raises LookupError", "LookupError", text="own text")
