"""The relative error of the compress hooks over the whole range of float32: where gradients are lost or overflow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from commhooks.conformance.expected import Float64Array, FloatArray, compressed_mean_bound, deviation
from commhooks.conformance.programs import hooks

from . import ranks
from .style import COLOURS, INK, LINES, legend_below, panels

HOOKS = {"float16": "fp16_compress_hook", "bfloat16": "bf16_compress_hook"}
SMALLEST, LARGEST = -149, 127
IN_EACH_OCTAVE = 64


@dataclass(frozen=True)
class Errors:
    """Relative errors of gradients that are the same on both ranks, the largest in each octave.

    Attributes:
        exponents: An octave begins at 2 to this power.
        found: By half type; infinite where the result is, 1 where it is zero.
        bound: By half type, the bound for the largest relative error in the octave.
    """

    exponents: list[int]
    found: dict[str, Float64Array]
    bound: dict[str, Float64Array]


def compute() -> Errors:
    """Runs both hooks of the reference on two ranks."""
    exponents = list(range(SMALLEST, LARGEST + 1))
    # Not quite up to the next power of two: the last of float16 and of bfloat16 are a little below one.
    within = np.random.default_rng(0).uniform(1.0, 1.99, IN_EACH_OCTAVE)
    gradients = np.concatenate([within * 2.0**exponent for exponent in exponents]).astype(np.float32)
    x = np.tile(gradients, (ranks.WORLD_SIZE, 1))
    found, bound = {}, {}
    for half, hook in HOOKS.items():
        error = deviation(_result(hook, gradients), x)
        found[half] = _largest_by_octave(error / gradients)
        bound[half] = _largest_by_octave(compressed_mean_bound(x, "float32", half) / gradients)
    return Errors(exponents, found, bound)


def _result(hook: str, gradients: FloatArray) -> FloatArray:
    answers = ranks.world().run(hooks.call_hook, hook=hook, dtype="float32", gradients=[gradients])
    values: FloatArray = answers[0]["calls"][0]["values"]
    return values


def _largest_by_octave(values: Float64Array) -> Float64Array:
    return np.asarray(values.reshape(-1, IN_EACH_OCTAVE).max(axis=1))


def draw(errors: Errors) -> Figure:
    """Draws the errors of both types against the magnitude, and the bounds as thin lines."""
    figure, (axes,) = panels(1, 3.9)
    top = 30.0
    x = 2.0 ** np.array(errors.exponents, dtype=np.float64)
    for number, half in enumerate(HOOKS):
        found = errors.found[half]
        overflows = ~np.isfinite(found)
        axes.step(
            x,
            np.where(overflows, np.nan, found),
            where="post",
            color=COLOURS[number],
            linestyle=LINES[number],
            label=half,
        )
        bound = np.minimum(errors.bound[half], top)
        axes.step(x, bound, where="post", color=COLOURS[number], linewidth=0.9, label=f"bound for {half}")
        if overflows.any():
            begins = x[np.argmax(overflows)]
            axes.plot([begins, x[-1]], [top, top], color=COLOURS[number], linewidth=4, solid_capstyle="butt")
            axes.text(begins * 4, top / 2, f"{half}: infinite", color=INK, va="top")
    axes.axhline(1.0, color=INK, linewidth=0.8)
    axes.text(x[-1], 1.2, "1: all is lost", color=INK, ha="right")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(x[0], 2 * x[-1])
    axes.set_ylim(1e-4, 2 * top)
    axes.set_xticks([2.0**power for power in range(-140, 121, 20)])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("gradient, the same on both ranks")
    axes.set_ylabel("largest relative error")
    legend_below(figure, axes, 4)
    return figure
