"""The line that a terminal shows while checks run, in place of pytest's letters.

Where the output is no terminal, and with ``-q``, ``-v`` or ``-s``, pytest's own output stays.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Generator, Sequence
from typing import TypeAlias

import pytest

from commhooks.conformance.report.words import count

# Category, letter and word.
Status: TypeAlias = tuple[str, object, object]

SECONDS_BETWEEN = 0.1
# What is worth a word while it runs; a check that passes is counted only.
SHOWN = {"fail": "failure", "deviation": "deviation", "not run": ""}


class Progress:
    """Writes the line again and again.

    It follows pytest's reports, which the controlling process has of all checks, also where workers run them.

    Args:
        reporter: What writes to the terminal.
    """

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._running = True
        self._total = 0
        self._done = 0
        self._states: Counter[str] = Counter()
        self._last = 0.0
        reporter.showfspath = False
        # pytest would write its percentage into the line.
        reporter._show_progress_info = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Notes how many checks there are."""
        self._total = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Notes how many checks the workers have between them."""
        self._total = len(ids)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a check that has ended."""
        state = dict(report.user_properties).get("state")
        if state is None or report.when == "teardown":
            return
        self._done += 1
        self._states[str(state)] += 1
        if self._done == self._total or time.monotonic() - self._last >= SECONDS_BETWEEN:
            self._last = time.monotonic()
            self._reporter.rewrite(self.line(report.nodeid, self._reporter._tw.fullwidth - 1), erase=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Status, Status]:
        """Keeps pytest from writing a letter for each check."""
        category, letter, word = yield
        return (category, "", "") if self._running else (category, letter, word)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Takes the line away."""
        self._running = False
        self._reporter.rewrite("", erase=True)
        self._reporter.write("\r")

    def line(self, nodeid: str, width: int) -> str:
        """What there is to say after a check, in at most so many letters."""
        world = re.search(r"[\[-]W(\d+)[\]-]", nodeid)
        words = [f"{self._done:,} of {count(self._total, 'check')}"]
        words += [f"world of {world[1]}"] if world else []
        for state, noun in SHOWN.items():
            number = self._states[state]
            if number:
                words.append(count(number, noun) if noun else f"{number:,} {state}")
        return "   ".join(words)[:width]


def register(config: pytest.Config) -> None:
    """Shows the line where somebody can see it change."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or not reporter.isatty or os.environ.get("TERM") == "dumb":
        return
    if config.option.verbose == 0 and config.option.capture != "no" and not config.option.collectonly:
        config.pluginmanager.register(Progress(reporter), "commhooks-progress")
