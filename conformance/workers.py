"""Running the checks in several processes at once: pytest-xdist's ``-n 2``.

Each worker has ranks of its own and judges the checks it runs. The cells travel to the controlling process with
pytest's reports, and only that one writes the report and the summary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import pytest

from commhooks.conformance.cells import Cell, Failure, Traffic
from commhooks.conformance.run import Run
from commhooks.conformance.selection import parameters_of
from commhooks.conformance.world.torchrun import Torchrun

# The place of a check in the order of collection, which is the same in every worker.
POSITION = pytest.StashKey[int]()


def are_used(config: pytest.Config) -> bool:
    """Whether this process has others run the checks."""
    return not is_one(config) and bool(getattr(config.option, "numprocesses", None))


def is_one(config: pytest.Config) -> bool:
    """Whether this process is such a worker."""
    return hasattr(config, "workerinput")


def distribute_files(config: pytest.Config) -> None:
    """Has a worker run all checks of a file, unless the user chose another distribution.

    Some checks look at the same run of a program, and one that hangs is not tried for ever: both are counted in one
    process.

    Raises:
        pytest.UsageError: torchrun has started the ranks: they can serve one process only.
    """
    if not getattr(config.option, "numprocesses", None):
        return
    if Torchrun.from_environment() is not None:
        raise pytest.UsageError("-n cannot be used under torchrun: its ranks run one program at a time")
    if config.option.dist == "no":
        config.option.dist = "loadfile"


@contextlib.contextmanager
def cells_for(report: pytest.TestReport, item: pytest.Item, run: Run) -> Iterator[None]:
    """Puts the cells that are entered within into the report of a check, where a worker runs it."""
    text = parameters_of(item)["implementation"]
    cells = run.accounts[text].result.cells
    before = len(cells)
    yield
    if is_one(item.config):
        report.entered = {  # type: ignore[attr-defined]
            "implementation": text,
            "position": item.stash[POSITION],
            "cells": [asdict(cell) for cell in cells[before:]],
        }


def tell_controller(config: pytest.Config, run: Run) -> None:
    """Tells the controlling process at the end what it cannot see in the reports."""
    config.workeroutput["complete"] = run.complete  # type: ignore[attr-defined]


class Collector:
    """A plugin of the controlling process that enters the cells of all workers, in the order of the checks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._cells: dict[str, list[tuple[int, list[Cell]]]] = {text: [] for text in run.accounts}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes the cells out of a report."""
        entered = getattr(report, "entered", None)
        if entered is not None:
            cells = [_cell(fields) for fields in entered["cells"]]
            self._cells[entered["implementation"]].append((entered["position"], cells))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Notes whether a worker ran all its checks; one that ended early said nothing."""
        if not getattr(node, "workeroutput", {}).get("complete", False):
            self._run.complete = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Enters the cells into the accounts."""
        for text, entered in self._cells.items():
            for _, cells in sorted(entered, key=lambda entry: entry[0]):
                self._run.accounts[text].result.cells.extend(cells)


def _cell(fields: Mapping[str, Any]) -> Cell:
    failure, traffic = fields["failure"], fields["traffic"]
    nested = {
        "failure": None if failure is None else Failure(**failure),
        "traffic": None if traffic is None else Traffic(**traffic),
    }
    return Cell(**{**fields, **nested})
