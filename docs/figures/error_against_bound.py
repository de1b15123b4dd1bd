"""The largest error of an average, in parts of the proved bound, by world size and order of summation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

from commhooks.conformance.expected import Float64Array, deviation, float_type, mean_bound, round_to
from commhooks.conformance.lab.sums import reduce

from .style import COLOURS, INK, LINES, MARKERS, legend_below, panels

DTYPES = ("float32", "float16", "bfloat16")
WORLD_SIZES = (2, 3, 4, 6, 8, 16, 32, 64, 128, 256)
TICKS = (2, 8, 32, 128)
ELEMENTS = 512

# Name in the figure, order and precision of the sum, and whether the gradients are those that stall it.
ORDERS = {
    "chain": ("rank", "own", False),
    "random tree": ("tree", "own", False),
    "pairwise": ("pairwise", "own", False),
    "ring": ("ring", "own", False),
    "float32 accumulator": ("rank", "float32", False),
    "chain, stalling gradients": ("rank", "own", True),
}


@dataclass(frozen=True)
class Ratios:
    """Error over bound, the largest of all elements, for each of ``WORLD_SIZES``, by dtype and order."""

    by_dtype: dict[str, dict[str, list[float]]]


def compute() -> Ratios:
    """Averages gradients in each order, and measures how far the results are from the mean."""
    torch.set_num_threads(1)
    return Ratios(
        {
            dtype: {
                name: [_largest_ratio(dtype, size, order, precision, stalls) for size in WORLD_SIZES]
                for name, (order, precision, stalls) in ORDERS.items()
                if not (dtype == "float32" and precision == "float32")
            }
            for dtype in DTYPES
        }
    )


def ordinary(dtype: str, world_size: int) -> Float64Array:
    """Numbers of one sign and of many magnitudes, different on every rank."""
    generator = np.random.default_rng(world_size)
    shape = (world_size, ELEMENTS)
    return round_to(generator.uniform(1.0, 2.0, shape) * 2.0 ** generator.integers(-3, 4, shape), dtype)


def stalling(dtype: str, world_size: int) -> Float64Array:
    """A 1 on the first rank and u on all others: 1 + u is a tie and goes back to 1, every time."""
    x = np.full((world_size, 1), float_type(dtype).unit_roundoff)
    x[0] = 1.0
    return x


def _largest_ratio(dtype: str, world_size: int, order: str, precision: str, stalls: bool) -> float:
    x = stalling(dtype, world_size) if stalls else ordinary(dtype, world_size)
    shares = list(torch.from_numpy(x).to(getattr(torch, dtype)) / world_size)
    result = reduce(shares, "sum", order, precision, seed=f"{dtype}/{world_size}")
    return float((deviation(result.double().numpy(), x) / mean_bound(x, dtype)).max())


def draw(ratios: Ratios) -> Figure:
    """Draws one panel for each dtype; the bound is the line at 1."""
    figure, axes = panels(len(DTYPES), 3.9, share_y=True)
    for panel, (dtype, by_order) in zip(axes, ratios.by_dtype.items(), strict=True):
        for number, name in enumerate(ORDERS):
            if name in by_order:
                panel.plot(
                    WORLD_SIZES,
                    by_order[name],
                    color=COLOURS[number],
                    linestyle=LINES[number],
                    marker=MARKERS[number],
                    label=name,
                )
        panel.axhline(1.0, color=INK, linewidth=1.2)
        panel.set_title(dtype)
        panel.set_xscale("log", base=2)
        panel.set_xticks(TICKS, map(str, TICKS))
        panel.minorticks_off()
        panel.set_xlabel("world size")
        panel.set_yscale("log")
        panel.set_ylim(1.5e-3, 1.5)
        panel.yaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel("largest error / bound")
    legend_below(figure, axes[-1], 3)
    return figure
