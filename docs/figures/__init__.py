"""The figures of the documentation, drawn from the project's own code whenever the documentation is built.

Each module here is one figure: ``compute()`` gives its numbers, which ``tests/test_figures.py`` holds against what the
pages say, and ``draw(numbers)`` the drawing. ``python -m figures FOLDER``, started in ``docs/``, writes all of them.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from .style import as_svg

NAMES = ("error_against_bound", "half_range", "powersgd_convergence", "bytes_on_the_wire")


def svg(name: str) -> str:
    """Computes and draws one figure.

    Raises:
        ValueError: There is no such figure.
    """
    if name not in NAMES:
        raise ValueError(f"there is no figure {name!r}; there are {', '.join(NAMES)}")
    module = importlib.import_module(f"{__name__}.{name}")
    return as_svg(module.draw(module.compute()), name)


def draw_all(folder: Path) -> None:
    """Writes every figure into a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / f"{name}.svg").write_text(svg(name), encoding="utf-8")
