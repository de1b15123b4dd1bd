"""What a run counts: cells, and how each of them ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

State = Literal["pass", "fail", "deviation", "unsupported", "not run"]
STATES: tuple[State, ...] = ("pass", "fail", "deviation", "unsupported", "not run")


class ClauseFailure(AssertionError):
    """An implementation does not keep a clause.

    Args:
        kind: What kind of mismatch, in a word or two ("value", "dtype"); deviations are recorded by it.
        message: What was found, in a sentence.
        expected: The expected value, as text.
        found: The value found, as text.
        bound: The allowed error, as text.
        excess: By how much it was exceeded, as text.
        place: Where the found value stands in the results of the check's programs, as a Python expression over
            ``results[program][rank]``, for the reproduction script.
        holds: A Python expression over ``found`` that is true if the clause holds there.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        expected: str = "",
        found: str = "",
        bound: str = "",
        excess: str = "",
        place: str = "",
        holds: str = "",
    ) -> None:
        super().__init__(message)
        self.place = place
        self.holds = holds
        self.kind = kind
        self.message = message
        self.expected = expected
        self.found = found
        self.bound = bound
        self.excess = excess


class NotRun(Exception):
    """A check cannot be run; the message says why."""


class Unsupported(Exception):
    """The implementation does not offer what a check needs; the message says what."""


@dataclass(frozen=True)
class Failure:
    """Why a cell failed.

    Attributes:
        kind: Such as "value", "dtype", "hangs", "dies of SIGSEGV", "raises ValueError".
        message: A sentence or two.
        expected: The expected value, as text; so are ``found``, ``bound`` and ``excess``. Each may be empty.
        details: Python stacks and output of the ranks; may be empty.
        script: Path of the reproduction script, relative to the report's folder; may be empty.
    """

    kind: str
    message: str
    expected: str = ""
    found: str = ""
    bound: str = ""
    excess: str = ""
    details: str = ""
    script: str = ""


@dataclass(frozen=True)
class Traffic:
    """What one rank gives to collectives in one step, as the laboratory wrote it down.

    Attributes:
        collectives: Number of collectives.
        bytes: Bytes of their inputs.
        plain_bytes: Bytes of the bucket, which a plain allreduce sends.
    """

    collectives: int
    bytes: int
    plain_bytes: int


@dataclass(frozen=True)
class Cell:
    """One clause, checked by one check under one configuration.

    Attributes:
        clause: Id of the clause.
        check: Name of the check: ``test_allreduce.test_mean``.
        configuration: ``world_size`` and, where they apply, ``dtype``, ``hook`` and others; all as text.
        state: How it ended.
        reason: Why it was not run or is unsupported, what a deviation is, or which of several allowed behaviours a
            check that passed saw; may be empty.
        failure: What went wrong in a failed cell or one that deviates.
        seconds: Time the check took.
        traffic: What the check saw on the wire, if that is what it reports.
    """

    clause: str
    check: str
    configuration: dict[str, str]
    state: State
    reason: str = ""
    failure: Failure | None = None
    seconds: float = 0.0
    traffic: Traffic | None = None


@dataclass
class ImplementationResult:
    """All that a run found out about one implementation.

    Attributes:
        name: What the user calls it.
        module: Where the code was found.
        version: Its version.
        framework: Framework and version.
        python: Version of the interpreter that ran the ranks.
        device: Device type.
        backend: Backend of the process group.
        cells: All cells.
        stale: Sentences about recorded deviations that did not show.
        scripts: Texts of reproduction scripts, by the path that a ``Failure`` has. Filled in a report only.
    """

    name: str
    module: str
    version: str
    framework: str
    python: str
    device: str
    backend: str
    cells: list[Cell] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    scripts: dict[str, str] = field(default_factory=dict)
