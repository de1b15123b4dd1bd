"""Draws how PowerSGD's error falls by step, with and without warm start and error feedback.

``python docs/powersgd_convergence.py [IMPLEMENTATION]`` writes docs/powersgd_convergence.svg. The numbers come from the
program that the conformance checks run, on two ranks with a constant mean gradient.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib import pyplot as plt

from commhooks.conformance import inputs
from commhooks.conformance.programs import powersgd
from commhooks.conformance.world import Implementation, Launcher, RankSettings, World

WORLD_SIZE = 2
SHAPE = (48, 32)
APPROXIMATION_RANK = 2
STEPS = 30
Matrix = npt.NDArray[np.float64]
MODES = {
    "warm start and error feedback": {"warm_start": True, "use_error_feedback": True},
    "warm start": {"warm_start": True, "use_error_feedback": False},
    "error feedback": {"warm_start": False, "use_error_feedback": True},
    "neither": {"warm_start": False, "use_error_feedback": False},
}


def mean_gradient() -> Matrix:
    """A matrix whose singular values fall slowly: each is 0.8 times the one before."""
    generator = np.random.default_rng(0)
    left, right = (np.linalg.qr(generator.standard_normal((size, SHAPE[1])))[0] for size in SHAPE)
    matrix: Matrix = (left * 0.8 ** np.arange(SHAPE[1])) @ right.T
    return matrix


def outputs(world: World, mode: dict[str, bool], mean: Matrix) -> list[Matrix]:
    """The result of each compressed step; the ranks' gradients differ, and their mean is ``mean``."""
    apart = inputs.spread(WORLD_SIZE, mean.size, "float32", reach=1).astype(np.float64)
    gradients = inputs.carried(mean.reshape(1, -1) + apart - apart.mean(axis=0), "float32")
    options: dict[str, Any] = {**mode, "matrix_approximation_rank": APPROXIMATION_RANK, "start_powerSGD_iter": 2}
    each = [{"steps": [[{"values": own, "shapes": [list(SHAPE)]}]] * (STEPS + 2)} for own in gradients]
    results = world.run(powersgd.run_steps, each=each, hook="powerSGD_hook", options=options, dtype="float32")
    return [step[0]["values"].reshape(SHAPE).astype(np.float64) for step in results[0]["steps"][2:]]


def draw(found: dict[str, list[Matrix]], mean: Matrix, path: Path) -> None:
    """Draws the error of each step, and that of the mean of all steps so far, over that of the best approximation."""
    best = float(np.linalg.norm(np.linalg.svd(mean, compute_uv=False)[APPROXIMATION_RANK:]))
    mpl.rcParams["svg.hashsalt"] = "commhooks"
    figure, (one, all_so_far) = plt.subplots(1, 2, figsize=(10, 4), sharex=True, layout="constrained")
    steps = np.arange(1, STEPS + 1)
    for (name, results), style in zip(found.items(), ("-", "--", "-.", ":"), strict=True):
        one.plot(steps, [np.linalg.norm(mean - out) / best for out in results], style, label=name)
        means = np.cumsum(results, axis=0) / steps[:, None, None]
        all_so_far.plot(steps, [np.linalg.norm(mean - out) / best for out in means], style, label=name)
    one.set_title("error of each step")
    all_so_far.set_title("error of the mean of all steps so far")
    one.set_ylabel(f"error / error of the best rank-{APPROXIMATION_RANK} approximation")
    for axes in (one, all_so_far):
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_xlabel("compressed step")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
    figure.legend(*one.get_legend_handles_labels(), ncols=len(found), loc="outside lower center", frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main(text: str) -> None:
    """Runs the four modes on an implementation and draws them."""
    launcher = Launcher()
    try:
        implementation = Implementation(text, RankSettings(), launcher)
        implementation.obstacle(WORLD_SIZE)
        world = implementation.world(WORLD_SIZE)
        mean = mean_gradient()
        found = {name: outputs(world, mode, mean) for name, mode in MODES.items()}
        draw(found, mean, Path(__file__).with_suffix(".svg"))
        implementation.close()
    finally:
        launcher.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "reference")
