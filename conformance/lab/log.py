"""What the laboratory writes down on a rank."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass

from commhooks.conformance.findings import UNWAITED


@dataclass(frozen=True)
class Entry:
    """One collective that the rank issued.

    Attributes:
        number: Counts what the rank issued in all groups since the session began, from 0.
        group: The ranks of its group, numbered as in the world.
        sequence: Counts what the rank issued in this group since the session began, from 0; -1 for send and recv.
        operation: Name of the process group's method, such as "allreduce", "all_gather_single" or "send".
        dtype: Of what the rank gives, such as "float16"; empty for a barrier.
        elements: Number of elements that the rank gives. For one that only receives, what it receives.
        bytes: What the rank hands over to be sent; 0 for one that only receives.
        reduce_op: "sum", "avg", …; empty where nothing is reduced.
        peer: The root or the other rank, numbered as in the world; None where there is none.
        thread: Name of the thread that issued it.
        callback_of: If it was issued inside a completion callback, the number of the collective that had completed.
        place: The line of code that issued it, such as "hooks.py:12 in my_hook".
    """

    number: int
    group: tuple[int, ...]
    sequence: int
    operation: str
    dtype: str
    elements: int
    bytes: int
    reduce_op: str
    peer: int | None
    thread: str
    callback_of: int | None
    place: str

    @property
    def text(self) -> str:
        """What a person reads, and what must be the same on all ranks: ``allreduce sum float32[10] in (0, 1)``."""
        payload = f" {self.dtype}[{self.elements}]" if self.dtype else ""
        peer = f" {self.peer}" if self.peer is not None else ""
        reduce_op = f" {self.reduce_op}" if self.reduce_op else ""
        return f"{self.operation}{reduce_op}{peer}{payload} in {self.group}"


@dataclass(frozen=True)
class Finding:
    """Something that no hook should do, seen by the laboratory.

    Attributes:
        kind: ``BLOCKS``, ``DEADLOCK``, ``UNWAITED`` or ``WRITTEN``.
        text: A sentence that names the collective and, where it is known, the line of code.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Log:
    """What happened on one rank in a session.

    Attributes:
        entries: The collectives, in the order in which they were issued.
        completed: Their numbers in the order in which they completed.
        failed: The numbers of those that completed with an error.
        findings: What no hook should do.
        groups: The ranks of each process group made during the session.
    """

    entries: tuple[Entry, ...] = ()
    completed: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()

    def plain(self) -> dict[str, object]:
        """The log as plain data, fit to travel to the controller."""
        plain = dataclasses.asdict(self)
        plain["entries"] = [{**dataclasses.asdict(entry), "text": entry.text} for entry in self.entries]
        return plain

    def found(self, kind: str) -> list[str]:
        """The texts of the findings of one kind."""
        return [finding.text for finding in self.findings if finding.kind == kind]


class Recorder:
    """Collects a log from all threads of a rank.

    Args:
        note: Gets the text of each collective as it is issued; what it does must be quick.
    """

    def __init__(self, note: Callable[[str], None] | None = None) -> None:
        self._note = note
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Begins a new log."""
        with self._lock:
            self._entries: list[Entry] = []
            self._completed: list[int] = []
            self._failed: list[int] = []
            self._findings: list[Finding] = []
            self._groups: list[tuple[int, ...]] = []
            self._unseen: dict[int, str] = {}

    @property
    def issued(self) -> int:
        """How many collectives were issued so far: the number of the next one."""
        return len(self._entries)

    def issue(self, make: Callable[[int], Entry]) -> Entry:
        """Numbers a new collective and writes it down."""
        with self._lock:
            entry = make(len(self._entries))
            self._entries.append(entry)
            self._unseen[entry.number] = entry.text
        if self._note is not None:
            self._note(entry.text)
        return entry

    def complete(self, entry: Entry, failed: bool) -> None:
        """Writes down that a collective has completed."""
        with self._lock:
            self._completed.append(entry.number)
            if failed:
                self._failed.append(entry.number)

    def saw(self, entry: Entry) -> None:
        """Writes down that somebody waited for a collective, asked for its future or found it complete."""
        with self._lock:
            self._unseen.pop(entry.number, None)

    def find(self, kind: str, text: str) -> None:
        """Writes down something that no hook should do."""
        with self._lock:
            self._findings.append(Finding(kind, text))

    def made_group(self, ranks: tuple[int, ...]) -> None:
        """Writes down that a process group was made."""
        with self._lock:
            self._groups.append(ranks)

    def log(self) -> Log:
        """All that was written down so far."""
        with self._lock:
            ended = set(self._completed)
            unwaited = [
                Finding(UNWAITED, f"nobody waited for number {number}, {text}, or asked for its future")
                for number, text in self._unseen.items()
                if number in ended
            ]
            return Log(
                tuple(self._entries),
                tuple(self._completed),
                tuple(self._failed),
                (*self._findings, *unwaited),
                tuple(self._groups),
            )
