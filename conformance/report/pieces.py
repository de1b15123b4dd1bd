"""Reproduction scripts in a report: what several have in common is kept once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# The parts of a script stand two empty lines apart.
BETWEEN = "\n\n\n"


def to_pieces(scripts: Sequence[Mapping[str, str]]) -> tuple[list[str], list[dict[str, list[int]]]]:
    """The different parts of all scripts, and of each script the numbers of its parts."""
    numbers: dict[str, int] = {}
    made = [
        {path: [numbers.setdefault(part, len(numbers)) for part in text.split(BETWEEN)] for path, text in one.items()}
        for one in scripts
    ]
    return list(numbers), made


def to_scripts(pieces: Sequence[str], numbers: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """The scripts that are made of such parts.

    Raises:
        IndexError: A number is not that of a part.
    """
    return {path: BETWEEN.join(pieces[number] for number in parts) for path, parts in numbers.items()}
