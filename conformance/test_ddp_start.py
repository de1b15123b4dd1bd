"""How data-parallel training starts: what it broadcasts and refuses, its group, and modes that it may lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from commhooks.conformance import training
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_array
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.training import Action, a_pass, given, mean_over
from commhooks.conformance.world import RankFailure, World

HOOK = "allreduce_hook"
BOTH = (0, 1)


@clauses("DDP-GROUP")
@needs("DistributedDataParallel", HOOK, "subgroups")
@worlds(2, 3)
@pytest.mark.parametrize("case", ["no hook", HOOK])
def test_group(world: World, case: str) -> None:
    """A model on all ranks but the first gets their mean."""
    members = list(range(1, world.size))
    hook = "" if case == "no hook" else case
    steps = [0, 1, 2]
    for rank in training.run(world, lambda rank: [a_pass(given(rank, s)) for s in steps], group=members, hook=hook):
        for step in steps if rank.rank in members else []:
            rank.expect_gradients(step, mean_over(members, step), f"in step {step}")


@clauses("DDP-GROUP")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["no hook", HOOK])
def test_no_group(world: World, case: str) -> None:
    """A model that is given no process group, and a hook with the state None, get the mean over the world."""
    hook = "" if case == "no hook" else case
    for rank in training.run(
        world, lambda rank: [a_pass(given(rank, 0))], hook=hook, state_is_none=True, no_group=True
    ):
        rank.expect_gradients(0, mean_over(BOTH, 0), "without a process group")


@clauses("DDP-GROUP-NONE")
@needs("DistributedDataParallel", HOOK, "subgroups")
@worlds(2, 2)
def test_state_none_with_a_subgroup(world: World, note: Callable[[str], None]) -> None:
    """allreduce_hook with None on a subgroup's model takes the subgroup's mean, or there was a warning or an error."""
    try:
        ranks = training.run(world, lambda rank: [a_pass(given(rank, 0))], hook=HOOK, state_is_none=True, alone=True)
    except RankFailure as failure:
        if not failure.kind.startswith("raises"):
            raise
        note(f"refused: {failure.kind}")
        return
    for rank in ranks:
        if rank.record["warnings"]:
            note(f"warned: {rank.record['warnings'][0]}")
            continue
        rank.expect_gradients(0, given(rank.rank, 0), "on a subgroup of this rank alone, without a warning,")


# The buffers of the model, in their order.
NAMES = ("shift", "part.shift", "part.unsaved")
BUFFERS = len(NAMES)


@clauses("DDP-BROADCAST")
@needs("DistributedDataParallel")
@worlds(2, 3)
def test_broadcast(world: World) -> None:
    """After construction every rank has the parameters, frozen ones too, and the buffers of rank 0."""
    values = [given(rank, 0) for rank in range(world.size)]
    each = [{"start": values[rank], "buffers": np.full(3, rank + 1.0)} for rank in range(world.size)]
    for rank in training.run(world, lambda _: [], shapes=training.SHAPES, frozen=[1], each=each):
        found = rank.record["parameters"]
        for place, expected in enumerate(values[0]):
            where = f'{rank.place}["parameters"][{place}]'
            expect_array(rank.rank, f"parameter {place}", found[place], expected.ravel(), where)
        expect_buffers(rank, slice(0, BUFFERS), 1.0, "after construction")


@clauses("DDP-BROADCAST-BUFFERS")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize(
    "case", ["by default", "by default, whole numbers", "by default, in eval mode", "broadcast_buffers is false"]
)
def test_broadcast_buffers(world: World, case: str) -> None:
    """Each forward pass starts with the buffers of rank 0, unless broadcast_buffers is false."""
    case, _, numbers = case.partition(",")
    dtype = "int64" if "numbers" in numbers else "float64"
    mode: list[Action] = [{"do": "eval"}] if "eval" in numbers else []
    options = {} if case == "by default" else {"broadcast_buffers": False}

    def actions(rank: int) -> list[Action]:
        one = a_pass(given(rank, 0))
        steps = [action for value in (10, 20, 30) for action in ({"do": "set buffer", "value": value + rank}, one)]
        return [*mode, *steps]

    for rank in training.run(world, actions, buffers=np.zeros(3, dtype), options=options):
        expected = 30.0 if case == "by default" else 30.0 + rank.rank
        expect_buffers(rank, slice(-BUFFERS, None), expected, "that the pass used")


@clauses("DDP-BROADCAST", "DDP-BROADCAST-BUFFERS")
@needs("DistributedDataParallel", "subgroups")
@worlds(3, 3)
def test_broadcast_in_a_subgroup(world: World) -> None:
    """In a group without rank 0 all start with the parameters and buffers of the group's first rank, and keep to these.

    The gradients tell nothing of them.
    """
    members = [1, 2]
    values = [given(rank, 0) for rank in range(world.size)]
    each = [{"start": values[rank], "buffers": np.full(3, rank + 5.0)} for rank in range(world.size)]

    def actions(rank: int) -> list[Action]:
        return [{"do": "set buffer", "value": 10.0 + rank}, a_pass(given(rank, 1))]

    for rank in training.run(world, actions, shapes=training.SHAPES, group=members, each=each):
        if rank.rank not in members:
            continue
        for place, expected in enumerate(values[members[0]]):
            where = f'{rank.place}["parameters"][{place}]'
            name = f"parameter {place}, in a group of the ranks {members},"
            expect_array(rank.rank, name, rank.record["parameters"][place], expected.ravel(), where)
        expect_buffers(rank, slice(0, BUFFERS), members[0] + 5.0, "after construction")
        expect_buffers(rank, slice(-BUFFERS, None), 10.0 + members[0], "that the pass used")


def expect_buffers(rank: training.Rank, which: slice, expected: float, when: str) -> None:
    """Expects a value in all buffers of the model, as noted after construction or at the end."""
    for place in range(len(rank.record["buffer"]))[which]:
        where = f'{rank.place}["buffer"][{place}]'
        name = f"the buffer {NAMES[place % BUFFERS]} {when}"
        expect_array(rank.rank, name, rank.record["buffer"][place], np.full(3, expected), where)


@clauses("DDP-NO-PARAMETERS")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_no_parameters(world: World) -> None:
    """A model whose parameters are all frozen is a RuntimeError."""
    expect_refused(world, "RuntimeError", frozen=[0, 1, 2])


@clauses("DDP-SAME-MODEL")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["number", "shape", "dtype"])
def test_same_model(world: World, case: str) -> None:
    """Parameters that differ between the ranks are an error on every rank."""
    cases: dict[str, dict[str, Any]] = {
        "number": {"shapes": [[5, 3], [4]]},
        "shape": {"shapes": [[5, 3], [4], [3, 2]]},
        "dtype": {"shapes": [list(shape) for shape in training.SHAPES], "dtypes": ["float32", "float64", "float32"]},
    }
    other = cases[case]
    same = {"shapes": [list(shape) for shape in training.SHAPES], "dtypes": ["float32"] * 3}
    expect_refused(world, "RuntimeError", each=[same, {"dtypes": ["float32"] * len(other["shapes"]), **other}])


def expect_refused(world: World, error: str, **arguments: Any) -> None:
    """Expects the construction of the wrapper to be an error on every rank."""
    ranks = training.run(world, lambda _: [], catch_construction=True, limit=training.hang_limit(world), **arguments)
    world.close()
    for rank in ranks:
        found, text = rank.record["errors"][0]
        if found != error:
            raise ClauseFailure(
                "error",
                f"rank {rank.rank}: construction raised {found or 'nothing'} ({text}), expected {error}",
                expected=error,
                found=found or "no error",
                place=f'{rank.place}["errors"][0][0]',
                holds=f"found == {error!r}",
            )


@clauses("DDP-STATIC-GRAPH")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
def test_static_graph(world: World, note: Callable[[str], None]) -> None:
    """static_graph is refused, or gives the right gradients."""

    def actions(rank: int) -> list[Action]:
        return [a_pass(given(rank, step)) for step in range(4)]

    ranks = training.run(world, actions, hook=HOOK, options={"static_graph": True}, catch_construction=True)
    for rank in ranks:
        if rank.record["errors"]:
            note(f"refused: {rank.record['errors'][0][0]}")
            continue
        for step in range(4):
            rank.expect_gradients(step, mean_over(BOTH, step), f"in step {step} with static_graph")


@clauses("DDP-JOIN")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["every parameter used", "unused parameters", "views"])
def test_join(world: World, case: str, note: Callable[[str], None]) -> None:
    """Inside join() a rank that has run out of inputs contributes zeros, or join() is refused."""
    options = {"unused parameters": {"find_unused_parameters": True}, "views": {"gradient_as_bucket_view": True}}

    def local(rank: int, step: int) -> training.Gradients:
        made = given(rank, step)
        if case == "unused parameters":
            made[0], made[2] = (made[0] if rank == 1 else None), None
        return made

    def actions(rank: int) -> list[Action]:
        return [a_pass(local(rank, step)) for step in range(1 + 2 * rank)]

    for rank in training.run(world, actions, hook=HOOK, join=True, options=options.get(case, {})):
        if rank.record["errors"]:
            note(f"refused: {rank.record['errors'][0][0]}")
            continue
        for step in range(len(rank.record["notes"])):
            with_inputs = [0, 1] if step == 0 else [1]
            sums = zip(*(local(one, step) for one in with_inputs), strict=True)
            means = [sum(part for part in same if part is not None) / 2 for same in sums]
            expected = [mean if made is not None else None for mean, made in zip(means, local(1, step), strict=True)]
            when = "while both ranks have inputs" if step == 0 else "after rank 0 ran out of inputs"
            rank.expect_gradients(step, expected, f"in step {step}, {when},")
