"""What a rank runs to time collectives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from commhooks.adapters import TorchAdapter


def time_collective(adapter: TorchAdapter, operation: str, numel: int, rounds: int) -> list[float]:
    """Times one collective from its start to its end, on a tensor of ones; the ranks start together.

    Args:
        adapter: The adapter that has joined the process group.
        operation: "allreduce", "allgather" or "broadcast".
        numel: Elements of the float32 tensor.
        rounds: How often, after once that does not count.

    Returns:
        The seconds of each.
    """
    import torch
    import torch.distributed as dist

    tensor = torch.ones(numel)
    parts = [torch.empty_like(tensor) for _ in range(adapter.place.world_size)]
    start: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: dist.all_reduce(tensor, async_op=True),
        "allgather": lambda: dist.all_gather(parts, tensor, async_op=True),
        "broadcast": lambda: dist.broadcast(tensor, src=0, async_op=True),
    }
    seconds = []
    for _ in range(rounds + 1):
        tensor.fill_(1.0)
        adapter.barrier()
        started = time.perf_counter()
        start[operation]().wait()
        seconds.append(time.perf_counter() - started)
    return seconds[1:]
