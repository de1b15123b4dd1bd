"""How PowerSGD's error falls by step, with and without warm start and error feedback.

``python -m figures.powersgd_convergence IMPLEMENTATION FILE``, started in ``docs/``, draws another implementation's.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from commhooks.conformance import inputs
from commhooks.conformance.expected import Float64Array, low_rank
from commhooks.conformance.programs import powersgd
from commhooks.conformance.world import World

from . import ranks
from .style import COLOURS, INK, LINES, as_svg, legend_below, panels

SHAPE = (48, 32)
APPROXIMATION_RANK = 2
STEPS = 30
FALL = 0.8
"""Each singular value of the mean gradient is this part of the one before."""

WARM, BOTH, FEEDBACK, NEITHER = "warm start", "warm start and error feedback", "error feedback", "neither"
MODES = {
    BOTH: {"warm_start": True, "use_error_feedback": True},
    WARM: {"warm_start": True, "use_error_feedback": False},
    FEEDBACK: {"warm_start": False, "use_error_feedback": True},
    NEITHER: {"warm_start": False, "use_error_feedback": False},
}


@dataclass(frozen=True)
class Convergence:
    """Errors in parts of the error of the best approximation, by mode and compressed step.

    Attributes:
        single: Of the result of each step.
        so_far: Of the mean of all results so far.
        ceiling: What the error of each step with warm start alone is proved not to exceed.
    """

    single: dict[str, list[float]]
    so_far: dict[str, list[float]]
    ceiling: list[float]


def compute(world: World | None = None) -> Convergence:
    """Runs the four modes on two ranks, by default those of the reference."""
    mean = mean_gradient()
    best = low_rank.best_error(mean, APPROXIMATION_RANK)
    found = {name: outputs(world or ranks.world(), mode, mean) for name, mode in MODES.items()}
    counts = np.arange(1, STEPS + 1)[:, None, None]
    return Convergence(
        {name: [float(np.linalg.norm(mean - out) / best) for out in results] for name, results in found.items()},
        {
            name: [float(np.linalg.norm(mean - out) / best) for out in np.cumsum(results, axis=0) / counts]
            for name, results in found.items()
        },
        [ceiling / best for ceiling in ceilings(mean, found[WARM][0])],
    )


def mean_gradient() -> Float64Array:
    """A matrix whose singular values fall slowly."""
    generator = np.random.default_rng(0)
    left, right = (np.linalg.qr(generator.standard_normal((size, SHAPE[1])))[0] for size in SHAPE)
    return np.asarray((left * FALL ** np.arange(SHAPE[1])) @ right.T)


def outputs(world: World, mode: dict[str, bool], mean: Float64Array) -> list[Float64Array]:
    """The result of each compressed step; the ranks' gradients differ, and their mean is ``mean``."""
    apart = inputs.spread(ranks.WORLD_SIZE, mean.size, "float32", reach=1).astype(np.float64)
    gradients = inputs.carried(mean.reshape(1, -1) + apart - apart.mean(axis=0), "float32")
    options: dict[str, Any] = {**mode, "matrix_approximation_rank": APPROXIMATION_RANK, "start_powerSGD_iter": 2}
    each = [{"steps": [[{"values": own, "shapes": [list(SHAPE)]}]] * (STEPS + 2)} for own in gradients]
    results = world.run(powersgd.run_steps, each=each, hook="powerSGD_hook", options=options, dtype="float32")
    return [step[0]["values"].reshape(SHAPE).astype(np.float64) for step in results[0]["steps"][2:]]


def ceilings(mean: Float64Array, first: Float64Array) -> list[float]:
    """The theorem on warm start: sqrt(best^2 + (rho^t c)^2), with rho = (sigma_(r+1) / sigma_r)^2.

    Args:
        mean: B, the same in each step.
        first: The result of step t = 0, whose column space P the constant c follows from.
    """
    r = APPROXIMATION_RANK
    U, sigma, _ = np.linalg.svd(mean, full_matrices=False)
    P = np.linalg.svd(first)[0][:, :r]
    T = U[:, r:].T @ P @ np.linalg.inv(U[:, :r].T @ P)
    c = float(np.linalg.norm(T * sigma[:r]))
    rho = float((sigma[r] / sigma[r - 1]) ** 2)
    best = low_rank.best_error(mean, r)
    return [float(np.hypot(best, rho**step * c)) for step in range(STEPS)]


def draw(convergence: Convergence) -> Figure:
    """Draws the error of each step on the left, and that of the mean of all steps so far on the right."""
    figure, axes = panels(2, 4.2)
    steps = np.arange(1, STEPS + 1)
    titles = ("error of each step", "error of the mean of all steps so far")
    for panel, title, errors in zip(axes, titles, (convergence.single, convergence.so_far), strict=True):
        for number, (name, values) in enumerate(errors.items()):
            panel.plot(steps, values, color=COLOURS[number], linestyle=LINES[number], label=name)
        panel.axhline(1.0, color=INK, linewidth=1.0)
        panel.set_title(title)
        panel.set_xlabel("compressed step")
        panel.set_yscale("log")
        panel.minorticks_off()
    axes[0].plot(steps, convergence.ceiling, color=INK, linestyle=":", linewidth=1.2, label="proved for warm start")
    axes[0].set_yticks([1, 1.2, 1.5, 2, 3, 4])
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[1].set_yticks([0.1, 0.2, 0.5, 1, 1.5])
    axes[1].yaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel(f"error / error of the best rank-{APPROXIMATION_RANK} matrix")
    legend_below(figure, axes[0], 3)
    return figure


def main(text: str, path: Path) -> None:
    """Draws the figure for another implementation."""
    with ranks.of(text) as implementation:
        numbers = compute(implementation.world(ranks.WORLD_SIZE))
    path.write_text(as_svg(draw(numbers), "powersgd_convergence"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
