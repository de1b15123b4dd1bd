"""Ranks for tests: processes that form a group, run a function of the test and answer with what it gave.

They are forked from a process that was started for this alone. A test's own process has had process groups, whose
threads a forked process lacks; when it then collects such a group as garbage, it waits for those threads for ever.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

# What ranks need and takes long to import, torch's compiler included: its DistributedDataParallel imports it.
PRELOADED = ("torch._dynamo", "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook", "pytest")
Start = Callable[[int, int, dist.Store], None]


@dataclass
class Ended:
    """How a rank ended: with a value, with an error's text, or not in time."""

    value: object = None
    error: str = ""


def start_gloo(rank: int, world: int, store: dist.Store) -> None:
    """Forms the default group on gloo, with a time limit of 10 seconds."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=10))


def on_ranks(
    world: int,
    folder: Path,
    program: Callable[..., object],
    *arguments: object,
    start: Start = start_gloo,
    seconds: float = 40.0,
) -> list[Ended]:
    """Calls ``program(rank, world, *arguments)``, a function of a module, on each rank; gives their ends, by rank.

    Nothing lasts longer than ``seconds``: a rank that has not answered by then ends with the stacks of its threads.
    """
    prefix = folder / f"ranks-{len(list(folder.iterdir()))}"
    with _ranks(world, prefix, start, program, arguments, seconds) as connections:
        deadline = time.monotonic() + seconds
        return [_answer(connection, deadline, _stack(prefix, rank)) for rank, connection in enumerate(connections)]


def values(ends: Sequence[Ended]) -> list:  # type: ignore[type-arg]
    """What the ranks returned; none may have failed."""
    assert not any(end.error for end in ends), "\n".join(end.error for end in ends)
    return [end.value for end in ends]


@contextmanager
def _ranks(
    world: int, prefix: Path, start: Start, program: Callable[..., object], arguments: Sequence[object], seconds: float
) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    task = pickle.dumps((start, program, arguments))
    pipes = [context.Pipe() for _ in range(world)]
    processes = [
        context.Process(target=_run, args=(rank, world, prefix, pipe[1], seconds, task), daemon=True)
        for rank, pipe in enumerate(pipes)
    ]
    try:
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()
        yield [ours for ours, _ in pipes]
    finally:
        for process, (ours, _) in zip(processes, pipes, strict=True):
            if process.pid is not None:
                process.kill()
                process.join()
            ours.close()


def _run(rank: int, world: int, prefix: Path, connection: Connection, seconds: float, task: bytes) -> None:
    sys.path.append(str(Path(__file__).parents[1]))  # pytest names a file of tests from there
    with _stack(prefix, rank).open("w") as stack:
        faulthandler.dump_traceback_later(max(1.0, seconds - 2.0), file=stack)
        try:
            torch.set_num_threads(1)
            start, program, arguments = pickle.loads(task)
            start(rank, world, dist.FileStore(f"{prefix}.store", world))
            ended = Ended(program(rank, world, *arguments))
        except BaseException:
            ended = Ended(error=traceback.format_exc())
        connection.send_bytes(pickle.dumps(ended))
        # Peers may still need this rank's connections: it stays until the test ends it or is gone itself.
        connection.poll(None)
        os._exit(0)


def _answer(connection: Connection, deadline: float, stack: Path) -> Ended:
    if not connection.poll(max(0.0, deadline - time.monotonic())):
        return Ended(error=f"did not end in time\n{stack.read_text()}")
    try:
        ended = pickle.loads(connection.recv_bytes())
    except EOFError:
        return Ended(error="the process is gone")
    assert isinstance(ended, Ended)
    return ended


def _stack(prefix: Path, rank: int) -> Path:
    return Path(f"{prefix}.stack-{rank}")
