"""Gradients for PowerSGD, and runs of many steps of its hooks."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commhooks.conformance import inputs
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_array
from commhooks.conformance.expected import FloatArray
from commhooks.conformance.observations import Call, run_program
from commhooks.conformance.programs import powersgd
from commhooks.conformance.world import World

HOOK, BATCHED = "powerSGD_hook", "batched_powerSGD_hook"

# Each combination of the two flags, with the earliest start that it allows.
MODES: dict[str, dict[str, Any]] = {
    "neither": {"start_powerSGD_iter": 0, "use_error_feedback": False, "warm_start": False},
    "error feedback": {"start_powerSGD_iter": 2, "use_error_feedback": True, "warm_start": False},
    "warm start": {"start_powerSGD_iter": 2, "use_error_feedback": False, "warm_start": True},
    "both": {"start_powerSGD_iter": 2, "use_error_feedback": True, "warm_start": True},
}


def options(mode: str, rank: int = 1, **others: Any) -> dict[str, Any]:
    """Arguments of PowerSGDState for one of the ``MODES``, with a rate at which small matrices are compressed too.

    At a rate of 1 no vector passes for a matrix of one column that is worth compressing.
    """
    return {**MODES[mode], "matrix_approximation_rank": rank, "min_compression_rate": 1.0, **others}


def start_of(mode: str) -> int:
    """The step in which compression begins in one of the ``MODES``."""
    return int(MODES[mode]["start_powerSGD_iter"])


@dataclass(frozen=True)
class Gradients:
    """The gradients of one bucket on all ranks.

    Attributes:
        shapes: Shape of each parameter.
        values: The buffers, shape ``(W, n)``.
    """

    shapes: tuple[tuple[int, ...], ...]
    values: FloatArray

    def part(self, number: int) -> slice:
        """Where the gradient of a parameter lies in the buffer."""
        start = inputs.numel(self.shapes[:number])
        return slice(start, start + inputs.numel(self.shapes[number : number + 1]))


Steps = Sequence[Sequence[Gradients]]


def bucket(*parts: tuple[Sequence[int], FloatArray]) -> Gradients:
    """One bucket out of the shapes and the gradients, of shape ``(W, numel)``, of its parameters."""
    return Gradients(tuple(tuple(shape) for shape, _ in parts), np.concatenate([values for _, values in parts], axis=1))


@functools.lru_cache(maxsize=512)
def full_rank(
    world_size: int, shape: tuple[int, ...], dtype: str = "float32", seed: int = 0, scale: float = 1.0
) -> FloatArray:
    """Gradients of one matrix whose singular values are all about alike, in the mean over the ranks too.

    Returns:
        Shape ``(W, numel)``. Singular values of the mean go from 1 to 2 times ``scale``.
    """
    rows, columns = shape[0], inputs.numel([shape[1:]])
    generator = np.random.default_rng([seed, rows, columns])
    rank = min(rows, columns)
    left = np.linalg.qr(generator.standard_normal((rows, rank)))[0]
    right = np.linalg.qr(generator.standard_normal((columns, rank)))[0]
    mean = (left * np.geomspace(2.0, 1.0, rank)) @ right.T
    apart = generator.standard_normal((world_size, rows * columns)) * 0.2
    return _frozen(inputs.carried(scale * (mean.reshape(1, -1) + apart - apart.mean(axis=0)), dtype))


@functools.lru_cache(maxsize=512)
def low_rank(
    world_size: int, shape: tuple[int, ...], rank: int, dtype: str = "float32", seed: int = 0, scale: float = 1.0
) -> FloatArray:
    """Gradients of one matrix whose mean has a low rank, exactly, while that of each rank has not.

    All numbers are small whole ones times ``scale``, so every dtype holds them, and their mean.

    Returns:
        Shape ``(W, numel)``.
    """
    rows, columns = shape[0], inputs.numel([shape[1:]])
    generator = np.random.default_rng([seed, rows, columns, rank])
    mean = generator.choice([-1.0, 1.0], (rows, rank)) @ generator.choice([-1.0, 1.0], (rank, columns))
    apart = generator.integers(-2, 3, (world_size, rows * columns)).astype(np.float64)
    apart[-1] -= apart.sum(axis=0)
    return _frozen(inputs.carried(scale * (mean.reshape(1, -1) + apart), dtype))


def _frozen(values: FloatArray) -> FloatArray:
    """Made read-only, since it is handed out again."""
    values.setflags(write=False)
    return values


def after_vanilla(mode: str, *steps: Sequence[Gradients]) -> list[Sequence[Gradients]]:
    """Steps that begin with those that a mode does not compress, for which the first of ``steps`` is repeated."""
    return [*[steps[0]] * start_of(mode), *steps]


@dataclass(frozen=True)
class Run:
    """What came out of many steps of a hook.

    Attributes:
        steps: The gradients.
        dtype: dtype of the buckets.
        results: What each rank's program returned.
        program: Number of the program among those of the check.
        members: The ranks that took part.
    """

    steps: Steps
    dtype: str
    results: Sequence[Mapping[str, Any]]
    program: int
    members: tuple[int, ...]

    def record(self, step: int, bucket: int = 0, rank: int | None = None) -> Mapping[str, Any]:
        """What a rank noted of one call; by default the first rank that took part."""
        own: Mapping[str, Any] = self.results[self.members[0] if rank is None else rank]["steps"][step][bucket]
        return own

    def place(self, step: int, bucket: int, rank: int, key: str = "values") -> str:
        """Where that stands in the results of the programs, for the reproduction script."""
        return f'results[{self.program}][{rank}]["steps"][{step}][{bucket}]["{key}"]'

    def values(self, step: int, bucket: int = 0, rank: int | None = None) -> FloatArray:
        """The result of one call on one rank."""
        values: FloatArray = self.record(step, bucket, rank)["values"]
        return values

    def differing(self, step: int, bucket: int = 0) -> list[int]:
        """The first rank that took part, and those whose result is another one: the rest needs no second look."""
        first = self.values(step, bucket)
        others = self.members[1:]
        return [
            self.members[0],
            *(rank for rank in others if not np.array_equal(self.values(step, bucket, rank), first, equal_nan=True)),
        ]

    def gradients(self, step: int, bucket: int = 0) -> FloatArray:
        """The buffers of the ranks that took part, shape ``(W, n)``."""
        return self.steps[step][bucket].values[list(self.members)]

    def calls(self, step: int, bucket: int = 0) -> list[Call]:
        """The calls of one bucket in one step, by rank, for the expectations of averaging hooks."""
        return [
            Call(rank, {**self.record(step, bucket, rank), "is_future": True}, self.place(step, bucket, rank)[:-10])
            for rank in self.members
        ]

    def part(self, step: int, bucket: int, number: int) -> tuple[list[Call], FloatArray]:
        """The same for one parameter of the bucket, with its gradients on the ranks that took part."""
        place = self.steps[step][bucket].part(number)
        calls = [
            Call(
                call.rank,
                {**call.record, "values": call.values[place]},
                f"{{'values': {call.place}['values'][{place.start}:{place.stop}]}}",
            )
            for call in self.calls(step, bucket)
        ]
        return calls, self.gradients(step, bucket)[:, place]

    def expect_values(self, step: int, bucket: int, expected: FloatArray, what: str) -> None:
        """Expects a result, on every rank, that equals ``expected`` bit for bit."""
        for rank in self.differing(step, bucket):
            name = f"the result of step {step}, bucket {bucket}, compared with {what},"
            expect_array(rank, name, self.values(step, bucket, rank), expected, self.place(step, bucket, rank))

    def require_results(self) -> None:
        """Fails if a rank raised, or a result has not the form that every hook's result has."""
        for rank in self.members:
            self._require_no_error(rank)
            for step, buckets in enumerate(self.steps):
                for number, gradients in enumerate(buckets):
                    length, found = gradients.values.shape[1], len(self.values(step, number, rank))
                    if found != length:
                        raise ClauseFailure(
                            "length",
                            f"rank {rank}, step {step}, bucket {number}: the result has {found} elements, expected "
                            f"{length}",
                            expected=str(length),
                            found=str(found),
                            place=f"len({self.place(step, number, rank)})",
                            holds=f"found == {length}",
                        )

    def _require_no_error(self, rank: int) -> None:
        result = self.results[rank]
        if not result["error"]:
            return
        step, calls = len(result["steps"]) - 1, len(result["steps"][-1]) if result["steps"] else 0
        raise ClauseFailure(
            f"raises {result['error']}",
            f"rank {rank} raised {result['error']} in step {step}, bucket {calls}: {result['text'] or '(no text)'} "
            f"(in {result['where']})",
            expected="a result in every step",
            found=f"{result['error']}: {result['text']}",
            place=f'results[{self.program}][{rank}]["error"]',
            holds='found == ""',
        )


