"""What one rank does: join the process group, run the programs it is told to, answer.

A program is a function in ``commhooks.conformance.programs`` that gets the adapter and plain data, and returns
plain data.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from commhooks.adapters import Adapter, Place

from .channel import Channel, ChannelClosed, Plain, connect


@dataclasses.dataclass(frozen=True)
class RankOrder:
    """What a new rank is told: where it is, and how to reach the controller.

    Attributes:
        world: Number of the world, unique in a run.
        place: Its place in the process group.
        controller: Address of the controller, and ``token`` to be let in.
        folder: Where it leaves its log of collectives and, when asked, its stack.
        memory: Bytes of address space it may use, or None.
    """

    world: int
    place: Place
    controller: str
    token: str
    folder: str
    memory: int | None

    @property
    def log(self) -> Path:
        """Collectives that the current program started, a line each."""
        return Path(self.folder, f"world{self.world}-rank{self.place.rank}.collectives")

    @property
    def stack(self) -> Path:
        """Python stacks of all threads, written on SIGUSR1."""
        return Path(self.folder, f"world{self.world}-rank{self.place.rank}.stack")


def serve(adapter: Adapter, order: RankOrder) -> None:  # type: ignore[type-arg]
    """Runs programs until the controller closes the connection. Never returns to the caller's stack of fork."""
    channel = Channel(connect(order.controller))
    hello: dict[str, Plain] = {"token": order.token, "world": order.world, "rank": order.place.rank}
    channel.send({**hello, "role": "rank", "pid": os.getpid()})
    _send_output_to_controller(order, hello)

    # faulthandler writes from the signal handler itself, so it works in a rank that is stuck in C code.
    stack = order.stack.open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if order.memory is not None:
        _limit_memory(order.memory)

    log = os.open(order.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(text: str) -> None:
        os.write(log, f"{text}\n".encode())

    adapter.on_collective(note)
    if order.place.backend == "lab":
        # Imported here only: it needs torch.
        from commhooks.conformance import lab

        lab.register()
    try:
        channel.send(_answer(lambda: adapter.join(order.place)))
        while True:
            request = channel.receive()
            os.ftruncate(log, 0)
            channel.send(_run(adapter, request))
    except ChannelClosed:
        os._exit(0)


def _run(adapter: Adapter, request: Mapping[str, Plain]) -> dict[str, Plain]:  # type: ignore[type-arg]
    module, _, name = str(request["program"]).partition(":")
    arguments = request["arguments"]
    assert isinstance(arguments, Mapping)
    program = getattr(importlib.import_module(module), name)
    return _answer(lambda: program(adapter, **arguments))


def _answer(work: Callable[[], Plain]) -> dict[str, Plain]:
    started = time.perf_counter()
    try:
        result = work()
    except Exception as error:
        return {
            "error": type(error).__name__,
            "text": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        }
    return {"result": result, "seconds": time.perf_counter() - started}


def _send_output_to_controller(order: RankOrder, hello: dict[str, Plain]) -> None:
    """Sends what the rank prints, from C code too, to the controller, which keeps the end of it."""
    output = connect(order.controller)
    Channel(output).send({**hello, "role": "output"})
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)


def _limit_memory(limit: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
