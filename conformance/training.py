"""What the ranks saw in data-parallel training with given gradients, in a form that checks can ask."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_array, expect_equal
from commhooks.conformance.expected import Float64Array, FloatArray, is_representable
from commhooks.conformance.programs import ddp_passes, ddp_results, ddp_training
from commhooks.conformance.world import RankFailure, World

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
            key: A key of ``programs.given_model.note_bucket``.
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
        """Expects that many calls of the hook before each "note"; the first pass with any may have other buckets."""
        indices = [[call["index"] for call in calls] for calls in self.record["passes"][:-1]]
        found = [len(calls) for calls in indices]
        place = f'[len(calls) for calls in {self.place}["passes"][:-1]]'
        first = next((number for number, count in enumerate(counts) if count), None)
        if first is not None and indices[first] and sorted(indices[first]) == list(range(len(indices[first]))):
            counts = [*counts[:first], found[first], *counts[first + 1 :]]
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


@contextlib.contextmanager
def or_refused(note: Callable[[str], None]) -> Iterator[None]:
    """Notes an error of the wrapper or the hook: what is tried within may be refused, but not give wrong numbers."""
    try:
        yield
    except (RankFailure, ClauseFailure) as failure:
        if not failure.kind.startswith("raises"):
            raise
        note(f"refused: {failure.kind}")


def hang_limit(world: World) -> float:
    """Seconds after which a program that takes milliseconds hangs: one, and more where the machine is busy."""
    started = time.perf_counter()
    for _ in range(3):
        world.run(ddp_results.meet)
    world.programs.clear()
    return max(1.0, 30 * (time.perf_counter() - started))


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


def compare(world: World, model: str, hook: str = "", own: bool = False, **arguments: Any) -> list[Mapping[str, Any]]:
    """Expects the gradients of the joined batch on each rank in each step, or with ``own`` those of its own part.

    Args:
        world: The ranks.
        model: A name of ``programs.ddp_models.make_model``.
        hook: A hook's expression; none by default.
        own: Each rank keeps its own gradients.
        arguments: Other arguments of ``programs.ddp_training.compare_with_one_process``, or of ``World.run``.

    Returns:
        What the ranks noted.
    """
    results: list[Mapping[str, Any]] = world.run(
        ddp_training.compare_with_one_process, model=model, hook=hook, own=own, **arguments
    )
    for rank, result in enumerate(results):
        expect_registered(rank, result, hook)
        for step, found in enumerate(result["found"]):
            expected = results[rank if own else 0]["expected"][step]
            if not is_representable(expected, "bfloat16").all():
                raise RuntimeError(f"{model}, step {step}: the gradients are not exact in every dtype")
            place = f'results[0][{rank}]["found"][{step}]'
            expect_array(rank, f"the gradients of {model} in step {step}", found, expected, place)
    return results


def expect_trained(
    world: World,
    hook: str,
    features: FloatArray,
    labels: npt.NDArray[np.int64],
    hidden: int,
    rate: float,
    steps: int,
    state: Mapping[str, Any] | None = None,
) -> Sequence[Mapping[str, Any]]:
    """Expects a network to learn nearly as well as in one process, and to have the same parameters on all ranks.

    Args:
        world: The ranks.
        hook: A hook's expression.
        features: See ``programs.ddp_training.train``, as for the other arguments.
        labels: The class of each example.
        hidden: Width of the hidden layers.
        rate: Step length.
        steps: How many steps.
        state: Arguments of PowerSGDState.

    Returns:
        What the ranks noted.
    """
    task: dict[str, Any] = {"features": features, "labels": labels, "hidden": hidden, "rate": rate, "steps": steps}
    results: list[Mapping[str, Any]] = world.run(ddp_training.train, hook=hook, state=state, **task)
    for rank, result in enumerate(results):
        expect_registered(rank, result, hook)
        place = f"results[0][{rank}]"
        expected = results[0]["parameters"]
        name = "all parameters, compared with rank 0,"
        expect_array(rank, name, result["parameters"], expected, f'{place}["parameters"]')
        alone = results[0]["alone"]
        allowed = alone + 0.2 * (result["start"] - alone)
        if not result["loss"] <= allowed:
            raise ClauseFailure(
                "loss",
                f"rank {rank}: training brought the loss from {result['start']:.3g} to {result['loss']:.3g}, "
                f"in one process to {alone:.3g}",
                expected=f"at most {allowed:.3g}",
                found=f"{result['loss']:.3g}",
                place=f'{place}["loss"]',
                holds=f"found <= {allowed!r}",
            )
    return results


def expect_registered(rank: int, result: Mapping[str, Any], hook: str) -> None:
    """Expects the hook to have been accepted."""
    error, text = result["refused"]
    if error:
        # Wrappers look the annotation of the second parameter up by its documented name.
        named = (
            "; the hook's second parameter has to be named bucket" if (error, text) == ("KeyError", "'bucket'") else ""
        )
        raise ClauseFailure(
            f"raises {error}",
            f"rank {rank}: register_comm_hook refused {hook} with {error}: {text}{named}",
            expected=f"{hook} is accepted",
            found=f"{error}: {text}",
            place=f'results[0][{rank}]["refused"][0]',
            holds="found == ''",
        )
