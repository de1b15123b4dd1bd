"""What a check asks the laboratory to do, and what it may expect of what the laboratory saw."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commhooks.adapters.adapter import HOOKS, WRAPPERS
from commhooks.conformance import inputs
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_same
from commhooks.conformance.expected import FloatArray
from commhooks.conformance.findings import first_difference
from commhooks.conformance.observations import Call, Outcome
from commhooks.conformance.programs import lab
from commhooks.conformance.world import World

# Large enough to be worth compressing for a hook that looks at matrices, and each another one.
SHAPES = ([[8, 12]], [[16, 9], [5]], [[10, 10]])
STATELESS = {*HOOKS, *WRAPPERS, ""}
# Between ranks these need not be alike: who sends to whom, and how much to each.
ONE_SIDED = ("send", "recv")
UNEVEN = ("alltoall", "all_to_all_single")
# A rank that has begun no collective after this share of the time limit has left the others alone.
PATIENCE = 0.3

Gradients = Sequence[Sequence[FloatArray]]


@dataclass(frozen=True)
class Seen(Outcome):
    """All calls that one program made in the laboratory, and its log.

    The calls are those of one rank after those of another if one of them failed; ask ``expect_no_error`` first.
    """

    hook: str

    def log(self, rank: int) -> Sequence[Mapping[str, Any]]:
        """The collectives of a rank: see ``conformance.lab.Entry``."""
        entries: Sequence[Mapping[str, Any]] = self.results[rank]["entries"]
        return entries

    def findings(self, *kinds: str) -> list[tuple[int, str]]:
        """Rank and text of what the laboratory found, of some kinds."""
        return [
            (rank, str(finding["text"]))
            for rank, result in enumerate(self.results)
            for finding in result["findings"]
            if finding["kind"] in kinds
        ]

    def place(self, rank: int, key: str) -> str:
        """Where something stands, for the reproduction script."""
        return f'results[{self.program}][{rank}]["{key}"]'


def gradients(world: World, hook: str, dtype: str, buckets: int = 1, steps: int | None = None) -> Gradients:
    """Ordinary gradients for some steps; each bucket has another length.

    By default it is one step for the stateless hooks, and three for others, which may begin otherwise than they go on.
    """
    stateless = set(re.split(r"[()]", hook)) <= STATELESS
    return [
        [
            inputs.spread(world.size, inputs.numel(SHAPES[bucket]), dtype, seed=10 * step + bucket, reach=4)
            for bucket in range(buckets)
        ]
        for step in range(steps or (1 if stateless else 3))
    ]


def call_in_lab(
    world: World,
    hook: str,
    dtype: str,
    steps: Gradients,
    options: Mapping[str, Any] | None = None,
    each: Sequence[Mapping[str, Any]] | None = None,
    **arguments: Any,
) -> Seen:
    """Calls a hook in the laboratory on every rank.

    Args:
        world: Ranks whose process group is the laboratory.
        hook: Name of a hook, or an expression with wrappers.
        dtype: dtype of the buckets.
        steps: For each step and each of its buckets the buffers of all ranks, of shape ``(W, n)``.
        options: Options of the laboratory.
        each: Options of the laboratory that differ by rank.
        arguments: More arguments of ``programs.lab.call_in_lab`` that are the same on all ranks, and ``absent``: the
            ranks that do not call the hook.
    """
    absent = arguments.pop("absent", ())
    common = {"patience": PATIENCE * world.patience, **(options or {})}
    by_rank: list[dict[str, Any]] = [
        {
            "steps": [[bucket[rank] for bucket in buckets] for buckets in steps],
            "options": {**common, **(each[rank] if each is not None else {})},
            "absent": rank in absent,
        }
        for rank in range(world.size)
    ]
    shapes = arguments.pop("shapes", [SHAPES[bucket] for bucket in range(len(steps[0]))])
    patience = 2 * PATIENCE * world.patience
    results: list[dict[str, Any]] = world.run(
        lab.call_in_lab, each=by_rank, hook=hook, dtype=dtype, patience=patience, shapes=shapes, **arguments
    )
    if any(result["seconds"] >= PATIENCE * world.patience for result in results):
        world.count_hang()  # enough of these, and it is not tried again: the rest of the run is worth more
    program = len(world.programs) - 1
    count = min((len(result["calls"]) for rank, result in enumerate(results) if rank not in absent), default=0)
    calls = [
        [
            Call(rank, results[rank]["calls"][number], f'results[{program}][{rank}]["calls"][{number}]')
            for rank in range(world.size)
            if rank not in absent
        ]
        for number in range(count)
    ]
    seen = Seen(calls, results, program, hook)
    broken = [result for result in results if _left_something(result, "fail_at" in common)]
    if broken or difference(seen) is not None:
        world.close()  # the ranks are at different places now
    return seen


def expect_no_error(seen: Seen) -> None:
    """Expects that no rank raised, and that every call gave a tensor."""
    for rank, result in enumerate(seen.results):
        if result["error"]:
            raise ClauseFailure(
                f"raises {result['error']}",
                f"rank {rank}: {result['text']}",
                expected="no error",
                found=result["error"],
                place=seen.place(rank, "error"),
                holds="found == ''",
            )
        if result["failed"]:
            raise ClauseFailure(
                "swallowed",
                f"rank {rank}: {len(result['failed'])} collectives failed, and the hook gave a result without an error",
                expected="no collective fails",
                found=f"{len(result['failed'])} failed",
                place=seen.place(rank, "failed"),
                holds="not found",
            )
    for calls in seen.calls:
        for call in calls:
            call.require_tensor()


def expect_finite(seen: Seen) -> None:
    """Expects no NaN, which the gradients do not have, but tensors of unfinished collectives do."""
    expect_no_error(seen)
    for calls in seen.calls:
        for call in calls:
            bad = np.isnan(call.values)
            if bad.any():
                element = int(np.argmax(bad))
                raise ClauseFailure(
                    "unfinished",
                    f"rank {call.rank}: {int(bad.sum())} of {bad.size} elements are NaN, which no gradient is: a "
                    "tensor was read before the collective that writes it was complete. Wait for the work or its "
                    "future, or go on in a callback.",
                    expected="numbers",
                    found="NaN",
                    place=f'{call.place}["values"].ravel()[{element}]',
                    holds="found == found",
                )


def expect_as_at_leisure(seen: Seen, at_leisure: Seen, when: str) -> None:
    """Expects finite results that have the same bits as those of an undisturbed session."""
    expect_finite(at_leisure)
    expect_finite(seen)
    expect_same(seen, at_leisure, f"a run without {when}")


def expect_nothing_found(seen: Seen, kind: str, advice: str, *kinds: str) -> None:
    """Expects no finding of some kinds.

    Args:
        seen: What happened.
        kind: What the failure is called.
        advice: What to do, for whoever wrote the hook.
        kinds: Kinds of findings of the laboratory.
    """
    for rank, text in seen.findings(*kinds):
        raise ClauseFailure(
            kind,
            f"rank {rank}: {text}. {advice}",
            expected="nothing of the kind",
            found=text,
            place=f'[one for one in {seen.place(rank, "findings")} if one["kind"] in {kinds!r}]',
            holds="not found",
        )


def difference(seen: Seen) -> str | None:
    """The collectives of the ranks side by side up to the first difference, in a group where they differ."""
    groups = {tuple(entry["group"]) for result in seen.results for entry in result["entries"]}
    for group in sorted(groups):
        logs = [
            [
                _alike(entry)
                for entry in seen.log(rank)
                if tuple(entry["group"]) == group and entry["operation"] not in ONE_SIDED
            ]
            for rank in group
        ]
        found = first_difference(logs, group)
        if found is not None:
            return found
    return None


def expect_same_collectives(seen: Seen) -> None:
    """Expects that all ranks of a group started the same collectives in the same order."""
    found = difference(seen)
    if found is not None:
        rows = f"[[entry['text'] for entry in result['entries']] for result in results[{seen.program}]]"
        raise ClauseFailure(
            "order",
            f"the ranks started different collectives:\n{found}\nOn a cluster they would wait for each other for ever, "
            "or mix up each other's data. Let nothing that differs between ranks decide which collective comes next: "
            "not the rank, a hash, what has completed, or the gradients' values.",
            expected="the same collectives in the same order on every rank",
            found="different ones",
            place=rows,
            holds="all(row == found[0] for row in found)",
        )


def _left_something(result: Mapping[str, Any], failed_on_purpose: bool) -> bool:
    """Whether something may still be under way on a rank after an error, or its connections be gone."""
    one_sided = any(entry["operation"] in ONE_SIDED for entry in result["entries"])
    failed = bool(result["failed"]) and not failed_on_purpose
    return failed or result["error"] == "TimeoutError" or (bool(result["error"]) and one_sided)


def _alike(entry: Mapping[str, Any]) -> str:
    text = str(entry["text"])
    return f"{entry['operation']} {entry['dtype']}" if entry["operation"] in UNEVEN else text
