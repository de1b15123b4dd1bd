"""Decides when a collective whose data has arrived completes, in which order, and on which thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from commhooks.conformance.findings import DEADLOCK

from .log import Recorder
from .options import Options
from .work import Callback, LabWork, waiters

# With another order than "issued", the next completion waits this long for the callbacks of the one before.
_APART = 0.002
# Once somebody waits, nothing more is expected to be issued, and nothing is held back for longer than this.
_SETTLED = 0.002
# A callback that does not wait for a future or a work, but computes or polls, gets so much more time.
_PATIENCE_WITH_BUSY = 40


@dataclass(eq=False)
class _Held:
    """A collective that has arrived and not been handed out.

    Attributes:
        work: Its handle.
        deliver: Writes the result into the outputs.
        error: Why it failed, or None.
        due: When it may complete.
        arrived: When its data arrived.
        turn: With another order than "issued", the smallest goes first.
        lost: It was chosen never to complete.
    """

    work: LabWork
    deliver: Callable[[], None]
    error: str | None
    due: float
    arrived: float = field(default_factory=time.monotonic)
    turn: float = 0.0
    lost: bool = False


class Completer:
    """Hands completions out, for all groups of a rank.

    Args:
        rank: The rank's number in the world.
        recorder: Its log.
        timeout: Seconds after which a collective that was chosen never to complete fails after all.
    """

    def __init__(self, rank: int, recorder: Recorder, timeout: float) -> None:
        self._rank = rank
        self._recorder = recorder
        self._timeout = timeout
        self._change = threading.Condition()
        self._threads_started = False
        self._queue: queue.SimpleQueue[_Held] = queue.SimpleQueue()
        self._begin(Options())
        waiters.on_change = self._look_again

    def begin(self, options: Options, patience: float = 10.0) -> None:
        """Waits until nothing is under way, and goes on with other options.

        Raises:
            TimeoutError: Something is still under way after ``patience`` seconds.
        """
        self.drain(patience)
        with self._change:
            lost = self._held
            self._begin(options)
            self._open += len(lost)
        for held in lost:
            self._complete(held)

    def _begin(self, options: Options) -> None:
        self._options = options
        self._held: list[_Held] = []
        self._open = 0
        self._travelling = 0
        self._last_issue = 0.0
        self._last_due: dict[object, float] = {}
        self._queued: list[_Held] = []
        self._running: tuple[Callback, float] | None = None
        self._deadlock: str | None = None

    def drain(self, patience: float) -> None:
        """Waits until everything has completed and its callbacks have returned, except what never will.

        Raises:
            TimeoutError: It has not within ``patience`` seconds.
        """
        with self._change:
            if not self._change.wait_for(lambda: self._open == 0, patience):
                raise TimeoutError(f"{self._open} collectives are still under way after {patience:g} s")

    def issued(self) -> None:
        """A collective is on its way."""
        with self._change:
            if not self._threads_started:
                self._threads_started = True
                threading.Thread(target=self._hand_out, name="lab-scheduler", daemon=True).start()
                threading.Thread(target=self._run_queue, name="lab-callbacks", daemon=True).start()
            self._open += 1
            self._travelling += 1
            self._last_issue = time.monotonic()

    def arrived(self, work: LabWork, deliver: Callable[[], None], error: str | None, lane: object) -> None:
        """The data of a collective is there, or an error instead. In one lane completions keep their order."""
        number = work.entry.number
        late = time.monotonic() + self._options.lateness(self._rank, number)
        held = _Held(work, deliver, error, late, turn=self._options.turn(self._rank, number))
        with self._change:
            self._travelling -= 1
            if error is None and self._options.fails(self._rank, number):
                held.error = f"the laboratory lets number {number}, {work.entry.text}, fail on rank {self._rank}"
                if self._options.fail_how == "never":
                    held.lost = True
                    held.due += self._timeout
                    held.error = f"timed out after {self._timeout:g} s: {work.entry.text}"
                    self._open -= 1
            if not held.lost:
                held.due = max(held.due, self._last_due.get(lane, 0.0))
                self._last_due[lane] = held.due
            self._held.append(held)
            self._change.notify_all()

    def _look_again(self) -> None:
        with self._change:
            self._change.notify_all()

    def _hand_out(self) -> None:
        while True:
            with self._change:
                held, pause = self._choose(time.monotonic())
                if held is None:
                    self._change.wait(pause)
                    continue
                self._held.remove(held)
                self._open += held.lost
                held.error = held.error or self._deadlock
            self._hand_out_one(held)

    def _choose(self, now: float) -> tuple[_Held | None, float | None]:
        """The next to complete, or None and the time until something may change."""
        self._look_for_deadlock(now)
        lost = [held for held in self._held if held.lost and held.due <= now]
        waiting = [held for held in self._held if not held.lost]
        if lost or (waiting and self._deadlock):
            return [*lost, *waiting][0], None
        moments = [held.due for held in self._held if held.lost]
        if self._queued:
            moments.append(now + self._options.deadlock_after / 4)
        ready = [held for held in waiting if held.due <= now]
        if self._options.completion_order == "issued":
            if ready:
                return min(ready, key=lambda held: held.work.entry.number), None
            moments += [held.due for held in waiting]
        elif waiting:
            quiet = self._last_issue + (min(_SETTLED, self._options.hold) if waiters.count else self._options.hold)
            if not self._travelling and now >= quiet and len(ready) == len(waiting):
                return min(ready, key=lambda held: held.turn), None
            limit = 20 * self._options.hold
            old = [held for held in ready if now >= held.arrived + limit]
            if old:
                return min(old, key=lambda held: held.turn), None
            moments += [max(held.due, held.arrived + limit) for held in waiting]
            if not self._travelling:
                moments.append(max([quiet, *(held.due for held in waiting)]))
        return None, max(0.0, min(moments) - now) if moments else None

    def _hand_out_one(self, held: _Held) -> None:
        if held.error is None:
            try:
                held.deliver()
            except Exception as error:
                held.error = f"{type(error).__name__}: {error}"
        self._recorder.complete(held.work.entry, held.error is not None)
        if self._options.callback_threads == "one" and self._deadlock is None and not held.lost:
            with self._change:
                self._queued.append(held)
            self._queue.put(held)
            return
        name = f"lab-callback-{held.work.entry.number}"
        thread = threading.Thread(target=self._complete, args=(held,), name=name, daemon=True)
        thread.start()
        if self._options.completion_order != "issued":
            thread.join(_APART)

    def _run_queue(self) -> None:
        while True:
            held = self._queue.get()
            with self._change:
                if held not in self._queued:
                    continue  # a deadlock was found, and it has failed on another thread
                self._queued.remove(held)
            self._complete(held, alone=True)

    def _complete(self, held: _Held, alone: bool = False) -> None:
        callback = Callback(held.work.entry, self._recorder)
        if alone:
            self._running = (callback, time.monotonic())
        try:
            callback.run(lambda: held.work.finish(held.error))
        finally:
            with self._change:
                if alone:
                    self._running = None
                self._open -= 1
                self._change.notify_all()

    def _look_for_deadlock(self, now: float) -> None:
        if self._running is None or not self._queued or self._deadlock is not None:
            return
        callback, since = self._running
        does = callback.waits_for
        limit = self._options.deadlock_after * (1 if does is not None else _PATIENCE_WITH_BUSY)
        if now - since < limit:
            return
        stuck = f"number {self._queued[0].work.entry.number}, {self._queued[0].work.entry.text},"
        self._deadlock = (
            f"deadlock: a callback of number {callback.entry.number}, {callback.entry.text}, "
            f"{does or 'has not returned'}, for {limit:g} s, on the only thread that runs callbacks, and so {stuck} "
            "cannot complete. A hook must not block on a collective inside a callback: wait in the hook itself, or "
            "chain with then."
        )
        self._recorder.find(DEADLOCK, self._deadlock)
        for held in self._queued:
            held.error = held.error or self._deadlock
            threading.Thread(target=self._complete, args=(held,), daemon=True).start()
        self._queued = []
