"""The handle of a collective, and the trace of threads that wait inside a completion callback."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from commhooks.conformance.findings import BLOCKS

from .log import Entry, Recorder

_TORCH = Path(torch.__file__).parent
# Code that a collective or a wait passes through; the line before it is the one that starts it, or waits.
_IN_BETWEEN = (
    str(Path(__file__).parent),
    str(Path(__file__).parents[2] / "adapters" / "torch_collectives.py"),
    str(_TORCH / "futures"),
    str(_TORCH / "distributed" / "distributed_c10d.py"),
    str(_TORCH / "distributed" / "c10d_logger.py"),
    str(_TORCH / "distributed" / "_functional_collectives.py"),
    str(_TORCH / "distributed" / "nn"),
    str(_TORCH / "autograd"),
    str(_TORCH / "_ops.py"),
    str(_TORCH / "utils" / "_contextlib.py"),
    contextlib.__file__,
)


class Waiters:
    """The threads that wait for a collective or a future at the moment.

    Attributes:
        count: How many.
        on_change: Called when there is one more.
    """

    def __init__(self) -> None:
        self.count = 0
        self.on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        """Counts this thread for as long as it waits."""
        self._add(1)
        self.on_change()
        try:
            yield
        finally:
            self._add(-1)

    def _add(self, number: int) -> None:
        with self._lock:
            self.count += number


waiters = Waiters()


class Callback:
    """The completion callbacks of one collective, while they run on a thread.

    Attributes:
        entry: The collective that has completed.
        waits_for: What the callback waits for, and where, or None.
    """

    _running = threading.local()

    def __init__(self, entry: Entry, recorder: Recorder) -> None:
        self.entry = entry
        self.waits_for: str | None = None
        self._recorder = recorder

    @classmethod
    def current(cls) -> Callback | None:
        """The callback that runs on this thread, or None."""
        return getattr(cls._running, "callback", None)

    def run(self, complete: Callable[[], None]) -> None:
        """Completes the collective, which runs its callbacks on this thread."""
        Callback._running.callback = self
        try:
            complete()
        finally:
            Callback._running.callback = None

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Writes down that the callback waits, for as long as it does."""
        self.waits_for = f"waits for {what} at {user_code()}"
        number, text = self.entry.number, self.entry.text
        self._recorder.find(BLOCKS, f"a callback of number {number}, {text}, {self.waits_for}")
        try:
            yield
        finally:
            self.waits_for = None


class LabWork(dist.Work):
    """What a collective of the laboratory returns; behaves as the work of a real backend does.

    Args:
        entry: The collective.
        value: What its future holds when it completes.
        recorder: The rank's log.
    """

    def __init__(self, entry: Entry, value: Sequence[torch.Tensor], recorder: Recorder) -> None:
        super().__init__()
        self.entry = entry
        self.source = -1
        self._value = list(value)
        self._recorder = recorder
        self._error: str | None = None
        self._done = threading.Event()
        self._completion: torch._C.Future[None] = torch._C.Future([])
        # Only a callback that raises gives a future a real error, one that C++ sees too.
        self._future: torch._C.Future[list[torch.Tensor]] = self._completion.then(self._outcome)  # type: ignore[assignment]
        # The first callback of all: whoever waited for the work finds the future complete, and waits for no callback.
        self._future.add_done_callback(lambda future: self._done.set())

    def finish(self, error: str | None) -> None:
        """Completes the work and its future, and runs the callbacks on this thread."""
        self._error = error
        self._completion.set_result(None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the collective has completed.

        Raises:
            DistBackendError: It failed.
            RuntimeError: The time is over.
        """
        self._recorder.saw(self.entry)
        callback = Callback.current()
        done = self._done.is_set()
        if not done:
            with waiting(callback, f"number {self.entry.number}, {self.entry.text},"):
                done = self._done.wait(timeout.total_seconds() or None)
        if not done:
            raise RuntimeError(f"timed out after {timeout.total_seconds():g} s: {self.entry.text}")
        if self._error is not None:
            raise dist.DistBackendError(self._error)
        return True

    def synchronize(self) -> None:
        """The same as ``wait`` on the CPU."""
        self.wait()

    def get_future(self) -> torch._C.Future[list[torch.Tensor]]:  # type: ignore[override]
        """A future of the list of outputs; with an error if the collective failed."""
        self._recorder.saw(self.entry)
        return self._future

    def is_completed(self) -> bool:
        """Whether it has completed, well or not."""
        done = self._done.is_set()
        if done:
            self._recorder.saw(self.entry)
        return done

    def is_success(self) -> bool:
        """Whether it has completed well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """The error with which it completed, or None."""
        return dist.DistBackendError(self._error) if self.is_completed() and self._error is not None else None

    def result(self) -> list[torch.Tensor]:
        """The outputs."""
        return self._value

    def source_rank(self) -> int:
        """The rank in the group from which a tensor was received."""
        return self.source

    _source_rank = source_rank

    def _outcome(self, completion: torch._C.Future[None]) -> list[torch.Tensor]:
        if self._error is not None:
            raise dist.DistBackendError(self._error)
        return self._value


class WorkOfMany(dist.Work):
    """The work of several collectives that were issued between the start and the end of coalescing."""

    def __init__(self, works: Sequence[LabWork]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for all."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all have completed."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have completed well."""
        return all(work.is_success() for work in self._works)

    def result(self) -> list[torch.Tensor]:
        """The outputs of all, in the order of issue."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch._C.Future[list[torch.Tensor]]:  # type: ignore[override]
        """A future of the outputs of all."""
        together = torch._C._collect_all([work.get_future() for work in self._works])
        return together.then(lambda all_of_them: [tensor for one in all_of_them.value() for tensor in one.value()])


@contextlib.contextmanager
def waiting(callback: Callback | None, what: str) -> Iterator[None]:
    """Lets the laboratory know that this thread waits, and whether it does so inside a callback."""
    with waiters.one_more(), callback.waiting(what) if callback is not None else contextlib.nullcontext():
        yield


def watch_futures() -> None:
    """Makes the wait of any future note when it blocks inside a completion callback. It changes nothing else."""
    original = torch._C.Future.wait
    if hasattr(original, "__commhooks_lab__"):
        return

    def wait(self: torch._C.Future[object]) -> object:
        if self.done():
            return original(self)
        with waiting(Callback.current(), "a future"):
            return original(self)

    wait.__commhooks_lab__ = True  # type: ignore[attr-defined]
    wait.__doc__ = original.__doc__
    torch._C.Future.wait = wait  # type: ignore[method-assign, assignment]


def user_code() -> str:
    """The innermost line that is not only passed through: ``hooks.py:12 in my_hook``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_IN_BETWEEN):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
