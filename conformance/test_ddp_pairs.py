"""Modes of data-parallel training two at a time: what is right in each alone has to be right in both together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from commhooks.conformance import training
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.training import NOTE, ZERO, Action, Gradients, Rank, backward, forward, given
from commhooks.conformance.world import RankFailure, World

HOOK = "allreduce_hook"
STEPS = 3
SHAPES = ((2, 3, 2, 2), (4,), (5, 3), (3,))

# What each mode changes: arguments of ``training.run``. Those without any change the actions of a step.
MODES: dict[str, dict[str, Any]] = {
    "views": {"options": {"gradient_as_bucket_view": True}},
    "small buckets": {"options": {"bucket_cap_mb": 16 / 2**20}},
    "unused parameters": {"options": {"find_unused_parameters": True}},
    "frozen parameter": {"frozen": [1]},
    "dtypes": {"dtypes": ["float32", "float64", "bfloat16", "float32"]},
    "channels_last": {"channels_last": True},
    "buffer": {"buffers": np.zeros(3)},
    "two models": {"models": 2},
    "no_sync": {},
    "two forward passes": {},
    "second backward pass": {},
    "no_grad": {},
    "kept gradients": {},
}


def run(world: World, modes: Sequence[str], **more: Any) -> list[Rank]:
    """Three steps in these modes at once."""
    arguments: dict[str, Any] = {"shapes": SHAPES, "hook": HOOK, "contents": False, **more}
    for mode in modes:
        changes = MODES.get(mode, {})
        arguments.update({name: value for name, value in changes.items() if name != "options"})
        arguments["options"] = {**arguments.get("options", {}), **changes.get("options", {})}
    models = range(arguments.get("models", 1))

    def actions(rank: int) -> list[Action]:
        return [one for step in range(STEPS) for one in a_step(rank, step, modes, models)]

    return training.run(world, actions, **arguments)


def a_step(rank: int, step: int, modes: Sequence[str], models: Sequence[int]) -> list[Action]:
    """What a rank does in one step: with two models all forward passes first, then all backward passes."""
    forwards, backwards = [], []
    for model in models:
        own: dict[str, Any] = {"model": model}
        outputs = [f"{model} {name}" for name in ("a", "b")[: 2 if "two forward passes" in modes else 1]]
        if step == 0 or "kept gradients" not in modes:
            forwards.append({**ZERO, **own})
        if "no_sync" in modes:
            forwards += [forward(local(rank, step, 0, model, modes), inside=True, to="inside", **own)]
            forwards += [backward(of=["inside"], **own)]
        forwards += [
            forward(local(rank, step, number, model, modes), to=name, **own) for number, name in enumerate(outputs, 1)
        ]
        if "no_grad" in modes:
            forwards.append(forward(local(rank, step, 3, model, modes), no_grad=True, to="unused", **own))
        again = "second backward pass" in modes
        backwards += [backward(of=outputs, retain=again, **own), {**NOTE, **own}]
        backwards += [backward(of=outputs, **own), {**NOTE, **own}] if again else []
    return [*forwards, *backwards]


def local(rank: int, step: int, number: int, model: int, modes: Sequence[str]) -> Gradients:
    """The rank's gradients of one forward pass; of the unused parameters rank 1 uses one, and nobody the other."""
    made = given(rank, 4 * step + number + 2 * model, SHAPES)
    if "unused parameters" in modes:
        made[0] = made[0] if rank == 1 else None
        made[2] = None
    return made


def expect_means(ranks: Sequence[Rank], modes: Sequence[str], members: Sequence[int]) -> None:
    """Expects the mean over the members of all that each of them has accumulated since its gradients were zeroed."""
    models = range(2 if "two models" in modes else 1)
    noted: dict[int, list[tuple[str, Sequence[Any]]]] = {rank: [] for rank in members}
    # By model and rank, as they stand in .grad.
    gradients: dict[tuple[int, int], Sequence[Any]] = {}
    backward_passes = [1, 2] if "two forward passes" in modes else [1]
    passes = [0, *backward_passes] if "no_sync" in modes else backward_passes
    for step, model in itertools.product(range(STEPS), models):
        when = f"of model {model} in step {step} with {' and '.join(modes)}"
        sums = []
        for rank in members:
            kept = [gradients[model, rank]] if step > 0 and "kept gradients" in modes else []
            sums.append(summed([*kept, *(local(rank, step, number, model, modes) for number in passes)]))
        means = [None if mean is None else mean / len(members) for mean in summed(sums)]
        if "frozen parameter" in modes:
            means[1] = None
        for rank in members:
            gradients[model, rank] = means
            noted[rank].append((when, means))
            if "second backward pass" in modes:
                again = summed([local(rank, step, number, model, modes) for number in backward_passes])
                both = zip(means, again, strict=True)
                gradients[model, rank] = [None if mean is None else summed([[mean], [own]])[0] for mean, own in both]
                noted[rank].append((f"{when}, after the second backward pass", gradients[model, rank]))
    for one in ranks:
        for note, (when, expected) in enumerate(noted.get(one.rank, [])):
            one.expect_gradients(note, expected, when)


def summed(gradients: Sequence[Sequence[Any]]) -> list[Any]:
    """The sums of several gradients, parameter by parameter, where None is zeros; None where there is none at all."""
    there = [[one for one in same if one is not None] for same in zip(*gradients, strict=True)]
    return [np.sum(same, axis=0, dtype=np.float64) if same else None for same in there]


@clauses("DDP-MODES")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", [" and ".join(pair) for pair in itertools.combinations(MODES, 2)])
def test_pair(world: World, case: str) -> None:
    """In two modes at once the gradients are the mean of what each rank has accumulated, in three steps."""
    modes = case.split(" and ")
    expect_means(run(world, modes), modes, members=(0, 1))


@clauses("DDP-MODES")
@needs("DistributedDataParallel", HOOK, "subgroups")
@worlds(3, 3)
@pytest.mark.parametrize("case", MODES)
def test_in_a_subgroup(world: World, case: str) -> None:
    """The same on a model of two ranks of three."""
    expect_means(run(world, [case], group=[0, 1]), [case], members=(0, 1))


@clauses("DDP-STATIC-GRAPH")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", [mode for mode in MODES if mode != "unused parameters"])
def test_static_graph(world: World, case: str, note: Callable[[str], None]) -> None:
    """With static_graph each mode gives the same, or is refused."""
    try:
        ranks = run(world, [case], options={"static_graph": True})
    except (RankFailure, ClauseFailure) as failure:
        if not failure.kind.startswith("raises"):
            raise
        note(f"refused: {failure.kind}")
        return
    expect_means(ranks, [case], members=(0, 1))
