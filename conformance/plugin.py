"""The pytest plugin: runs each check for each implementation and configuration, and accounts for every cell.

It is loaded by ``conftest.py`` in a checkout and by ``commhooks check`` when installed. It is no pytest11 entry point:
its options would show up in everybody else's pytest runs.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from commhooks.adapters import UnusableImplementation
from commhooks.conformance import selection
from commhooks.conformance.accounting import Account
from commhooks.conformance.cells import ClauseFailure, Failure, ImplementationResult, NotRun, State, Unsupported
from commhooks.conformance.clauses import Clause, ClauseError, all_clauses, version
from commhooks.conformance.deviations import Deviation, DeviationsError, deviations_of, read_deviations
from commhooks.conformance.marks import MARKS
from commhooks.conformance.options import Options, add_options, read_options
from commhooks.conformance.report import reproduction, terminal
from commhooks.conformance.report.document import write_report
from commhooks.conformance.world import Implementation, Launcher, RankFailure, TooManyHangs, World
from commhooks.conformance.world.torchrun import Torchrun

RUN = pytest.StashKey["Run"]()
NOTES = pytest.StashKey[list[str]]()

# Examples of a check that uses Hypothesis when no --search is given.
FIXED_EXAMPLES = 4


@dataclass
class Run:
    """What lasts for the whole run."""

    options: Options
    clauses: dict[str, Clause]
    launcher: Launcher | None
    implementations: dict[str, Implementation]
    accounts: dict[str, Account]
    started: float
    complete: bool = True

    @property
    def results(self) -> list[ImplementationResult]:
        """What was found out about each implementation."""
        return [account.result for account in self.accounts.values()]

    def choices(self, config: pytest.Config) -> list[selection.Choice]:
        """What can be chosen from for each implementation."""
        chosen = []
        for text, implementation in self.implementations.items():
            wanted = config.hook.pytest_commhooks_clauses(implementation=text)
            clauses = set(self.clauses) if wanted is None else set(self.clauses) & set(wanted)
            chosen.append(selection.Choice(text, implementation.description, self.options.world_sizes, clauses))
        return chosen


class Hooks:
    """What other plugins may have a say in."""

    @pytest.hookspec(firstresult=True)
    def pytest_commhooks_clauses(self, implementation: str) -> Collection[str] | None:
        """Limits the clauses that are checked on an implementation; None leaves all of them."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declares the suite's own hooks."""
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the suite's options."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Registers the marks, and chooses fixed or random examples."""
    for mark, text in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {text}")
    if config.option.tbstyle == "auto":
        # The text of a failure is the suite's own; a long traceback would take longer to make than most checks.
        config.option.tbstyle = "native"
    searching = config.getoption("--search") > 0
    if searching and getattr(config.option, "hypothesis_seed", None) is None:
        # Hypothesis reads this option when its own plugin is configured; so a search can be told how to replay it.
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))
    settings.register_profile(
        "commhooks",
        max_examples=config.getoption("--search") if searching else FIXED_EXAMPLES,
        derandomize=not searching,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # A smaller example would cost a world each time one hangs; the script has the inputs as they are.
        phases=[Phase.explicit, Phase.generate],
        report_multiple_bugs=False,
    )
    settings.load_profile("commhooks")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Under torchrun lends all processes but the first to that one, which runs the checks."""
    torchrun = Torchrun.from_environment()
    if torchrun is None or torchrun.rank == 0 or config.option.help:
        return None
    return torchrun.serve(config.getoption("--impl-python") or sys.executable)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Imports the implementations. What cannot be checked is a usage error, before any rank starts."""
    options = read_options(session.config)
    run = Run(options, _clauses(options), None, {}, {}, time.time())
    session.config.stash[RUN] = run
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
        _close(run)
        raise pytest.UsageError(str(error)) from None
    except BaseException:
        _close(run)
        raise
    reproduction.remove_scripts(options.report)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Ends the ranks, looks for stale records and writes the report."""
    run = session.config.stash.get(RUN, None)
    if run is None or not run.accounts:
        return
    _close(run)
    if session.config.option.collectonly:
        return
    for account in run.accounts.values():
        account.close(complete=run.complete and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED))
    if any(result.stale for result in run.results) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    write_report(run.options, run.clauses, run.results, run.started)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Says what is checked."""
    run = config.stash.get(RUN, None)
    return [] if run is None else [terminal.headline(result, run.options.world_sizes) for result in run.results]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a check for each implementation, world size, dtype, half type and hook that it takes."""
    run = metafunc.config.stash[RUN]
    names = [name for name in selection.ARGUMENTS if name in metafunc.fixturenames]
    if "implementation" not in names:
        return
    rows = [
        row for choice in run.choices(metafunc.config) for row in selection.rows(metafunc.definition, names, choice)
    ]
    ids = ["-".join(map(_id, row)) for row in rows]
    metafunc.parametrize(names, rows, ids=ids, indirect=["implementation"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what no implementation is concerned with, and refuses a check that names no clause."""
    run = config.stash[RUN]
    # A check that says nothing about any of the chosen world sizes has no parameters; pytest would skip it.
    items[:] = [item for item in items if _parameters(item).get("implementation") in run.implementations]
    for item in items:
        ids = clauses_of(item)
        unknown = [clause for clause in ids if clause not in all_clauses()]
        if unknown or not ids:
            raise pytest.UsageError(f"{item.nodeid} names {unknown or 'no clause'}; every check names its clauses")


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Notes that the run is not a complete one."""
    if items:
        items[0].config.stash[RUN].complete = False


@pytest.fixture
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """The implementation under test."""
    return request.config.stash[RUN].implementations[request.param]


@pytest.fixture
def world(request: pytest.FixtureRequest, implementation: Implementation, world_size: int) -> World:
    """The standing world of the size in turn."""
    obstacle = implementation.obstacle(world_size)
    if obstacle is not None:
        raise NotRun(obstacle)
    if "DistributedDataParallel" in selection.mark(request.node, "needs"):
        implementation.prepare()
    standing = implementation.world(world_size)
    standing.programs.clear()
    return standing


@pytest.fixture
def lab(request: pytest.FixtureRequest, implementation: Implementation, world_size: int) -> World:
    """A standing world of the size in turn whose process group is the laboratory."""
    obstacle = implementation.obstacle(world_size) or implementation.laboratory_obstacle()
    if obstacle is not None:
        raise NotRun(obstacle)
    if "DistributedDataParallel" in selection.mark(request.node, "needs"):
        implementation.prepare()
    standing = implementation.world(world_size, "lab")
    standing.programs.clear()
    return standing


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Notes which of several allowed behaviours an implementation shows."""
    notes: list[str] = request.node.stash.setdefault(NOTES, [])
    return notes.append


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Finds out whether the implementation offers what the check needs."""
    run = item.config.stash[RUN]
    parameters = _parameters(item)
    description = run.implementations[parameters["implementation"]].description
    missing = selection.lacking(item, parameters, description)
    if missing:
        raise Unsupported(f"does not offer {', '.join(missing)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Enters the check's cells in the account, and gives pytest the verdict."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if call.when == "teardown" or (call.when == "setup" and call.excinfo is None):
        return report  # type: ignore[return-value]
    run = item.config.stash[RUN]
    state, text = _enter(item, call, run)
    report.user_properties.append(("state", state))
    report.user_properties += [("clause", clause) for clause in clauses_of(item)]
    report.longrepr = text
    report.outcome = {"pass": "passed", "deviation": "passed", "fail": "failed"}.get(state, "skipped")  # type: ignore[assignment]
    if report.outcome == "skipped":
        report.longrepr = (str(item.path), item.location[1] or 0, text)
    return report  # type: ignore[return-value]


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """Gives each state of a cell its own letter and word."""
    if not isinstance(report, pytest.TestReport) or report.when == "teardown":
        return None
    state = dict(report.user_properties).get("state")
    words = {
        "deviation": ("deviation", "d", "DEVIATION"),
        "unsupported": ("unsupported", "u", "UNSUPPORTED"),
        "not run": ("not run", "n", "NOT RUN"),
    }
    return words.get(str(state))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the verdict by implementation, and how to repeat a search."""
    run = config.stash.get(RUN, None)
    if run is None or config.option.collectonly:
        return
    for result in run.results:
        for line in terminal.summary(result, run.clauses, run.options, time.time() - run.started):
            terminalreporter.write_line(line)
    if run.options.search:
        seed = config.option.hypothesis_seed
        terminalreporter.write_line(f"search: replay with --search={run.options.search} --hypothesis-seed={seed}")


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


