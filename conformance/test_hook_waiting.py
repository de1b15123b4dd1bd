"""What a hook does to its own process: while it waits for a slow rank, and over many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commhooks.conformance import inputs, laboratory
from commhooks.conformance.cells import ClauseFailure, NotRun
from commhooks.conformance.marks import clauses, dtypes, every_hook, stateful, worlds
from commhooks.conformance.programs.memory import memory_in_use
from commhooks.conformance.programs.waiting import wait_for_a_slow_rank
from commhooks.conformance.world import World

# Seconds by which a rank is late. A busy machine can stand still for a while, but not for half of the last again, so
# each is tried only where the one before has failed.
LATE = (0.08, 0.3, 1.0)
BUSY = 0.2
STALLED = 0.5

# Steps after which the memory in use is looked at, and how many looks count at the beginning and at the end.
STRETCH = 5
LOOKS = 3
MATRIX = (256, 256)
# Of the bucket's bytes, in each step.
LEAK = 1 / 8


@every_hook
@stateful
@clauses("HOOK-IDLE")
@dtypes("float32")
@worlds(2, 2)
def test_idle(world: World, hook: str, dtype: str) -> None:
    """The rank that waits for a slow one computes for less than a fifth of that time."""
    _expect_little(
        world,
        hook,
        dtype,
        "busy",
        BUSY,
        lambda seconds, late: (
            f"rank 0 computed for {seconds:.3f} s while it waited {late} s for rank 1. Wait for the work or its future "
            "in place of asking again and again whether it is complete."
        ),
    )


@every_hook
@stateful
@clauses("HOOK-LETS-RUN")
@dtypes("float32")
@worlds(2, 2)
def test_lets_run(world: World, hook: str, dtype: str) -> None:
    """A Python thread of the rank that waits for a slow one runs for at least half of that time."""
    _expect_little(
        world,
        hook,
        dtype,
        "stalled",
        STALLED,
        lambda seconds, late: (
            f"rank 0 waited {late} s for rank 1, and another Python thread could not run for {seconds:.3f} s of it: "
            "the hook holds the interpreter lock while it waits. Wait for the work or its future, which let the lock "
            "go, or release it in the C code that waits (Py_BEGIN_ALLOW_THREADS, py::gil_scoped_release)."
        ),
    )


@every_hook
@stateful
@clauses("HOOK-MEMORY")
@dtypes("float32")
@worlds(2, 2)
def test_memory(world: World, hook: str, dtype: str) -> None:
    """After a first stretch of steps the memory in use grows by less than a part of a bucket in each step.

    A collective that has just ended may hold its tensors a little longer, so the least of several looks counts.
    """
    values = inputs.spread(world.size, MATRIX[0] * MATRIX[1], dtype, reach=4)
    results: list[list[int]] = world.run(
        memory_in_use,
        each=[{"values": own} for own in values],
        hook=hook,
        dtype=dtype,
        shape=list(MATRIX),
        stretches=1 + 2 * LOOKS,
        steps=STRETCH,
    )
    steps = LOOKS * STRETCH
    allowed = int(LEAK * values[0].nbytes)
    for rank, found in enumerate(results):
        if not found:
            raise NotRun("needs mallinfo2 of the GNU C library to count the memory in use")
        growth = (min(found[-LOOKS:]) - min(found[1 : 1 + LOOKS])) // steps
        if growth > allowed:
            raise ClauseFailure(
                "grows",
                f"rank {rank}: each step leaves {growth} bytes more in use, for a bucket of {values[0].nbytes} bytes. "
                "Let buckets, results and futures of earlier steps go, and write what the state keeps in place; a list "
                "or a dictionary that only grows keeps them all.",
                expected=f"at most {allowed} bytes in each step",
                found=f"{growth} bytes in each step",
                place=f"results[0][{rank}]",
                holds=f"min(found[-{LOOKS}:]) - min(found[1:{1 + LOOKS}]) <= {steps * allowed}",
            )


def _expect_little(
    world: World, hook: str, dtype: str, what: str, share: float, message: Callable[[float, float], str]
) -> None:
    steps = laboratory.gradients(world, dtype)
    for late in LATE:
        world.programs.clear()
        each: list[dict[str, Any]] = [
            {"steps": [buckets[0][rank] for buckets in steps], "late": late if rank == 1 else 0.0}
            for rank in range(world.size)
        ]
        arguments: dict[str, Any] = {"hook": hook, "dtype": dtype, "shapes": laboratory.SHAPES[0]}
        results: list[dict[str, float]] = world.run(wait_for_a_slow_rank, each=each, shared=True, **arguments)
        seconds = results[0][what]
        if seconds <= share * late:
            return
    raise ClauseFailure(
        what,
        message(seconds, late),
        expected=f"at most {share * late:.2f} s",
        found=f"{seconds:.3f} s",
        place=f'results[0][0]["{what}"]',
        holds=f"found <= {share * late}",
    )
