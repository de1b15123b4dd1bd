"""How every figure looks: lines that can be told apart without colour, readable on light and on dark.

The SVG goes into the page itself. Its text and axes have the colour of the page's text, so they follow the reader's
choice of a light or a dark page; the colours of the lines stand out against both.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

COLOURS = ("#3d8bd4", "#e0802f", "#2f9e78", "#b06fd0", "#d9576b", "#8a8a8a")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "x")

# matplotlib knows no "colour of the text around"; this one is replaced by it.
_INK = "#010203"

mpl.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "commhooks",
        "font.family": "sans-serif",
        "font.size": 11.0,
        "axes.titlesize": 11.0,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "legend.frameon": False,
        "text.color": _INK,
        "axes.edgecolor": _INK,
        "axes.labelcolor": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "grid.color": _INK,
        "grid.alpha": 0.15,
        "axes.grid": True,
        "axes.axisbelow": True,
        "lines.linewidth": 1.8,
        "lines.markersize": 4.5,
    }
)
INK = _INK


def panels(columns: int, height: float, *, share_y: bool = False) -> tuple[Figure, Sequence[Axes]]:
    """An empty figure with axes side by side."""
    figure = Figure(figsize=(9.5, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots(1, columns, sharey=share_y, squeeze=False)
    return figure, list(axes[0])


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for the whole figure, under it."""
    figure.legend(*axes.get_legend_handles_labels(), ncols=columns, loc="outside lower center")


def as_svg(figure: Figure, name: str) -> str:
    """The figure as an ``<svg>`` element that fits into any page: as wide as there is room, its ids its own."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = written.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg (.*?)width="[\d.]+pt"', r"<svg \1", text, count=1, flags=re.DOTALL)
    text = re.sub(r'<svg (.*?)height="[\d.]+pt"', r"<svg \1", text, count=1, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace(_INK, "currentColor")
