"""The time from a hook's call to its result, for each implementation in turn in one process group."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from commhooks.bench import programs
from commhooks.conformance.world import World

HOOKS = (
    "allreduce_hook",
    "fp16_compress_hook",
    "bf16_compress_hook",
    "fp16_compress_wrapper(allreduce_hook)",
    "bf16_compress_wrapper(allreduce_hook)",
    "noop_hook",
)
# Elements of a float32 bucket: 64 KiB, 1 MiB (the first bucket of data-parallel training) and 25 MiB (all others).
SIZES = {"64 KiB": 1 << 14, "1 MiB": 1 << 18, "25 MiB": 25 << 18}

# 25 MB of a small transformer: embedding, and two blocks of attention and feed-forward matrices with their biases.
BLOCK = [[768, 256], [768], [256, 256], [256], [1024, 256], [1024], [256, 1024], [256], [256], [256]]
TRANSFORMER = [[18240, 256], *BLOCK, *BLOCK]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("hook", HOOKS)
def test_hook(
    benchmark: BenchmarkFixture,
    world: World,
    implementations: list[str],
    rows: list[tuple[str, ...]],
    request: pytest.FixtureRequest,
    hook: str,
    size: str,
) -> None:
    """Times one hook at one size; the slower rank counts, since data-parallel training waits for it."""
    arguments: dict[str, Any] = {
        "implementations": implementations,
        "hook": hook,
        "dtype": "float32",
        "shapes": [[SIZES[size]]],
        "rounds": request.config.getoption("--rounds"),
    }
    compare(benchmark, world, rows, (hook, size), arguments)


@pytest.mark.parametrize("rank", [1, 2, 4, 32])
def test_powersgd(
    benchmark: BenchmarkFixture,
    world: World,
    implementations: list[str],
    rows: list[tuple[str, ...]],
    request: pytest.FixtureRequest,
    rank: int,
) -> None:
    """Times a compressed step of powerSGD_hook, with error feedback and warm start, on layers of a transformer."""
    arguments: dict[str, Any] = {
        "implementations": implementations,
        "hook": "powerSGD_hook",
        "dtype": "float32",
        "shapes": TRANSFORMER,
        "rounds": request.config.getoption("--rounds"),
        "warm_up": 4,
        "powersgd": {"matrix_approximation_rank": rank, "start_powerSGD_iter": 2},
    }
    compare(benchmark, world, rows, (f"powerSGD_hook, rank {rank}", "25 MB"), arguments)


def compare(
    benchmark: BenchmarkFixture,
    world: World,
    rows: list[tuple[str, ...]],
    title: tuple[str, str],
    arguments: dict[str, Any],
) -> None:
    """Times a hook of all implementations with ``programs.time_hooks`` and adds a row to the table."""
    implementations = arguments["implementations"]
    ranks: list[Any] = benchmark.pedantic(world.run, args=(programs.time_hooks,), kwargs=arguments, rounds=1)  # type: ignore[no-untyped-call]
    calls = [
        [max(times) for times in zip(*(rank["seconds"][number] for rank in ranks), strict=True)]
        for number in range(len(implementations))
    ]
    medians = [statistics.median(times) for times in calls]
    # Pair by pair: the two calls of a round see the same machine.
    ratios = [statistics.median(one / other for one, other in zip(calls[0], times, strict=True)) for times in calls[1:]]
    memory = [max(rank["memory"][number] for rank in ranks) / 2**20 for number in range(len(implementations))]
    benchmark.extra_info.update({"medians": medians, "ratios": ratios, "memory_mib": memory})
    rows.append(
        (
            *title,
            *(f"{median * 1000:.2f}" for median in medians),
            *(f"{ratio:.2f}" for ratio in ratios),
            " ".join(f"{grown:.1f}" for grown in memory) + " MiB",
        )
    )
