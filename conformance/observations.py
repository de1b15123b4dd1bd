"""What the ranks saw in a call of a hook, in a form that checks can ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expected import FloatArray
from commhooks.conformance.programs import hooks
from commhooks.conformance.world import World


@dataclass(frozen=True)
class Call:
    """One call of a hook on one rank.

    Attributes:
        rank: The rank.
        record: What ``programs.hooks.call_hook`` noted.
        place: Where the record stands in the results of the check's programs, for the reproduction script.
    """

    rank: int
    record: Mapping[str, Any]
    place: str

    @property
    def values(self) -> FloatArray:
        """The values of the result.

        Raises:
            ClauseFailure: There is no result, because the hook returned no future of a tensor.
        """
        self.require_tensor()
        values: FloatArray = self.record["values"]
        return values

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        self.require_tensor()
        return str(self.record["dtype"])

    def require_tensor(self) -> None:
        """Fails unless the hook returned a future of one tensor."""
        if not self.record["is_future"]:
            raise ClauseFailure(
                "no future",
                f"rank {self.rank}: the hook returned a {self.record['returned']} instead of a future"
                + ("; a return statement may be missing" if self.record["returned"] == "NoneType" else ""),
                expected="a future of one tensor",
                found=str(self.record["returned"]),
                place=f'{self.place}["is_future"]',
                holds="found",
            )
        if "values" not in self.record:
            # The future of a collective itself, as everybody returns once.
            listed = self.record["value"] == "list"
            advice = "; give the tensor in it: future.then(lambda done: done.value()[0])" if listed else ""
            raise ClauseFailure(
                "no tensor",
                f"rank {self.rank}: the value of the hook's future is a {self.record['value']} instead of a tensor"
                + advice,
                expected="a tensor",
                found=str(self.record["value"]),
                place=f'{self.place}["value"]',
                holds="'Tensor' in found",
            )


@dataclass(frozen=True)
class Outcome:
    """All calls that one program made, on all ranks.

    Attributes:
        calls: ``calls[number][rank]``.
        results: What each rank's program returned.
        program: Number of the program among those of the check.
    """

    calls: Sequence[Sequence[Call]]
    results: Sequence[Mapping[str, Any]]
    program: int

    @property
    def first(self) -> Sequence[Call]:
        """The first call, by rank."""
        return self.calls[0]


def run_program(world: World, program: Callable[..., object], **arguments: Any) -> tuple[list[Any], int]:
    """Runs a program; gives its results by rank, and its number among the programs of this check."""
    results = world.run(program, **arguments)
    return results, len(world.programs) - 1


def call_hook(
    world: World,
    hook: str,
    dtype: str,
    *gradients: FloatArray,
    each: Sequence[Mapping[str, Any]] | None = None,
    **arguments: Any,
) -> Outcome:
    """Calls a hook on every rank, once for each of ``gradients``.

    Args:
        world: The ranks.
        hook: Name of a hook, or an expression with wrappers.
        dtype: dtype of the buckets.
        gradients: For each call the buffers of all ranks, of shape ``(W, n)``.
        each: More arguments of ``programs.hooks.call_hook`` that differ by rank.
        arguments: More arguments of it that are the same on all ranks.
    """
    own = each if each is not None else [{}] * world.size
    by_rank = [{"gradients": [gradient[rank] for gradient in gradients], **own[rank]} for rank in range(world.size)]
    results, number = run_program(world, hooks.call_hook, each=by_rank, hook=hook, dtype=dtype, **arguments)
    return _outcome(results, number, len(gradients))


def look_inside_wrapper(
    world: World, wrapper: str, dtype: str, gradients: FloatArray, shapes: Sequence[Sequence[int]]
) -> Outcome:
    """Wraps a hook of ours that gives its bucket's buffer back; ``results[rank]["seen"]`` is what it saw."""
    each = [{"gradient": gradient} for gradient in gradients]
    results, number = run_program(
        world, hooks.look_inside_wrapper, each=each, wrapper=wrapper, dtype=dtype, shapes=shapes
    )
    return _outcome(results, number, 1)


def without_hook(world: World, dtype: str, gradients: FloatArray) -> list[FloatArray]:
    """What each rank's gradient becomes under data-parallel training without a hook."""
    results, _ = run_program(
        world, hooks.without_hook, each=[{"gradient": gradient} for gradient in gradients], dtype=dtype
    )
    return [result["values"] for result in results]


def _outcome(results: Sequence[Mapping[str, Any]], number: int, count: int) -> Outcome:
    calls = [
        [
            Call(rank, results[rank]["calls"][call], f'results[{number}][{rank}]["calls"][{call}]')
            for rank in range(len(results))
        ]
        for call in range(count)
    ]
    return Outcome(calls, results, number)
