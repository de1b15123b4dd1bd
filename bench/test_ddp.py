"""The time of a training step under each implementation, and how much of the communication backward hides."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from commhooks.bench import ddp_programs
from commhooks.conformance.world import World

# Buckets as they are by default, and small ones, of which more are on their way before the last gradient is there.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "MLP of 25 MiB": ("mlp", {}),
    "MLP of 25 MiB, buckets of 5 MiB": ("mlp", {"bucket_cap_mb": 5}),
    "convolutions": ("convolutions", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_step(
    benchmark: BenchmarkFixture,
    world: World,
    implementations: list[str],
    steps: list[tuple[str, ...]],
    request: pytest.FixtureRequest,
    case: str,
) -> None:
    """Times forward and backward; the slower rank counts."""
    model, options = CASES[case]
    arguments: dict[str, Any] = {
        "implementations": implementations,
        "model": model,
        "options": options,
        "rounds": request.config.getoption("--rounds"),
    }
    ranks: list[Any] = benchmark.pedantic(world.run, args=(ddp_programs.time_steps,), kwargs=arguments, rounds=1)  # type: ignore[no-untyped-call]

    def slowest(name: str, number: int) -> list[float]:
        return [max(times) for times in zip(*(rank[name][number] for rank in ranks), strict=True)]

    count = len(implementations)
    seconds, alone = ([slowest(name, number) for number in range(count)] for name in ("seconds", "alone"))
    # Step by step: the steps of a round see the same machine.
    ratios = [statistics.median(a / b for a, b in zip(seconds[0], times, strict=True)) for times in seconds[1:]]
    hidden = [
        sum(sum(rank["hidden"][number]) for rank in ranks) / sum(sum(rank["communication"][number]) for rank in ranks)
        for number in range(count)
    ]
    medians = [statistics.median(times) for times in seconds]
    benchmark.extra_info.update(
        {"medians": medians, "alone": [statistics.median(times) for times in alone], "ratios": ratios, "hidden": hidden}
    )
    steps.append(
        (
            case,
            *(f"{median * 1000:.1f}" for median in medians),
            *(f"{statistics.median(times) * 1000:.1f}" for times in alone),
            *(f"{ratio:.2f}" for ratio in ratios),
            *(f"{share:.0%}" for share in hidden),
        )
    )