def run_steps(
    world: World,
    hook: str,
    options: Mapping[str, Any],
    steps: Steps,
    dtype: str = "float32",
    each: Sequence[Mapping[str, Any]] | None = None,
    members: Sequence[int] | None = None,
    **arguments: Any,
) -> Run:
    """Runs steps of a hook with one state, and expects a result of each.

    Args:
        world: The ranks.
        hook: Name of a hook, or an expression with wrappers.
        options: Arguments of PowerSGDState besides the process group.
        steps: For each step its buckets.
        dtype: dtype of the buckets.
        each: More arguments of ``programs.powersgd.run_steps`` that differ by rank.
        members: The ranks that take part; all by default.
        arguments: More arguments of it that are the same on all ranks.
    """
    taking_part = tuple(range(world.size)) if members is None else tuple(members)
    own = list(each) if each is not None else [{} for _ in range(world.size)]
    if members is not None:
        arguments["group"] = list(members)
        own = [{**one, "absent": rank not in members} for rank, one in enumerate(own)]
    program = arguments.pop("program", powersgd.run_steps)
    by_rank = [{"steps": _plain(steps, rank), **own[rank]} for rank in range(world.size)]
    results, number = run_program(
        world, program, each=by_rank, hook=hook, options=dict(options), dtype=dtype, **arguments
    )
    run = Run(steps, dtype, results, number, taking_part)
    run.require_results()
    return run


def _plain(steps: Steps, rank: int) -> list[list[dict[str, Any]]]:
    return [
        [{"shapes": [list(shape) for shape in one.shapes], "values": one.values[rank]} for one in buckets]
        for buckets in steps
    ]
