"""What the laboratory does to completions, to a rank, and to a collective that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from lab_hooks import call_one
from lab_ranks import on_ranks, values

from commhooks.conformance import lab
from commhooks.conformance.lab import Options
from commhooks.reference import allreduce_hook


def burst(rank: int, world: int, options: Sequence[Options]) -> list[tuple[int, ...]]:
    """Issues eight collectives at once, and gives the order in which they completed."""
    orders = []
    for one in options:
        with lab.session(one) as session:
            works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(8)]
            for work in works:
                work.wait()
        orders.append(session.log.completed)
    return orders


def test_order_of_completion_is_replayed(tmp_path: Path) -> None:
    """Issued, reversed and random orders are what they say; the same seed gives the same order."""
    random = [Options(seed=seed, completion_order="random", hold=0.02) for seed in (1, 1, 2)]
    options = [Options(), Options(completion_order="reversed", hold=0.02), *random]
    for found in values(on_ranks(2, tmp_path, burst, options)):
        assert found[0] == tuple(range(8))
        assert found[1] == tuple(reversed(range(8)))
        assert found[2] == found[3] != found[4]


def hold_for_long(rank: int, world: int) -> tuple[tuple[int, ...], float]:
    """Issues some collectives and waits for them, while the laboratory would hold completions back for 5 seconds."""
    began = time.monotonic()
    with lab.session(Options(completion_order="reversed", hold=5.0)) as session:
        works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
        works[0].get_future().wait()
        dist.barrier()
        event = threading.Event()
        dist.all_reduce(torch.ones(3), async_op=True).get_future().add_done_callback(lambda future: event.set())
        with lab.waiting():
            assert event.wait(4.0)
    return session.log.completed, time.monotonic() - began


def test_nothing_is_held_back_from_who_waits(tmp_path: Path) -> None:
    """Once somebody waits, all that was issued completes in the chosen order, and at once."""
    for completed, seconds in values(on_ranks(2, tmp_path, hold_for_long)):
        assert completed == (2, 1, 0, 3, 4)
        assert seconds < 4.0


def time_with_a_slow_rank(rank: int, world: int) -> float:
    with lab.session(Options(slow_rank=1, slow_at=2, slow_by=0.2)):
        began = time.monotonic()
        for _ in range(2):
            dist.barrier()
        fast = time.monotonic() - began
        dist.barrier()
        assert fast < 0.15, fast
        return time.monotonic() - began - fast


def test_a_slow_rank(tmp_path: Path) -> None:
    """The collective at the chosen place is late on all ranks."""
    assert all(seconds >= 0.19 for seconds in values(on_ranks(2, tmp_path, time_with_a_slow_rank)))


def test_a_failing_collective(tmp_path: Path) -> None:
    """It fails on the chosen rank with an error in its future, on all ranks, or never completes there."""
    first, second = values(on_ranks(2, tmp_path, call_one, allreduce_hook, Options(fail_at=1, fail_rank=1)))
    assert (first.errors, first.wrong) == ([], set())
    assert "lets number 1, allreduce sum float32[5] in (0, 1), fail on rank 1" in second.errors[0]
    assert (second.log.failed, second.wrong) == ((1,), set())
    assert all(seen.errors for seen in values(on_ranks(2, tmp_path, call_one, allreduce_hook, Options(fail_at=0))))


def wait_for_ever(rank: int, world: int) -> str:
    with lab.session(Options(fail_at=0, fail_rank=1, fail_how="never")):
        work = dist.all_reduce(torch.ones(2), async_op=True)
        try:
            return str(work.wait(timedelta(seconds=0.3)))
        except RuntimeError as error:
            return str(error)


def test_a_collective_that_never_completes(tmp_path: Path) -> None:
    """Waiting for it with a time limit ends with an error on that rank; the others have their result."""
    first, second = values(on_ranks(2, tmp_path, wait_for_ever))
    assert (first, second) == ("True", "timed out after 0.3 s: allreduce sum float32[2] in (0, 1)")
