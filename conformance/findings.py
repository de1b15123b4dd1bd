"""The words for what the laboratory finds, and the comparison of its logs; free of torch, for the controller too."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

BLOCKS = "blocks on a collective inside a callback"
DEADLOCK = "deadlock"
UNWAITED = "never waited for"
WRITTEN = "written while in flight"


# Of the collectives before the first difference so many are shown.
SHOWN = 8


def first_difference(
    logs: Sequence[Sequence[str]],
    ranks: Sequence[int] | None = None,
    places: Sequence[Sequence[str]] | None = None,
) -> str | None:
    """Shows the collectives of several ranks side by side, up to the first that differs.

    Ranks that issued the same share a column.

    Args:
        logs: For each rank, the texts of the collectives it issued in a group that has all these ranks.
        ranks: Their numbers, if they are not 0, 1, 2 and so on.
        places: For each rank, where each of them was issued.

    Returns:
        Lines of text, or None if the ranks issued the same collectives in the same order.
    """
    rows = list(itertools.zip_longest(*logs, fillvalue="(nothing)"))
    different = next((number for number, row in enumerate(rows) if len(set(row)) > 1), None)
    if different is None:
        return None
    columns: dict[str, list[int]] = {}
    for rank, text in enumerate(rows[different]):
        columns.setdefault(text, []).append(rank)
    names = list(ranks if ranks is not None else range(len(logs)))
    heads = tuple(_name([names[rank] for rank in alike]) for alike in columns.values())
    first = max(0, different - SHOWN)
    shown = [heads, *(tuple(row[alike[0]] for alike in columns.values()) for row in rows[first : different + 1])]
    widths = [max(len(text) for text in column) for column in zip(*shown, strict=True)]
    lines = []
    for number, row in enumerate(shown, start=first - 1):
        mark = ">" if number == different else " "
        count = f"{number:4}" if number >= first else "    "
        lines.append(f"{mark}{count}  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))
    if first:
        lines.insert(1, f"      … {first} more, alike on all ranks")
    for head, alike in zip(heads, columns.values(), strict=True):
        own = places[alike[0]] if places is not None else ()
        if different < len(own):
            lines.append(f"      {head} started number {different} at {own[different]}")
    return "\n".join(line.rstrip() for line in lines)


def _name(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {' '.join(map(str, ranks))}"
