"""The cells of a clause in little tables: world sizes across, the rest of the configuration down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commhooks.conformance.cells import Cell, State

# These say what they are without their name.
PLAIN = ("dtype", "hook", "case")
COLUMN = "world_size"


@dataclass(frozen=True)
class Grid:
    """The cells of one check on one device and backend.

    Attributes:
        check: Name of the check.
        place: Device and backend.
        sizes: World sizes, the columns.
        rows: For each configuration what it is, and the states by world size; None where nothing was to be checked.
        seen: What checks that passed saw, of several allowed behaviours.
    """

    check: str
    place: str
    sizes: tuple[str, ...]
    rows: list[tuple[str, list[State | None]]]
    seen: list[str]


def grids(cells: Sequence[Cell]) -> list[Grid]:
    """The tables of the cells of one clause."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.check, place(cell.configuration)), []).append(cell)
    return [_grid(check, where, group) for (check, where), group in groups.items()]


def place(configuration: Mapping[str, str]) -> str:
    """Device and backend of a configuration: "cpu/gloo"."""
    return "/".join(configuration[name] for name in ("device", "backend") if name in configuration)


def described(configuration: Mapping[str, str]) -> str:
    """A configuration but for device, backend and world size, in a few words."""
    return ", ".join(
        value if name in PLAIN else f"{name.replace('_', ' ')} {value}"
        for name, value in configuration.items()
        if name not in ("device", "backend", COLUMN)
    )


def extent(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """Where cells lie: each part of their configurations, and the values it has in some of them."""
    values: dict[str, set[str]] = {}
    for cell in cells:
        for name, value in cell.configuration.items():
            if name not in ("device", "backend"):
                values.setdefault(name.replace("_", " "), set()).add(value)
    places = sorted({place(cell.configuration) for cell in cells})
    return [*((name, ", ".join(in_order(found))) for name, found in values.items()), ("on", ", ".join(places))]


def in_order(values: set[str]) -> list[str]:
    """Numbers by size, and what is no number after them."""
    return sorted(values, key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0, text))


def _grid(check: str, where: str, cells: Sequence[Cell]) -> Grid:
    sizes = in_order({cell.configuration.get(COLUMN, "") for cell in cells})
    rows: dict[str, list[State | None]] = {}
    for cell in cells:
        row = rows.setdefault(described(cell.configuration), [None] * len(sizes))
        row[sizes.index(cell.configuration.get(COLUMN, ""))] = cell.state
    seen = dict.fromkeys(cell.reason for cell in cells if cell.state == "pass" and cell.reason)
    return Grid(check, where, tuple(sizes), list(rows.items()), list(seen))
