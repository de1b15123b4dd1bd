"""register_comm_hook: what it accepts, what it refuses, and what a hook gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from commhooks.conformance.expectations import expect_equal
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.programs import ddp_registration
from commhooks.conformance.world import World


def register(world: World, *hooks: str, late: bool = False) -> dict[str, Any]:
    """What one rank notes when it registers hooks and trains a step."""
    result: dict[str, Any]
    (result,) = world.run(ddp_registration.register_hooks, hooks=list(hooks), late=late)
    return result


def expect_error(result: dict[str, Any], number: int, expected: str, what: str) -> None:
    """Expects a registration to have raised such an error; an empty text stands for none."""
    found, text = result["errors"][number]
    about = f"what registering {what} raises{f' ({text})' if text else ''}"
    expect_equal(0, about, found, expected, f'results[0][0]["errors"][{number}][0]', "error")


def expect_called(result: dict[str, Any], expected: Sequence[str]) -> None:
    """Expects these hooks, and no other, to have been called."""
    expect_equal(0, "the hooks that were called", result["called"], list(expected), 'results[0][0]["called"]', "calls")


@clauses("DDP-REGISTER-CALLABLE")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["a number", "None", "text"])
def test_not_callable(world: World, case: str) -> None:
    """What is not callable is a TypeError."""
    expect_error(register(world, case), 0, "TypeError", case)


@clauses("DDP-REGISTER-BUCKET-TYPE")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["bucket: int", "bucket: Tensor"])
def test_bucket_annotation(world: World, case: str) -> None:
    """A bucket annotated with another type is a ValueError."""
    expect_error(register(world, case), 0, "ValueError", f"a hook with {case}")


@clauses("DDP-REGISTER-RETURN-TYPE")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["-> int", "-> Future", "-> Future[list]", "-> Tensor"])
def test_return_annotation(world: World, case: str) -> None:
    """A return value annotated with another type is a ValueError."""
    expect_error(register(world, case), 0, "ValueError", f"a hook with {case}")


@clauses("DDP-REGISTER-UNANNOTATED")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["no annotations", "lambda", "bound method", "right annotations"])
def test_accepted(world: World, case: str) -> None:
    """Functions with the right annotations or none, lambdas and bound methods are accepted and called."""
    expect_accepted(world, case)


@clauses("DDP-REGISTER-CALLABLES")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["partial", "callable object"])
def test_other_callables(world: World, case: str) -> None:
    """A functools.partial and an object with __call__ are accepted and called."""
    expect_accepted(world, case)


@clauses("DDP-REGISTER-NAMES")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["other parameter names", "called bf16_compress_hook"])
def test_names(world: World, case: str) -> None:
    """A hook whose parameters, or itself, have other names is accepted and called."""
    expect_accepted(world, case)


@clauses("DDP-REGISTER-STRINGS")
@needs("DistributedDataParallel")
@worlds(1, 1)
@pytest.mark.parametrize("case", ["right strings", "wrong bucket string", "wrong return string"])
def test_strings(world: World, case: str) -> None:
    """The right annotations as strings are accepted, wrong ones are a ValueError."""
    if case == "right strings":
        expect_accepted(world, case)
    else:
        expect_error(register(world, case), 0, "ValueError", f"a hook with a {case} as annotation")


@clauses("DDP-REGISTER-ONCE")
@needs("DistributedDataParallel")
@worlds(1, 1)
def test_once(world: World) -> None:
    """A second registration is a RuntimeError, and the first hook is the one that is called."""
    result = register(world, "no annotations", "lambda")
    expect_error(result, 1, "RuntimeError", "a second hook")
    expect_called(result, ["no annotations"])


@clauses("DDP-REGISTER-FAILED")
@needs("DistributedDataParallel")
@worlds(1, 1)
def test_after_a_failed_registration(world: World) -> None:
    """After two refused hooks a right one is accepted and called."""
    result = register(world, "a number", "bucket: int", "no annotations")
    expect_error(result, 2, "", "a right hook after two wrong ones")
    expect_called(result, ["no annotations"])


@clauses("DDP-REGISTER-LATE")
@needs("DistributedDataParallel")
@worlds(1, 1)
def test_late(world: World, note: Callable[[str], None]) -> None:
    """After a backward pass a hook is refused, or accepted and called."""
    result = register(world, "no annotations", late=True)
    error, text = result["errors"][0]
    note(f"refused: {error}: {text}" if error else "accepted")
    expect_called(result, [] if error else ["no annotations"])


@clauses("DDP-HOOK-STATE")
@needs("DistributedDataParallel")
@worlds(1, 1)
def test_state(world: World) -> None:
    """The hook gets the very object that was registered as its state."""
    found = register(world, "no annotations")["same_state"]
    expect_equal(0, "getting the very state", found, [True], 'results[0][0]["same_state"]', "state")


def expect_accepted(world: World, case: str) -> None:
    """Expects a hook to be accepted, and to be called."""
    result = register(world, case)
    expect_error(result, 0, "", f"a hook with {case}")
    expect_called(result, [case])
