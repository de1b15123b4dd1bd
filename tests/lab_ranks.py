"""Ranks in the laboratory, for its own tests."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from commhooks.conformance import lab


@dataclass
class Ended:
    """How a rank ended: with a value, with an error's text, or not in time."""

    value: object = None
    error: str = ""


def on_ranks(world: int, folder: Path, program: Callable[..., object], *arguments: object) -> list[Ended]:
    """Forks ranks that form a group of the laboratory and run the program; nothing lasts longer than 15 seconds."""
    store = folder / f"store-{len(list(folder.iterdir()))}"
    ranks = [_fork(rank, world, store, program, arguments) for rank in range(world)]
    deadline = time.monotonic() + 15.0
    try:
        return [_answer(pipe, deadline) for _, pipe in ranks]
    finally:
        for pid, pipe in ranks:
            os.close(pipe)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork(
    rank: int, world: int, store: Path, program: Callable[..., object], arguments: Sequence[object]
) -> tuple[int, int]:
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    try:
        torch.set_num_threads(1)
        lab.init(rank, world, dist.FileStore(str(store), world), timeout=timedelta(seconds=8))
        ended = Ended(program(rank, world, *arguments))
    except BaseException:
        ended = Ended(error=traceback.format_exc())
    with os.fdopen(write, "wb") as pipe:
        pickle.dump(ended, pipe)
    time.sleep(15.0)  # peers may still need this rank's connections
    os._exit(0)


def _answer(pipe: int, deadline: float) -> Ended:
    data = b""
    while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(pipe, 1 << 16)
        if not part:
            ended = pickle.loads(data) if data else Ended(error="the process is gone")
            assert isinstance(ended, Ended)
            return ended
        data += part
    return Ended(error="did not end in time")


def values(ends: Sequence[Ended]) -> list:  # type: ignore[type-arg]
    """What the ranks returned; none may have failed."""
    assert not any(end.error for end in ends), "\n".join(end.error for end in ends)
    return [end.value for end in ends]
