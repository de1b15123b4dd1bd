"""How a program can fail on the ranks, and the words for it."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from commhooks.conformance.findings import first_difference

BLAMED_FIRST = ("ended", "raised", "waiting")


@dataclass(frozen=True)
class RankReport:
    """What became of one rank in a program that failed.

    Attributes:
        rank: The rank.
        outcome: "finished", "raised", "ended" (the process is gone) or "waiting" (it had not answered in time).
        kind: The failure in a few words: "raises ValueError", "dies of SIGSEGV", "exits with 3", "hangs"; empty if the
            rank finished.
        text: The error's text, or empty.
        trace: The Python traceback, or the stacks of a waiting rank.
        collectives: The collectives that the rank started in this program, such as "all_reduce float16[512]".
        output: The end of what the rank printed.
        order: Place in the order in which the ranks answered or ended.
    """

    rank: int
    outcome: str
    kind: str = ""
    text: str = ""
    trace: str = ""
    collectives: tuple[str, ...] = ()
    output: str = ""
    order: int = 0


class RankFailure(Exception):
    """A program did not end well on every rank.

    Attributes:
        program: What the ranks were doing.
        reports: One for each rank, in order.
        culprits: The reports of the ranks that are to blame, the first to fail first: those that ended; if there are
            none, those that raised; if there are none, those that did not answer.
        kind: The failure in a few words, as the first culprit's report says it.
    """

    def __init__(self, program: str, reports: list[RankReport], limit: float) -> None:
        self.program = program
        self.reports = reports
        self.limit = limit
        by_order = sorted(reports, key=lambda report: report.order)
        # A rank that is gone explains why its peers raise, and one that raised explains why they wait.
        groups = ([report for report in by_order if report.outcome == outcome] for outcome in BLAMED_FIRST)
        self.culprits = next(group for group in groups if group)
        self.kind = self.culprits[0].kind
        super().__init__(self.summary())

    def summary(self) -> str:
        """A sentence for each rank: what it did and where it was; and their collectives, where they differ."""
        lines = [f"rank {report.rank} {self._sentence(report)}" for report in self.reports]
        known = [report for report in self.reports if report.outcome != "ended"]
        different = first_difference([report.collectives for report in known], [report.rank for report in known])
        if different is not None:
            lines += ["the collectives that they started, up to the first that differs:", different]
        return "\n".join(lines)

    def details(self) -> str:
        """The culprits' Python stacks and the end of their output, and the stacks of ranks that waited for them."""
        parts = []
        for report in sorted(self.reports, key=lambda report: report not in self.culprits):
            if report.trace and (report in self.culprits or report.outcome == "waiting"):
                parts.append(f"--- rank {report.rank} ---\n{report.trace.rstrip()}")
            if report.output and report in self.culprits:
                parts.append(f"--- rank {report.rank}, end of its output ---\n{report.output.rstrip()}")
        return "\n".join(parts)

    def _sentence(self, report: RankReport) -> str:
        if report.outcome == "finished":
            return f"finished {self.program}"
        if report.outcome == "raised":
            return f"raised {report.kind.removeprefix('raises ')} in {self.program}: {report.text or '(no text)'}"
        if report.outcome == "ended":
            return f"{report.kind} in {self.program}"
        if not report.collectives:
            waited = "it had started no collective"
        else:
            count = len(report.collectives)
            waited = f"the last of {count} collective{'s' * (count > 1)} it had started is {report.collectives[-1]}"
        place = innermost_frame(report.trace)
        where = f", in {place}" if place else ""
        if report in self.culprits:
            return f"did not finish {self.program} within {self.limit:g} s{where}; {waited}"
        return f"waited{where}; {waited}"


def ended(status: int) -> str:
    """The words for an exit status: "dies of SIGSEGV" or "exits with 3"."""
    if status >= 0:
        return f"exits with {status}"
    try:
        return f"dies of {signal.Signals(-status).name}"
    except ValueError:
        return f"dies of signal {-status}"


def innermost_frame(trace: str) -> str:
    """The place where the main thread is, out of a faulthandler dump: ``wait (futures/__init__.py:67)``."""
    lines = trace.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("Current thread")]
    for line in lines[starts[0] + 1 :] if starts else []:
        # faulthandler writes:  File "/a/b/c.py", line 67 in wait
        path, _, rest = line.strip().removeprefix('File "').partition('", line ')
        number, _, name = rest.partition(" in ")
        if number.isdigit():
            return f"{name} ({'/'.join(path.rsplit('/', 2)[-2:])}:{number})"
    return ""
