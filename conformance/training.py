"""What the ranks saw in data-parallel training with given gradients, in a form that checks can ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_array, expect_equal
from commhooks.conformance.expected import Float64Array
from commhooks.conformance.programs import ddp_passes
from commhooks.conformance.world import World

Action = dict[str, Any]
Gradients = list[Any]
SHAPES = ((5, 3), (4,), (2, 3))
# Before, at and well after the rebuild of the buckets.
STEPS = 6


@dataclass(frozen=True)
class Rank:
    """What one rank noted in ``programs.ddp_passes.run_passes``.

    Attributes:
        rank: The rank.
        record: What it noted.
        place: Where the record stands in the results, for the reproduction script.
    """

    rank: int
    record: Mapping[str, Any]
    place: str

    def expect(self, name: str, found: Any, expected: Any, place: str, kind: str) -> None:
        """Expects something noted to be as it should; ``place`` stands behind the place of the record."""
        expect_equal(self.rank, name, found, expected, f"{self.place}{place}", kind)

    def expect_gradients(self, note: int, expected: Sequence[Any], when: str) -> None:
        """Expects the gradients of one "note", bit for bit but for the sign of zero; None means no gradient."""
        for parameter, wanted in enumerate(expected):
            found = self.record["notes"][note][parameter]["values"]
            place = f'["notes"][{note}][{parameter}]["values"]'
            name = f"the gradient of parameter {parameter} {when}"
            if wanted is None or found is None:
                self.expect(f"{name}: being None", found is None, wanted is None, f"{place} is None", "presence")
                continue
            expect_array(self.rank, name, found, np.ravel(np.asarray(wanted)), f"{self.place}{place}")

    def expect_buckets(self, step: int, key: str, expected: str, holds: str, kind: str) -> None:
        """Expects something of what all buckets of a step say under ``key``.

        Args:
            step: Number of the pass, as it was noted.
            key: A key of ``programs.ddp_passes._note_bucket``.
            expected: What is expected, in words.
            holds: The condition, as a Python expression over ``found``, the list of what they say.
            kind: Kind of the failure.
        """
        found = [bucket[key] for bucket in self.record["passes"][step]]
        if eval(holds, {"found": found}):
            return
        raise ClauseFailure(
            kind,
            f"rank {self.rank}, step {step}: {key} of the buckets is {found!r}, expected {expected}",
            expected=expected,
            found=repr(found),
            place=f'[bucket[{key!r}] for bucket in {self.place}["passes"][{step}]]',
            holds=holds,
        )

    def expect_calls(self, counts: Sequence[int]) -> None:
        """Expects that many calls of the hook before each "note"."""
        found = [len(calls) for calls in self.record["passes"][:-1]]
        place = f'[len(calls) for calls in {self.place}["passes"][:-1]]'
        expect_equal(self.rank, "the number of calls of the hook in each pass", found, list(counts), place, "calls")


def run(
    world: World, actions: Callable[[int], Sequence[Action]], limit: float | None = None, **arguments: Any
) -> list[Rank]:
    """Runs the actions that each rank is given on models that are alike.

    Args:
        world: The ranks.
        actions: The actions of a rank; see ``programs.ddp_passes.run_passes`` for these and the other arguments.
        limit: Seconds the program may take.
        arguments: Arguments of ``run_passes``; ``each`` has those that differ by rank.
    """
    own = arguments.pop("each", [{}] * world.size)
    each = [{"actions": list(actions(rank)), **own[rank]} for rank in range(world.size)]
    if not any("shapes" in mapping for mapping in (arguments, own[0])):
        arguments["shapes"] = SHAPES
    results = world.run(ddp_passes.run_passes, each=each, limit=limit, **arguments)
    program = len(world.programs) - 1
    return [Rank(rank, results[rank], f"results[{program}][{rank}]") for rank in range(world.size)]


def given(rank: int, step: int, shapes: Sequence[Sequence[int]] = SHAPES, pairs: bool = False) -> Gradients:
    """Gradients that differ by rank, step and element: even numbers that any dtype holds, with exact means of two."""
    made = []
    for place, shape in enumerate(shapes):
        shape = (*shape, 2) if pairs else tuple(shape)
        numbers = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.float32)
        made.append(((numbers * 3 + 7 * place + 5 * rank + 11 * step) % 31 * 2 - 30).reshape(shape))
    return made


def mean_over(ranks: Sequence[int], step: int, shapes: Sequence[Sequence[int]] = SHAPES) -> list[Float64Array]:
    """The means of ``given`` over some ranks."""
    everyone = [given(rank, step, shapes) for rank in ranks]
    return [np.mean([np.asarray(one, np.float64) for one in same], axis=0) for same in zip(*everyone, strict=True)]


def a_pass(gradients: Gradients, **more: Any) -> Action:
    """Zeroes the gradients, runs forward and backward, and notes the gradients."""
    return {"do": "pass", "gradients": gradients, **more}


def forward(gradients: Gradients, **more: Any) -> Action:
    """Runs the model."""
    return {"do": "forward", "gradients": gradients, **more}


def backward(**more: Any) -> Action:
    """Starts at the last output, or at those in ``of``."""
    return {"do": "backward", **more}


NOTE: Action = {"do": "note"}
ZERO: Action = {"do": "zero"}


def expect_registered(rank: int, result: Mapping[str, Any], hook: str) -> None:
    """Expects the hook to have been accepted."""
    error, text = result["refused"]
    if error:
        raise ClauseFailure(
            f"raises {error}",
            f"rank {rank}: register_comm_hook refused {hook} with {error}: {text}",
            expected=f"{hook} is accepted",
            found=f"{error}: {text}",
            place=f'results[0][{rank}]["refused"][0]',
            holds="found == ''",
        )
