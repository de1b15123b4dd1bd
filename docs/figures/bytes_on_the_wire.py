"""What each hook gives to its collectives in one step, by the shape of the gradient: the laboratory's own record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from commhooks.conformance import inputs
from commhooks.conformance.low_rank import options
from commhooks.conformance.programs import hooks, lab, powersgd

from . import ranks
from .style import COLOURS, INK, panels

SHAPES = {
    "vector 4096": (4096,),
    "64 x 64": (64, 64),
    "256 x 16": (256, 16),
    "512 x 512": (512, 512),
    "64 x 64 x 3 x 3": (64, 64, 3, 3),
}
WRAPPED = "fp16_compress_wrapper(powerSGD_hook)"
# Name in the figure, hook, and the approximation rank of a hook with a PowerSGDState.
HOOKS: dict[str, tuple[str, int]] = {
    "allreduce_hook": ("allreduce_hook", 0),
    "fp16_compress_hook": ("fp16_compress_hook", 0),
    "bf16_compress_hook": ("bf16_compress_hook", 0),
    "powerSGD_hook, rank 4": ("powerSGD_hook", 4),
    "powerSGD_hook, rank 1": ("powerSGD_hook", 1),
    "fp16 wrapper, rank 1": (WRAPPED, 1),
    "batched_powerSGD_hook, rank 1": ("batched_powerSGD_hook", 1),
    "noop_hook": ("noop_hook", 0),
}
RATE = 1.0
"""min_compression_rate: a matrix is compressed as soon as that sends less."""


@dataclass(frozen=True)
class Sent:
    """What rank 0 sends of a float32 gradient.

    Attributes:
        collectives: By hook and shape what each collective carries, such as ``float32[64]``.
        shares: By hook and shape the bytes sent, in parts of those of the gradient.
    """

    collectives: dict[str, dict[str, list[str]]]
    shares: dict[str, dict[str, float]]


def compute() -> Sent:
    """Runs one step of each hook on each shape in the laboratory."""
    collectives: dict[str, dict[str, list[str]]] = {}
    shares: dict[str, dict[str, float]] = {}
    for name, (hook, rank) in HOOKS.items():
        records = {label: _record(hook, rank, shape) for label, shape in SHAPES.items()}
        collectives[name] = {
            label: [f"{entry['dtype']}[{entry['elements']}]" for entry in entries] for label, entries in records.items()
        }
        shares[name] = {
            label: sum(int(entry["bytes"]) for entry in entries) / (4 * math.prod(SHAPES[label]))
            for label, entries in records.items()
        }
    return Sent(collectives, shares)


def _record(hook: str, rank: int, shape: Sequence[int]) -> list[Mapping[str, Any]]:
    """The entries of one step in the log of rank 0 that carry anything."""
    gradients = inputs.spread(ranks.WORLD_SIZE, math.prod(shape), "float32", reach=1)
    arguments: list[dict[str, Any]]
    if rank:
        chosen = options("neither", rank, min_compression_rate=RATE)
        program, arguments = (
            powersgd.run_steps,
            [
                {
                    "hook": hook,
                    "options": chosen,
                    "dtype": "float32",
                    "steps": [[{"values": own, "shapes": [list(shape)]}]],
                }
                for own in gradients
            ],
        )
    else:
        program, arguments = (
            hooks.call_hook,
            [{"hook": hook, "dtype": "float32", "gradients": [own], "shapes": [list(shape)]} for own in gradients],
        )
    each = [{"arguments": own} for own in arguments]
    module, name = program.__module__, program.__name__
    answers = ranks.world("lab").run(lab.run_in_lab, each=each, module=module, name=name, options={})
    error = answers[0]["result"].get("error")
    if error:
        raise RuntimeError(f"{hook} on {tuple(shape)} raised {error}: {answers[0]['result']['text']}")
    return [entry for entry in answers[0]["entries"] if entry["bytes"]]


def draw(sent: Sent) -> Figure:
    """Draws a group of bars for each shape, in parts of plain allreduce, with the number at each."""
    figure, axes = panels(len(SHAPES), 3.6, share_y=True)
    places = np.arange(len(HOOKS))[::-1]
    for panel, label in zip(axes, SHAPES, strict=True):
        values = [sent.shares[name][label] for name in HOOKS]
        panel.barh(places, values, color=[_colour(name) for name in HOOKS], height=0.72)
        for place, value in zip(places, values, strict=True):
            inside = value > 0.6
            panel.text(
                value - 0.03 if inside else value + 0.03,
                place,
                f"{value:.2g}",
                ha="right" if inside else "left",
                va="center",
                color="white" if inside else INK,
                fontsize=9,
            )
        panel.set_title(label)
        panel.set_xlim(0, 1.05)
        panel.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        panel.grid(visible=False, axis="y")
        panel.set_yticks(places, list(HOOKS))
        panel.tick_params(axis="y", length=0)
    figure.supxlabel("bytes sent / bytes of the float32 gradient", fontsize=11)
    return figure


def _colour(name: str) -> str:
    hook, rank = HOOKS[name]
    if hook == WRAPPED:
        return COLOURS[3]
    if rank:
        return COLOURS[2]
    return COLOURS[0] if hook == "allreduce_hook" else COLOURS[1]
