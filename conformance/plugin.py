"""The pytest plugin: runs each check for each implementation and configuration, and accounts for every cell.

It is loaded by ``conftest.py`` in a checkout and by ``commhooks check`` when installed. It is no pytest11 entry point:
its options would show up in everybody else's pytest runs.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from commhooks.conformance import selection, verdict, workers
from commhooks.conformance.cells import NotRun, Traffic, Unsupported
from commhooks.conformance.clauses import all_clauses
from commhooks.conformance.marks import MARKS
from commhooks.conformance.options import add_options, read_options
from commhooks.conformance.report import progress, reproduction, terminal
from commhooks.conformance.report.folder import publish
from commhooks.conformance.report.making import make_report
from commhooks.conformance.run import Run
from commhooks.conformance.world import Implementation, World
from commhooks.conformance.world.torchrun import Torchrun

RUN = pytest.StashKey[Run]()

# Examples of a check that uses Hypothesis when no --search is given.
FIXED_EXAMPLES = 4


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
    if config.option.reportchars == "fE":
        # pytest's default list of failures says what the suite's summary says, and would stand after the verdict.
        config.option.reportchars = ""
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
    workers.distribute_files(config)
    torchrun = Torchrun.from_environment()
    if torchrun is None or torchrun.rank == 0 or config.option.help:
        return None
    return torchrun.serve(config.getoption("--impl-python") or sys.executable)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Imports the implementations. What cannot be checked is a usage error, before any rank starts."""
    options = read_options(session.config)
    run = Run.start(options)
    session.config.stash[RUN] = run
    if workers.are_used(session.config):
        # The workers run the checks, each on ranks of its own.
        run.close()
        session.config.pluginmanager.register(workers.Collector(run), "commhooks-collector")
    if not workers.is_one(session.config):
        reproduction.remove_scripts(options.report)
        progress.register(session.config)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Ends the ranks, looks for stale records and writes the report."""
    run = session.config.stash.get(RUN, None)
    if run is None or not run.accounts:
        return
    run.close()
    if workers.is_one(session.config):
        workers.tell_controller(session.config, run)
        return
    if session.config.option.collectonly:
        return
    for account in run.accounts.values():
        ran = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        account.close(ran and run.complete and run.options.usual_world_sizes, run.clauses)
    if any(result.stale for result in run.results) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    run.report = make_report(run.options, run.clauses, run.results, run.started)
    run.unwritten = publish(run.report, run.options.report)


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
        row
        for choice in run.choices(metafunc.config.hook)
        for row in selection.rows(metafunc.definition, names, choice)
    ]
    ids = ["-".join(map(_id, row)) for row in rows]
    metafunc.parametrize(names, rows, ids=ids, indirect=["implementation"])


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Notes which files the checks are taken from."""
    run = collector.config.stash.get(RUN, None)
    if run is not None and isinstance(collector, pytest.Module):
        run.files.add(collector.path.name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what no implementation is concerned with, and refuses a check that names no clause."""
    run = config.stash[RUN]
    everything = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    if not everything <= run.files or any("::" in argument for argument in config.args):
        run.complete = False
    # A check that says nothing about any of the chosen world sizes has no parameters; pytest would skip it.
    items[:] = [item for item in items if selection.parameters_of(item).get("implementation") in run.implementations]
    # One implementation after the other: the ranks of a few can stand at a time.
    order = list(run.implementations)
    items.sort(key=lambda item: order.index(selection.parameters_of(item)["implementation"]))
    for position, item in enumerate(items):
        item.stash[workers.POSITION] = position
        ids = selection.clauses_of(item)
        unknown = [clause for clause in ids if clause not in all_clauses()]
        if unknown or not ids:
            raise pytest.UsageError(f"{item.nodeid} names {unknown or 'no clause'}; every check names its clauses")


def pytest_collection_finish() -> None:
    """Spares the garbage collector the thousands of checks: they last as long as the run."""
    gc.collect()
    gc.freeze()


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
    return _standing(request, implementation, world_size)


@pytest.fixture
def lab(request: pytest.FixtureRequest, implementation: Implementation, world_size: int) -> World:
    """A standing world of the size in turn whose process group is the laboratory."""
    return _standing(request, implementation, world_size, "lab")


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str | Traffic], None]:
    """Notes which of several allowed behaviours an implementation shows, or what it sends in a step."""
    notes: list[str | Traffic] = request.node.stash.setdefault(verdict.NOTES, [])
    return notes.append


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Finds out whether the implementation offers what the check needs."""
    run = item.config.stash[RUN]
    parameters = selection.parameters_of(item)
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
    with workers.cells_for(report, item, run):
        state, text = verdict.enter(item, call, run)
    properties = [("state", state), *(("clause", clause) for clause in selection.clauses_of(item))]
    # The reports of what follows take theirs from the item; the JUnit file has those of the last one.
    item.user_properties += properties
    report.user_properties += properties
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
    if run is None or run.report is None:
        return
    for line in terminal.summary(run.report, run.options.report, run.unwritten):
        terminalreporter.write_line(line)
    if run.options.search:
        seed = config.option.hypothesis_seed
        terminalreporter.write_line(f"search: replay with --search={run.options.search} --hypothesis-seed={seed}")


def _id(value: object) -> str:
    return f"W{value}" if isinstance(value, int) else str(value)


def _standing(
    request: pytest.FixtureRequest, implementation: Implementation, size: int, backend: str | None = None
) -> World:
    obstacle = implementation.obstacle(size)
    if obstacle is None and backend == "lab":
        obstacle = implementation.laboratory_obstacle()
    if obstacle is not None:
        raise NotRun(obstacle)
    needs = selection.mark(request.node, "needs")
    if "DistributedDataParallel" in needs:
        implementation.prepare(compiler="DistributedDataParallel.compile" in needs)
    standing = implementation.world(size, backend)
    standing.programs.clear()
    return standing
