"""The time of a collective in the laboratory, against gloo, which moves its data."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from commhooks.bench import lab_programs
from commhooks.conformance.world import World

OPERATIONS = ("allreduce", "allgather", "broadcast")
# Elements of a float32 tensor: 4 KiB, as most checks have them or fewer, and 1 MiB.
SIZES = {"4 KiB": 1 << 10, "1 MiB": 1 << 18}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_collective(
    benchmark: BenchmarkFixture,
    world: World,
    lab: World,
    collectives: list[tuple[str, ...]],
    request: pytest.FixtureRequest,
    operation: str,
    size: str,
) -> None:
    """Times one collective of the slower rank; the laboratory fills, compares and writes down, and delays nothing."""
    rounds = 4 * request.config.getoption("--rounds")
    medians = []

    def both() -> None:
        for where in (world, lab):
            ranks: list[Any] = where.run(
                lab_programs.time_collective, operation=operation, numel=SIZES[size], rounds=rounds
            )
            medians.append(statistics.median(max(times) for times in zip(*ranks, strict=True)))

    benchmark.pedantic(both, rounds=1)  # type: ignore[no-untyped-call]
    plain, ours = medians
    benchmark.extra_info.update({"gloo": plain, "laboratory": ours, "ratio": ours / plain})
    collectives.append((operation, size, f"{plain * 1000:.3f}", f"{ours * 1000:.3f}", f"{ours / plain:.1f}"))
