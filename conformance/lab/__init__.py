"""The laboratory: a ``torch.distributed`` process group that takes luck away.

It wraps gloo, and computes exactly what a real backend may compute, but it is honest about asynchrony: a collective
completes late, until then its outputs hold NaN, completions come in another order than the collectives were issued,
sums are taken in any order and precision, a rank is slow, a collective fails; and everything is written down. What it
does is chosen by ``Options``; ``Options()`` does nothing but fill and write down.

In each rank::

    lab.init(rank, world_size, store)                  # instead of dist.init_process_group("gloo", …)
    with lab.session(lab.Options.drawn(seed=7)) as session:
        result = hook(None, bucket).wait()             # or a training step with DistributedDataParallel
        ...
    session.log.entries                                # each collective: operation, dtype, elements, group, thread, …
    session.log.findings                               # what no hook should do, in words
    lab.first_difference([[entry.text for entry in log.entries] for log in logs_of_all_ranks])

``dist.new_group`` makes further groups of the laboratory. All groups of a rank share the options and the log.

Where things lie:

- ``options.py``: the options, and what is drawn from the seed.
- ``log.py``: what is written down; ``conformance/findings.py``: the comparison of logs.
- ``process_group.py``: what each collective gives, overwrites and computes; ``issuing.py``: how one starts.
- ``messages.py``: sends and receives.
- ``transport.py``: moves data over gloo and finds ranks that issued different collectives.
- ``sums.py``: reductions in a chosen order and precision.
- ``completion.py``: when, in which order and on which thread collectives complete; finds deadlocks.
- ``work.py``: the handle of a collective, and its future; finds callbacks that wait.
- ``poison.py``: NaNs for tensors in flight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store, _DistributedBackendOptions

from commhooks.conformance.findings import BLOCKS, DEADLOCK, UNWAITED, WRITTEN, first_difference

from .issuing import Laboratory
from .log import Entry, Finding, Log, Recorder
from .options import Options
from .process_group import LabProcessGroup
from .work import waiters, watch_futures

__all__ = [
    "BACKEND",
    "BLOCKS",
    "DEADLOCK",
    "UNWAITED",
    "WRITTEN",
    "Entry",
    "Finding",
    "Log",
    "Options",
    "Session",
    "first_difference",
    "init",
    "log",
    "register",
    "session",
    "waiting",
]

BACKEND = "lab"

_laboratory: Laboratory | None = None
_note: Callable[[str], None] | None = None


class Session:
    """A stretch of a rank's life under one set of options.

    Attributes:
        options: The options.
        log: What was written down; complete when the session is over.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.log = Log()


def register(note: Callable[[str], None] | None = None) -> None:
    """Makes "lab" a backend that ``dist.init_process_group`` and ``dist.new_group`` know. Can be called again.

    Args:
        note: Gets the text of each collective as it is issued, such as ``allreduce sum float32[10] in (0, 1)``.
    """
    global _note
    _note = note
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _make, extended_api=True, devices=["cpu"])
    watch_futures()


def init(
    rank: int,
    world_size: int,
    store: Store,
    options: Options | None = None,
    *,
    timeout: timedelta = timedelta(seconds=60),
    note: Callable[[str], None] | None = None,
) -> None:
    """Initialises the default process group of ``torch.distributed`` with a group of the laboratory.

    Args:
        rank: This rank.
        world_size: Number of ranks.
        store: Where the ranks meet.
        options: What the laboratory does until a session begins.
        timeout: How long a collective waits for ranks that have not started it.
        note: See ``register``.
    """
    register(note)
    dist.init_process_group(BACKEND, rank=rank, world_size=world_size, store=store, timeout=timeout)
    if options is not None:
        _the_laboratory().begin(options)


@contextlib.contextmanager
def session(options: Options, patience: float = 10.0) -> Iterator[Session]:
    """Changes the options for a while, with a log of its own. Every rank has to do so at the same place.

    It begins and ends when nothing is under way on this rank, except what was chosen never to complete.

    Args:
        options: What the laboratory does meanwhile.
        patience: Seconds to wait for what is under way.

    Raises:
        TimeoutError: Something was still under way then.
    """
    laboratory = _the_laboratory()
    before = laboratory.options
    current = Session(options)
    laboratory.begin(options)
    try:
        yield current
    finally:
        try:
            laboratory.completer.drain(patience)
        finally:
            current.log = laboratory.recorder.log()
        laboratory.begin(before)


def waiting() -> contextlib.AbstractContextManager[None]:
    """Tells the laboratory that this thread waits for collectives in a way that it cannot see, such as for an event."""
    return waiters.one_more()


def log() -> Log:
    """What was written down on this rank since the session began, or since ``init``."""
    return _the_laboratory().recorder.log()


def _the_laboratory() -> Laboratory:
    if _laboratory is None:
        raise RuntimeError("this rank has no process group of the laboratory; call lab.init first")
    return _laboratory


def _make(options: _DistributedBackendOptions, backend_options: object) -> LabProcessGroup:
    global _laboratory
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    rank = options.group_rank
    if _laboratory is None or dist.distributed_c10d._world.default_pg is None:
        _laboratory = Laboratory(ranks[rank], Recorder(_note), options.timeout.total_seconds())
    return LabProcessGroup(_laboratory, options.store, rank, ranks, options.timeout)
