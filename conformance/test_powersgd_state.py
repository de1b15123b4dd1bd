"""PowerSGDState: what its constructor takes, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from commhooks.conformance.cells import ClauseFailure, Unsupported
from commhooks.conformance.expectations import expect_equal
from commhooks.conformance.low_rank import MODES
from commhooks.conformance.marks import clauses, needs
from commhooks.conformance.observations import run_program
from commhooks.conformance.programs.powersgd import make_states
from commhooks.conformance.world import World

DEFAULTS = {
    "matrix_approximation_rank": 1,
    "start_powerSGD_iter": 1000,
    "min_compression_rate": 2,
    "use_error_feedback": True,
    "warm_start": True,
    "orthogonalization_epsilon": 0,
    "random_seed": 0,
    "compression_stats_logging_frequency": 10_000,
}
WRONG: dict[str, list[tuple[Any, str]]] = {
    "matrix_approximation_rank": [(0, "ValueError"), (-1, "ValueError"), ("2", "TypeError")],
    "start_powerSGD_iter": [(-1, "ValueError"), ("10", "TypeError")],
    "min_compression_rate": [(-0.5, "ValueError"), (float("nan"), "ValueError"), ("2", "TypeError")],
    "use_error_feedback": [("yes", "TypeError")],
    "warm_start": [("yes", "TypeError")],
    "orthogonalization_epsilon": [(-1e-8, "ValueError"), (float("inf"), "ValueError"), ("0", "TypeError")],
    "random_seed": [(-1, "ValueError"), (0.5, "TypeError")],
    "compression_stats_logging_frequency": [(0, "ValueError"), ("2", "TypeError")],
}
FLAGS = {
    mode: {name: options[name] for name in ("use_error_feedback", "warm_start")} for mode, options in MODES.items()
}


def made(world: World, arguments: Sequence[Mapping[str, Any]]) -> list[Sequence[tuple[str, str]]]:
    """By rank what the constructor raised for each of ``arguments``: type and text, or empty texts."""
    results, _ = run_program(world, make_states, arguments=[dict(one) for one in arguments])
    return [result["made"] for result in results]


def expect_defaults(world: World, expected: Mapping[str, Any]) -> None:
    """Expects the constructor to have these defaults."""
    results, _ = run_program(world, make_states, arguments=[])
    for rank, result in enumerate(results):
        defaults = result["defaults"]
        if defaults is None or not set(expected) <= set(defaults):
            raise Unsupported("the defaults of PowerSGDState's constructor cannot be seen in its signature")
        for name, value in expected.items():
            place = f'results[0][{rank}]["defaults"][{name!r}]'
            expect_equal(rank, f"the default of {name}", defaults[name], value, place, "default")


@clauses("PSGD-DEFAULTS")
@needs("PowerSGDState")
def test_defaults(world: World) -> None:
    """The constructor has the documented defaults."""
    expect_defaults(world, DEFAULTS)


@clauses("PSGD-BATCH-DEFAULT")
@needs("PowerSGDState.batch_tensors_with_same_shape")
def test_batch_default(world: World) -> None:
    """Tensors of the same shape are not batched by default."""
    expect_defaults(world, {"batch_tensors_with_same_shape": False})


@clauses("PSGD-ARGUMENTS")
@needs("PowerSGDState")
@pytest.mark.parametrize("case", list(WRONG))
def test_arguments(world: World, case: str) -> None:
    """A wrong argument is refused with an error of the right kind, which names it."""
    for rank, outcomes in enumerate(made(world, [{case: value} for value, _ in WRONG[case]])):
        for number, ((error, text), (value, expected)) in enumerate(zip(outcomes, WRONG[case], strict=True)):
            if error == expected and case in text:
                continue
            raise ClauseFailure(
                "accepted" if not error else "error",
                f"rank {rank}: {case}={value!r} gives {f'{error}: {text}' if error else 'a state'}",
                expected=f"{expected} with {case!r} in its text",
                found=f"{error}: {text}" if error else "no error",
                place=f'results[0][{rank}]["made"][{number}]',
                holds=f"found[0] == {expected!r} and {case!r} in found[1]",
            )


@clauses("PSGD-START-REFUSED")
@needs("PowerSGDState")
@pytest.mark.parametrize("case", [mode for mode in FLAGS if mode != "neither"])
def test_start_refused(world: World, case: str) -> None:
    """Compression in step 0 or 1 is refused with either flag on."""
    for rank, outcomes in enumerate(made(world, [{**FLAGS[case], "start_powerSGD_iter": start} for start in (0, 1)])):
        for start, (error, _) in enumerate(outcomes):
            place = f'results[0][{rank}]["made"][{start}][0]'
            expect_equal(rank, f"what start_powerSGD_iter={start} raises", error, "ValueError", place, "accepted")


@clauses("PSGD-START-ALLOWED")
@needs("PowerSGDState")
def test_start_allowed(world: World) -> None:
    """Compression in step 0 or 1 is accepted with both flags off, and from step 2 on with any."""
    early = [{**FLAGS["neither"], "start_powerSGD_iter": start} for start in (0, 1)]
    later = [{**flags, "start_powerSGD_iter": start} for flags in FLAGS.values() for start in (2, 3, 1000)]
    for rank, outcomes in enumerate(made(world, [*early, *later])):
        for number, ((error, _), keywords) in enumerate(zip(outcomes, [*early, *later], strict=True)):
            place = f'results[0][{rank}]["made"][{number}][0]'
            expect_equal(rank, f"what {keywords} raises", error, "", place, "refused")
