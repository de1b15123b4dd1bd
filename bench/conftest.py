"""Options of the benchmarks, and the table of ratios at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commhooks.adapters import UnusableImplementation
from commhooks.conformance.world import Implementation, Launcher, RankSettings, World

ROWS = pytest.StashKey[list[tuple[str, ...]]]()


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
def world(request: pytest.FixtureRequest, implementations: list[str]) -> Iterator[World]:
    """One world, in which all implementations take turns."""
    launcher = Launcher()
    try:
        implementation = Implementation(implementations[0], RankSettings(timeout=300.0), launcher)
        size = request.config.getoption("--world-size")
        obstacle = implementation.obstacle(size)
        if obstacle is not None:
            pytest.skip(obstacle)
        yield implementation.world(size)
        implementation.close()
    except UnusableImplementation as error:
        raise pytest.UsageError(str(error)) from None
    finally:
        launcher.close()


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> list[tuple[str, ...]]:
    """Lines of the table at the end."""
    return request.config.stash.setdefault(ROWS, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the table of medians and ratios."""
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    names = config.getoption("--impl") or ["reference", "torch"]
    head = (
        "hook",
        "bucket",
        *(f"{name} ms" for name in names),
        *(f"{names[0]}/{name}" for name in names[1:]),
        "memory",
    )
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    terminalreporter.section("median time of a call, and ratio")
    for row in table:
        terminalreporter.write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
