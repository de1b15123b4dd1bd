"""The words for what the laboratory finds, and the comparison of its logs; free of torch, for the controller too."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

BLOCKS = "blocks on a collective inside a callback"
DEADLOCK = "deadlock"
UNWAITED = "never waited for"
WRITTEN = "written while in flight"


def first_difference(logs: Sequence[Sequence[str]], ranks: Sequence[int] | None = None) -> str | None:
    """Shows the collectives of several ranks side by side, up to the first that differs.

    Args:
        logs: For each rank, the texts of the collectives it issued in a group that has all these ranks.
        ranks: Their numbers, if they are not 0, 1, 2 and so on.

    Returns:
        Lines of text, or None if the ranks issued the same collectives in the same order.
    """
    rows = list(itertools.zip_longest(*logs, fillvalue="(nothing)"))
    different = [number for number, row in enumerate(rows) if len(set(row)) > 1]
    if not different:
        return None
    heads = tuple(f"rank {rank}" for rank in (ranks if ranks is not None else range(len(logs))))
    shown = [heads, *rows[: different[0] + 1]]
    widths = [max(len(text) for text in column) for column in zip(*shown, strict=True)]
    lines = []
    for number, row in enumerate(shown, start=-1):
        mark = ">" if number == different[0] else " "
        count = f"{number:4}" if number >= 0 else "    "
        lines.append(f"{mark}{count}  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))
    return "\n".join(line.rstrip() for line in lines)