def _close(run: Run) -> None:
    for implementation in run.implementations.values():
        implementation.close()
    if run.launcher is not None:
        run.launcher.close()
        run.launcher = None


def _enter(item: pytest.Item, call: pytest.CallInfo[None], run: Run) -> tuple[State, str]:
    parameters = _parameters(item)
    account = run.accounts[parameters["implementation"]]
    clauses = clauses_of(item)
    check = f"{item.path.stem}.{item.originalname}"  # type: ignore[attr-defined]
    result = account.result
    configuration = {
        **{name: str(value) for name, value in parameters.items() if name != "implementation"},
        "device": result.device,
        "backend": "lab" if "lab" in item.fixturenames else result.backend,  # type: ignore[attr-defined]
    }
    if call.excinfo is None:
        notes: list[str] = item.stash.get(NOTES, [])
        noted = "; ".join(notes)
        state = account.passed(clauses, check, configuration, call.duration, noted)
        return state, "" if state == "pass" else account.result.cells[-1].failure.message  # type: ignore[union-attr]
    error = call.excinfo.value
    if isinstance(error, Unsupported):
        return account.left_out(clauses, check, configuration, "unsupported", str(error)), str(error)
    if isinstance(error, NotRun | TooManyHangs):
        return account.left_out(clauses, check, configuration, "not run", str(error)), str(error)

    failure = _failure(call.excinfo)
    implementation = run.implementations[parameters["implementation"]]
    world = item.funcargs.get("world", item.funcargs.get("lab"))  # type: ignore[attr-defined]
    bound = [run.clauses[name] for name in clauses if name in run.clauses]
    if isinstance(world, World):
        failure = reproduction.write_script(
            failure, error, world.programs, implementation, bound, configuration, run.options.report
        )
    state = account.failed(clauses, check, configuration, failure, call.duration)
    shown = account.result.cells[-1].failure or failure
    return state, terminal.failure_text(shown, bound, configuration, run.options.report)


def _failure(caught: pytest.ExceptionInfo[BaseException]) -> Failure:
    error = caught.value
    if isinstance(error, ClauseFailure):
        return Failure(error.kind, error.message, error.expected, error.found, error.bound, error.excess)
    if isinstance(error, RankFailure):
        return Failure(
            error.kind, error.summary(), expected="every rank finishes", found=error.kind, details=error.details()
        )
    return Failure(
        kind=f"suite error: {type(error).__name__}",
        message=f"the check itself failed: {error}",
        details=str(caught.getrepr(style="short")),
    )


def clauses_of(item: pytest.Item) -> list[str]:
    """The ids of the clauses that a check verifies with its parameters."""
    return selection.clause_ids(item, _parameters(item))


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params  # type: ignore[attr-defined, no-any-return]


def _id(value: object) -> str:
    return f"W{value}" if isinstance(value, int) else str(value)
