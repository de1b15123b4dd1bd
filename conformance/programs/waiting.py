"""Calling a hook whose peer is slow, and noting what the rank does while it waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from commhooks.adapters import Adapter
from commhooks.adapters.adapter import Array

T = TypeVar("T")


def wait_for_a_slow_rank(
    adapter: Adapter[T], hook: str, dtype: str, steps: Sequence[Array], shapes: Sequence[Sequence[int]], late: float
) -> dict[str, Any]:
    """Calls a hook for some steps of one bucket; in the last one some ranks come late, and the others wait.

    Args:
        adapter: The implementation.
        hook: A hook's name, or an expression with wrappers.
        dtype: dtype of the buckets.
        steps: The flat buffer of each step.
        shapes: Shapes of the bucket's parameters.
        late: Seconds by which this rank comes late to the last step.

    Returns:
        ``busy``: seconds that the process computed in the last step. ``stalled``: seconds in which another Python
        thread of the process was not let run.
    """
    state = adapter.state(hook, adapter.group(range(adapter.place.world_size)))
    called = adapter.hook(hook)
    buckets = [
        adapter.bucket(0, values, [adapter.parameter(shape, dtype) for shape in shapes], True) for values in steps
    ]
    for bucket in buckets[:-1]:
        future = called(state, bucket)
        if adapter.is_future(future):
            adapter.wait(future)
    adapter.barrier()
    time.sleep(late)
    computed = time.process_time()
    ticks = _Ticks()
    future = called(state, buckets[-1])
    if adapter.is_future(future):
        adapter.wait(future)
    return {"stalled": ticks.stop(), "busy": time.process_time() - computed}


class _Ticks:
    """A thread that wants to run all the time, and adds up the seconds in which it could not.

    Attributes:
        EVERY: Seconds for which it sleeps.
        LAPSE: After more seconds than these it was not let run.
    """

    EVERY = 0.002
    LAPSE = 0.02

    def __init__(self) -> None:
        self._stalled = 0.0
        self._over = threading.Event()
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Ends the thread and gives the seconds in which it was not let run."""
        self._over.set()
        self._thread.join()
        return self._stalled

    def _run(self) -> None:
        while not self._over.wait(self.EVERY):
            self._look()
        self._look()

    def _look(self) -> None:
        present = time.monotonic()
        lapse = present - self._last
        self._last = present
        if lapse > self.LAPSE:
            self._stalled += lapse
