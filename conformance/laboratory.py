"""What a check asks the laboratory to do, and what the laboratory saw."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from commhooks.conformance import inputs
from commhooks.conformance.expected import FloatArray
from commhooks.conformance.findings import first_difference
from commhooks.conformance.observations import Call, Outcome
from commhooks.conformance.programs import lab
from commhooks.conformance.world import World

# Large enough to be worth compressing for a hook that looks at matrices, and each another one.
SHAPES = ([[8, 12]], [[16, 9], [5]], [[10, 10]])
# Enough for a hook that begins otherwise than it goes on; the PowerSGD hooks compress in the third.
STEPS = 3
# Seconds: long beside what a hook computes, short beside the time limit.
LATE = 0.01
# Completions to be reordered are held back until a rank waits, and no longer than this.
HELD = 0.25
# Between ranks these need not be alike: who sends to whom, and how much to each.
ONE_SIDED = ("send", "recv")
UNEVEN = ("alltoall", "all_to_all_single")
# What training is disturbed by where no search is asked for.
DISTURBANCES: dict[str, dict[str, Any]] = {
    "late completions and a slow rank": {"delay": 0.003, "slow_rank": 1, "slow_by": 0.003},
    "random completions": {"completion_order": "random", "hold": 0.002},
}
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


def gradients(world: World, dtype: str, buckets: int = 1, steps: int = STEPS) -> Gradients:
    """Ordinary gradients for some steps; each bucket has another length."""
    return [
        [
            inputs.spread(world.size, inputs.numel(SHAPES[bucket]), dtype, seed=10 * step + bucket, reach=4)
            for bucket in range(buckets)
        ]
        for step in range(steps)
    ]


def at_leisure(world: World, hook: str, dtype: str, buckets: int = 1) -> Seen:
    """A run in which the laboratory disturbs nothing; many checks look at it or compare with it."""
    return call_in_lab(world, hook, dtype, gradients(world, dtype, buckets), shared=True)


def with_late_completions(world: World, hook: str, dtype: str) -> Seen:
    """A run with late completions, and time at its end for somebody who still writes; many checks look at it."""
    return call_in_lab(world, hook, dtype, gradients(world, dtype), {"delay": LATE}, linger=2 * LATE, shared=True)


def with_reversed_completions(world: World, hook: str, dtype: str) -> Seen:
    """A run of three buckets under way, whose collectives complete in the reverse order on the last rank only."""
    each: list[dict[str, Any]] = [{}] * (world.size - 1) + [{"completion_order": "reversed", "hold": HELD}]
    return call_in_lab(world, hook, dtype, gradients(world, dtype, buckets=3), each=each, shared=True)


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
        arguments: More arguments of ``programs.lab.call_in_lab`` that are the same on all ranks; its ``shapes`` are
            those of ``SHAPES`` by default. ``absent``: the ranks that do not call the hook. ``shared``: as for
            ``World.run``.
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
    shapes = arguments.pop("shapes", [SHAPES[: len(buckets)] for buckets in steps])
    patience = 2 * PATIENCE * world.patience
    results: list[dict[str, Any]] = world.run(
        lab.call_in_lab, each=by_rank, hook=hook, dtype=dtype, patience=patience, shapes=shapes, **arguments
    )
    looked_at = results[0].setdefault("looked_at", [])  # of a run that several checks share only the first has to act
    if not looked_at and any(result["seconds"] >= PATIENCE * world.patience for result in results):
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
    if not looked_at and (broken or difference(seen) is not None):
        world.close()  # the ranks are at different places now
    looked_at.append(True)
    return seen


def drawn_seeds(config: pytest.Config) -> Sequence[int]:
    """As many random seeds of the laboratory's options as ``--search`` asks for; replayed as other searches are.

    Hypothesis would run a failed example again, and call a hook flaky that fails by its timing.
    """
    draw = random.Random(str(getattr(config.option, "hypothesis_seed", "")))
    return [draw.randrange(2**32) for _ in range(config.getoption("--search"))]


def disturbances(seeds: Sequence[int], **fixed: Any) -> list[dict[str, Any]]:
    """Arguments of ``run_in_lab``: those of ``DISTURBANCES``, or the draws of the seeds but for what is fixed."""
    if seeds:
        return [{"options": fixed, "drawn": seed} for seed in seeds]
    return [{"options": options} for options in DISTURBANCES.values()]


def difference(seen: Seen) -> str | None:
    """The collectives of the ranks side by side up to the first difference, in a group where they differ."""
    groups = {tuple(entry["group"]) for result in seen.results for entry in result["entries"]}
    for group in sorted(groups):
        entries = [
            [
                entry
                for entry in seen.log(rank)
                if tuple(entry["group"]) == group and entry["operation"] not in ONE_SIDED
            ]
            for rank in group
        ]
        texts = [[_alike(entry) for entry in of_rank] for of_rank in entries]
        places = [[_place(entry) for entry in of_rank] for of_rank in entries]
        found = first_difference(texts, group, places)
        if found is not None:
            return found
    return None


def _left_something(result: Mapping[str, Any], failed_on_purpose: bool) -> bool:
    """Whether something may still be under way on a rank after an error, or its connections be gone."""
    one_sided = any(entry["operation"] in ONE_SIDED for entry in result["entries"])
    failed = bool(result["failed"]) and not failed_on_purpose
    return failed or result["error"] == "TimeoutError" or (bool(result["error"]) and one_sided)


def _alike(entry: Mapping[str, Any]) -> str:
    text = str(entry["text"])
    return f"{entry['operation']} {entry['dtype']}" if entry["operation"] in UNEVEN else text


def _place(entry: Mapping[str, Any]) -> str:
    inside = entry["callback_of"]
    return f"{entry['place']}{'' if inside is None else f', in a callback of number {inside}'}"
