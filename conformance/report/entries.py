"""Cells as a report holds them: those that ended alike share an entry.

    {"check": "test_allreduce.test_mean", "clauses": ["ALLREDUCE-MEAN"], "state": "pass",
     "over": {"backend": ["gloo"], "device": ["cpu"], "dtype": ["float16", "float32"], "world_size": ["1", "2"]}}

stands for four runs of the check: one for each combination of the values. Each run is one cell for each clause. The
times of the runs are kept apart, since they differ from report to report while all else should not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias

from commhooks.conformance.cells import Cell, Failure, State, Traffic

Entry: TypeAlias = dict[str, Any]

# A report that names more runs than this is broken, or made to fill the memory of its reader.
MOST_RUNS = 1_000_000


class EntryError(ValueError):
    """Entries contradict themselves or each other; the message says in what."""


def to_entries(cells: Sequence[Cell]) -> tuple[list[Entry], list[list[float]]]:
    """The entries of cells, and the seconds that each of their runs took."""
    runs: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        configuration = tuple(cell.configuration.items())
        runs.setdefault((cell.check, configuration, *_outcome(cell), cell.seconds), []).append(cell)
    alike: dict[tuple[object, ...], list[list[Cell]]] = {}
    for run in runs.values():
        clauses = tuple(cell.clause for cell in run)
        alike.setdefault((run[0].check, clauses, tuple(run[0].configuration), *_outcome(run[0])), []).append(run)
    parts = [part for same in alike.values() for part in _products(same)]
    return [_entry(part) for part in parts], [[run[0].seconds for run in part] for part in parts]


def to_cells(entries: Sequence[Entry], seconds: Sequence[Sequence[float]] | None) -> list[Cell]:
    """The cells of entries, in the order of the entries.

    Raises:
        EntryError: The times do not go with the runs, or there are too many runs.
    """
    numbers = [math.prod(len(values) for values in entry["over"].values()) for entry in entries]
    if sum(numbers) > MOST_RUNS:
        raise EntryError(f"it has {sum(numbers):,} runs of checks; at most {MOST_RUNS:,} are read")
    if seconds is not None and [len(times) for times in seconds] != numbers:
        raise EntryError("the times do not go with the entries: there has to be one for each run")
    cells: list[Cell] = []
    for number, entry in enumerate(entries):
        cells += _cells(entry, itertools.repeat(0.0) if seconds is None else iter(seconds[number]))
    return cells


def _outcome(cell: Cell) -> tuple[object, ...]:
    return cell.state, cell.reason, cell.failure, cell.traffic


def _products(runs: Sequence[list[Cell]]) -> Iterator[list[list[Cell]]]:
    """Parts of runs with the same names in their configurations, each with all combinations of its values, in order.

    A run of a configuration that was run before is in a part of its own.
    """
    by_row: dict[tuple[str, ...], list[Cell]] = {}
    again = []
    for run in runs:
        row = tuple(run[0].configuration.values())
        if by_row.setdefault(row, run) is not run:
            again.append(run)
    if again:
        yield from _products(list(by_row.values()))
        yield from _products(again)
        return
    values = [list(dict.fromkeys(column)) for column in zip(*by_row, strict=True)]
    if len(by_row) == math.prod(map(len, values)):
        yield [by_row[row] for row in itertools.product(*values)]
        return
    place = next(place for place, column in enumerate(values) if len(column) > 1)
    for value in values[place]:
        yield from _products([run for row, run in by_row.items() if row[place] == value])


def _entry(runs: Sequence[list[Cell]]) -> Entry:
    first = runs[0][0]
    entry: Entry = {"check": first.check, "clauses": [cell.clause for cell in runs[0]], "state": first.state}
    if first.reason:
        entry["reason"] = first.reason
    if first.failure is not None:
        entry["failure"] = {name: value for name, value in asdict(first.failure).items() if value}
    if first.traffic is not None:
        entry["traffic"] = asdict(first.traffic)
    entry["over"] = {
        name: list(dict.fromkeys(run[0].configuration[name] for run in runs)) for name in first.configuration
    }
    return entry


def _cells(entry: Mapping[str, Any], seconds: Iterator[float]) -> Iterator[Cell]:
    state: State = entry["state"]
    failure = Failure(**entry["failure"]) if "failure" in entry else None
    traffic = Traffic(**entry["traffic"]) if "traffic" in entry else None
    cell = Cell("", entry["check"], {}, state, entry.get("reason", ""), failure, traffic=traffic)
    over: dict[str, list[str]] = entry["over"]
    for values in itertools.product(*over.values()):
        configuration, took = dict(zip(over, values, strict=True)), next(seconds)
        for clause in entry["clauses"]:
            yield replace(cell, clause=clause, configuration=configuration, seconds=took)
