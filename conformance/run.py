"""What lasts for a whole run: the options, the implementations with their ranks, and what was found out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from commhooks.adapters import UnusableImplementation
from commhooks.conformance import selection
from commhooks.conformance.accounting import Account
from commhooks.conformance.cells import ImplementationResult
from commhooks.conformance.clauses import Clause, ClauseError, all_clauses, version
from commhooks.conformance.deviations import Deviation, DeviationsError, deviations_of, read_deviations
from commhooks.conformance.options import Options
from commhooks.conformance.report.document import Report
from commhooks.conformance.world import Implementation, Launcher
from commhooks.conformance.world.torchrun import Torchrun


@dataclass
class Run:
    """What lasts for the whole run.

    Attributes:
        options: What the user asked for.
        clauses: The clauses of the chosen version of the specification, by id.
        launcher: What the implementations' servers are forked from, until the ranks are ended.
        implementations: By the text of ``--impl``; so are ``accounts``.
        accounts: The cells of each implementation.
        started: When the run started, in seconds since the epoch.
        files: Names of the files that checks are taken from.
        complete: Whether all checks are run: only then can a recorded deviation that matches no cell be called stale.
        report: What the run found out, once it has ended.
        unwritten: Sentences about what of the report could not be written.
    """

    options: Options
    clauses: dict[str, Clause]
    launcher: Launcher | None = None
    implementations: dict[str, Implementation] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    started: float = field(default_factory=time.time)
    files: set[str] = field(default_factory=set)
    complete: bool = True
    report: Report | None = None
    unwritten: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, options: Options) -> Run:
        """Imports the implementations.

        Raises:
            pytest.UsageError: What was asked for cannot be checked, or the recorded deviations cannot be read.
        """
        run = cls(options, _clauses(options))
        # The deviations file is read even if the implementation turns out unusable: both errors are worth knowing.
        if options.deviations is not None:
            _read(options.deviations)
        try:
            run.launcher = Launcher(options.python, options.ranks.start_timeout, Torchrun.from_environment())
            for text in options.implementations:
                implementation = Implementation(text, options.ranks, run.launcher)
                run.implementations[text] = implementation
                for size in options.world_sizes:
                    implementation.obstacle(size)
                run.accounts[text] = _account(implementation, options)
        except UnusableImplementation as error:
            run.close()
            raise pytest.UsageError(str(error)) from None
        except BaseException:
            run.close()
            raise
        return run

    def close(self) -> None:
        """Ends the ranks."""
        for implementation in self.implementations.values():
            implementation.close()
        if self.launcher is not None:
            self.launcher.close()
            self.launcher = None

    @property
    def results(self) -> list[ImplementationResult]:
        """What was found out about each implementation."""
        return [account.result for account in self.accounts.values()]

    def choices(self, hooks: Any) -> list[selection.Choice]:
        """What can be chosen from for each implementation; pytest's ``hooks`` may limit the clauses."""
        chosen = []
        for text, implementation in self.implementations.items():
            wanted = hooks.pytest_commhooks_clauses(implementation=text)
            clauses = set(self.clauses) if wanted is None else set(self.clauses) & set(wanted)
            chosen.append(
                selection.Choice(
                    text, implementation.description, self.options.world_sizes, clauses, self.options.search > 0
                )
            )
        return chosen


def _clauses(options: Options) -> dict[str, Clause]:
    """The clauses of the chosen version of the specification."""
    try:
        clauses = all_clauses()
    except ClauseError as error:
        raise pytest.UsageError(str(error)) from None
    if options.spec is None:
        return clauses
    newest = version(options.spec)
    chosen = {name: clause for name, clause in clauses.items() if version(clause.since) <= newest}
    if not chosen:
        oldest = min(clauses.values(), key=lambda clause: version(clause.since)).since
        raise pytest.UsageError(f"--spec={options.spec} leaves no clause; the oldest are of {oldest}")
    return chosen


def _account(implementation: Implementation, options: Options) -> Account:
    description = implementation.description
    path = deviations_of(description.name, options.deviations)
    recorded = _read(path) if path is not None else []
    result = ImplementationResult(
        name=description.name,
        module=description.module,
        version=description.version,
        framework=description.framework,
        python=implementation.python,
        device=options.ranks.device,
        backend=implementation.backend,
    )
    return Account(result, [deviation for deviation in recorded if deviation.applies_to(description.version)])


def _read(path: Path) -> list[Deviation]:
    try:
        return read_deviations(path, all_clauses())
    except DeviationsError as error:
        raise pytest.UsageError(str(error)) from None
