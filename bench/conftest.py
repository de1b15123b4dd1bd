"""Options of the benchmarks, and the table of ratios at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from commhooks.adapters import UnusableImplementation
from commhooks.conformance.world import Implementation, Launcher, RankSettings, World

ROWS = pytest.StashKey[list[tuple[str, ...]]]()
STEPS = pytest.StashKey[list[tuple[str, ...]]]()
COLLECTIVES = pytest.StashKey[list[tuple[str, ...]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options; they are there only when the benchmarks are run."""
    group = parser.getgroup("commhooks benchmarks")
    group.addoption("--impl", action="append", default=[], metavar="IMPL", help="implementation; the first is compared")
    group.addoption("--world-size", type=int, default=2, help="number of ranks (default: 2)")
    group.addoption("--rounds", type=int, default=15, help="calls of each implementation (default: 15)")


@pytest.fixture(scope="session")
def implementations(request: pytest.FixtureRequest) -> list[str]:
    """The texts of --impl."""
    return request.config.getoption("--impl") or ["reference", "torch"]


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest, implementations: list[str]) -> Iterator[Implementation]:
    """The first implementation, whose ranks all share."""
    launcher = Launcher()
    try:
        implementation = Implementation(implementations[0], RankSettings(timeout=300.0), launcher)
        obstacle = implementation.obstacle(request.config.getoption("--world-size"))
        if obstacle is not None:
            pytest.skip(obstacle)
        yield implementation
        implementation.close()
    except UnusableImplementation as error:
        raise pytest.UsageError(str(error)) from None
    finally:
        launcher.close()


@pytest.fixture(scope="session")
def world(request: pytest.FixtureRequest, ranks: Implementation) -> World:
    """One world, in which all implementations take turns."""
    return ranks.world(request.config.getoption("--world-size"))


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, ranks: Implementation) -> World:
    """One world of the laboratory."""
    obstacle = ranks.laboratory_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    return ranks.world(request.config.getoption("--world-size"), "lab")


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> list[tuple[str, ...]]:
    """Lines of the table at the end."""
    return request.config.stash.setdefault(ROWS, [])


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> list[tuple[str, ...]]:
    """Lines of the table of training steps at the end."""
    return request.config.stash.setdefault(STEPS, [])


@pytest.fixture
def collectives(request: pytest.FixtureRequest) -> list[tuple[str, ...]]:
    """Lines of the table of collectives at the end."""
    return request.config.stash.setdefault(COLLECTIVES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the tables of medians and ratios."""
    names = config.getoption("--impl") or ["reference", "torch"]
    ratios = [f"{names[0]}/{name}" for name in names[1:]]
    head = ["hook", "bucket", *(f"{name} ms" for name in names), *ratios, "memory"]
    _write_table(terminalreporter, "median time of a call, and ratio", head, config.stash.get(ROWS, []))
    head = ["model", *(f"{name} ms" for name in names), *(f"{name} alone ms" for name in names), *ratios]
    head += [f"{name} hidden" for name in names]
    title = (
        "median time of a training step, the same without communication, ratio, and communication hidden by backward"
    )
    _write_table(terminalreporter, title, head, config.stash.get(STEPS, []))
    head = ["collective", "tensor", "gloo ms", "laboratory ms", "laboratory/gloo"]
    _write_table(terminalreporter, "median time of a collective", head, config.stash.get(COLLECTIVES, []))


def _write_table(
    terminalreporter: pytest.TerminalReporter, title: str, head: Sequence[str], rows: list[tuple[str, ...]]
) -> None:
    """Prints a table, if it has a line."""
    if not rows:
        return
    table: list[Sequence[str]] = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    terminalreporter.section(title)
    for row in table:
        terminalreporter.write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
