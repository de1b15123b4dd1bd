"""Passes of data-parallel training that are not one forward and one backward, unused parameters, and views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from commhooks.conformance import training
from commhooks.conformance.expectations import expect_array
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.training import NOTE, ZERO, Action, Gradients, a_pass, backward, forward, given, mean_over
from commhooks.conformance.world import World

HOOK = "allreduce_hook"
BOTH = (0, 1)
UNUSED = {"find_unused_parameters": True}
VIEW = {"gradient_as_bucket_view": True}
SMALL = {"bucket_cap_mb": 16 / 2**20}


def added(*parts: Sequence[Any]) -> list[Any]:
    """The sums of several lists of gradients."""
    return [sum(same[1:], start=np.asarray(same[0], np.float64)) for same in zip(*parts, strict=True)]


@clauses("DDP-NO-SYNC", "DDP-NO-SYNC-ACCUMULATED")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["alone", "view", "view, small buckets", "unused"])
def test_no_sync(world: World, case: str) -> None:
    """Passes inside no_sync() accumulate on each rank, and the next pass outside synchronises all of it."""
    options = {"alone": {}, "view": VIEW, "view, small buckets": {**VIEW, **SMALL}, "unused": UNUSED}[case]

    def actions(rank: int) -> list[Action]:
        inside = [forward(given(rank, 1), inside=True), backward(), NOTE]
        return [a_pass(given(rank, 0)), ZERO, *inside, *inside, forward(given(rank, 2)), backward(), NOTE]

    for rank in training.run(world, actions, hook=HOOK, options=options):
        rank.expect_calls([1, 0, 0, 1 if case != "view, small buckets" else 3])
        own = given(rank.rank, 1)
        rank.expect_gradients(1, own, "after one pass inside no_sync()")
        rank.expect_gradients(2, added(own, own), "after two passes inside no_sync()")
        expected = added(mean_over(BOTH, 1), mean_over(BOTH, 1), mean_over(BOTH, 2))
        rank.expect_gradients(3, expected, "after the pass outside")


@clauses("DDP-NO-SYNC")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["an inner one", "a failed one"])
def test_no_sync_that_ended(world: World, case: str) -> None:
    """After an inner no_sync() a pass is inside of the outer one still; after one that failed a pass is outside."""

    def actions(rank: int) -> list[Action]:
        return [forward(given(rank, 0), inside=case), backward(), NOTE, ZERO, a_pass(given(rank, 1))]

    for rank in training.run(world, actions, hook=HOOK):
        inside = case == "an inner one"
        rank.expect_calls([0 if inside else 1, 1])
        rank.expect_gradients(0, given(rank.rank, 0) if inside else mean_over(BOTH, 0), f"after {case}")
        rank.expect_gradients(1, mean_over(BOTH, 1), "in the pass after that")


@clauses("DDP-NO-SYNC-FORWARD")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
def test_no_sync_around_backward_only(world: World) -> None:
    """A backward pass inside no_sync() synchronises if its forward pass was outside."""

    def actions(rank: int) -> list[Action]:
        return [forward(given(rank, 0)), backward(inside=True), NOTE]

    for rank in training.run(world, actions, hook=HOOK):
        rank.expect_calls([1])
        rank.expect_gradients(0, mean_over(BOTH, 0), "after a pass outside with its backward pass inside")


def partly(rank: int, step: int) -> Gradients:
    """Parameter 0 is used on rank 0 only, parameter 1 on every rank, and parameter 2 on none."""
    own = given(rank, step)
    return [own[0] if rank == 0 else None, own[1], None]


@clauses("DDP-UNUSED-LOCALLY")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["alone", "view", "kept gradients", "view, kept gradients"])
def test_unused_on_one_rank(world: World, case: str) -> None:
    """A parameter used on one rank only gets the mean with zeros, in every step, also where old gradients are kept."""
    kept = "kept" in case
    options = {**UNUSED, **(VIEW if "view" in case else {})}

    def actions(rank: int) -> list[Action]:
        zero = [] if kept else [ZERO]
        return [one for step in range(3) for one in (*zero, forward(partly(rank, step)), backward(), NOTE)]

    for rank in training.run(world, actions, hook=HOOK, options=options):
        expected = np.zeros((5, 3))
        for step in range(1 if kept else 3):
            expected = np.asarray(given(0, step)[0], np.float64) / 2
            found = rank.record["notes"][step][0]["values"]
            place = f'{rank.place}["notes"][{step}][0]["values"]'
            if found is None:
                rank.expect("the gradient being None", True, False, f'["notes"][{step}][0]["values"] is None', "value")
            name = f"the gradient of the parameter used on rank 0 only, in step {step},"
            expect_array(rank.rank, name, found, expected.ravel(), place)


@clauses("DDP-UNUSED-LOCALLY")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_unused_contributes_zeros(world: World) -> None:
    """What a hook sees of a parameter that is not used on its rank is zero, also after a step in which it was used."""

    def actions(rank: int) -> list[Action]:
        return [a_pass(given(rank, 0)), a_pass(partly(rank, 1))]

    for rank in training.run(world, actions, hook="unchanged", options=UNUSED):
        if rank.rank == 1:
            own = given(1, 1)
            rank.expect_gradients(1, [np.zeros((5, 3)), own[1], None], "with a hook that changes nothing")


@clauses("DDP-UNUSED-EVERYWHERE")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["alone", "view"])
def test_unused_everywhere(world: World, case: str) -> None:
    """A parameter that no rank uses keeps no gradient."""
    options = {**UNUSED, **(VIEW if case == "view" else {})}
    for rank in training.run(world, lambda rank: [a_pass(partly(rank, step)) for step in range(3)], options=options):
        for step in range(3):
            expected = [given(0, step)[0].astype(np.float64) / 2, mean_over(BOTH, step)[1], None]
            rank.expect_gradients(step, expected, f"in step {step}")


@clauses("DDP-UNUSED-ACCUMULATED")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
def test_unused_but_accumulated(world: World) -> None:
    """A parameter used inside no_sync() only is synchronised by the next pass outside."""

    def actions(rank: int) -> list[Action]:
        first, second = given(rank, 0), given(rank, 1)
        inside = [forward([first[0], None, None], inside=True), backward()]
        return [*inside, forward([None, second[1], second[2]]), backward(), NOTE]

    for rank in training.run(world, actions, hook=HOOK, options=UNUSED):
        expected = [mean_over(BOTH, 0)[0], *mean_over(BOTH, 1)[1:]]
        rank.expect_gradients(0, expected, "after the pass outside")


@clauses("DDP-UNUSED-REFUSED")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_unused_is_refused(world: World) -> None:
    """Without find_unused_parameters a parameter without a gradient is a RuntimeError in the next forward pass."""

    def actions(rank: int) -> list[Action]:
        own = given(rank, 0)
        return [forward([own[0], own[1], None]), backward(), forward(own, catch=True)]

    for rank in training.run(world, actions):
        error, text = rank.record["errors"][0]
        rank.expect(f"the error ({text})", error, "RuntimeError", '["errors"][0][0]', "error")
    world.close()


@clauses("DDP-VIEW")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_view(world: World) -> None:
    """Inside the hook .grad of each parameter lies in the bucket's buffer, from the first step on."""
    actions = [a_pass([1.0] * 3), a_pass([1.0] * 3), ZERO, forward([1.0] * 3), backward(), NOTE]
    for rank in training.run(world, lambda _: actions, hook="unchanged", options={**VIEW, **SMALL}):
        for step in range(3):
            rank.expect_buckets(step, "views", "True for each parameter", "all(sum(found, []))", "memory")


@clauses("DDP-VIEW-SAME")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["alone", "small buckets", "numbered", "unused"])
def test_view_gives_the_same(world: World, case: str) -> None:
    """The gradients with gradient_as_bucket_view are those without it."""
    cases: dict[str, dict[str, Any]] = {"small buckets": SMALL, "unused": UNUSED}
    more = cases.get(case, {})
    hook = "numbered" if case == "numbered" else HOOK

    def actions(rank: int) -> list[Action]:
        return [a_pass(given(rank, step)) for step in range(3)]

    plain, view = (training.run(world, actions, hook=hook, options={**more, **extra}) for extra in ({}, VIEW))
    for one, other in zip(plain, view, strict=True):
        for step in range(3):
            expected = [note["values"] for note in one.record["notes"][step]]
            other.expect_gradients(step, expected, f"in step {step}, compared with the one without views,")


@clauses("DDP-TWO-FORWARDS")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
def test_two_forwards(world: World) -> None:
    """One backward pass through the outputs of two forward passes synchronises the sum, once."""

    def actions(rank: int) -> list[Action]:
        both = [forward(given(rank, 0), to="a"), forward(given(rank, 1), to="b")]
        return [*both, backward(of=["a", "b"]), NOTE, a_pass(given(rank, 2))]

    for rank in training.run(world, actions, hook=HOOK):
        rank.expect_calls([1, 1])
        rank.expect_gradients(0, added(mean_over(BOTH, 0), mean_over(BOTH, 1)), "after two forward passes")
        rank.expect_gradients(1, mean_over(BOTH, 2), "in the next step")


@clauses("DDP-SECOND-BACKWARD")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
def test_second_backward(world: World) -> None:
    """A second backward pass with retain_graph adds the rank's own gradient, and the next step is right again."""

    def actions(rank: int) -> list[Action]:
        twice = [forward(given(rank, 0)), backward(retain=True), NOTE, backward(), NOTE]
        return [*twice, a_pass(given(rank, 1))]

    for rank in training.run(world, actions, hook=HOOK):
        rank.expect_calls([1, 0, 1])
        expected = added(mean_over(BOTH, 0), given(rank.rank, 0))
        rank.expect_gradients(1, expected, "after the second backward pass")
        rank.expect_gradients(2, mean_over(BOTH, 1), "in the next step")


@clauses("DDP-TWO-MODELS")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
def test_two_models(world: World) -> None:
    """Two models whose passes are interleaved get their own gradients."""

    def actions(rank: int) -> list[Action]:
        steps: list[Action] = []
        for step in range(3):
            steps += [{**ZERO, "model": 0}, {**ZERO, "model": 1}]
            steps += [forward(given(rank, step), to="a"), forward(given(rank, step + 3), to="b", model=1)]
            steps += [backward(of=["a"]), backward(of=["b"], model=1), NOTE, {**NOTE, "model": 1}]
        return steps

    for rank in training.run(world, actions, hook=HOOK, models=2, options=SMALL):
        for step in range(3):
            rank.expect_gradients(2 * step, mean_over(BOTH, step), f"of the first model in step {step}")
            rank.expect_gradients(2 * step + 1, mean_over(BOTH, step + 3), f"of the second model in step {step}")


@clauses("DDP-TWO-MODELS", "DDP-NO-SYNC")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
def test_no_sync_of_another_model(world: World) -> None:
    """A model synchronises in a pass inside no_sync() of another one."""

    def actions(rank: int) -> list[Action]:
        other: Action = {"model": 1, "inside": "that of the first model"}
        return [{**forward(given(rank, 0)), **other}, {**backward(), **other}, {**NOTE, "model": 1}]

    for rank in training.run(world, actions, hook=HOOK, models=2):
        rank.expect_gradients(0, mean_over(BOTH, 0), "of the second model after a pass inside no_sync() of the first")


@clauses("DDP-NO-GRAD")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
def test_no_grad(world: World) -> None:
    """A forward pass under no_grad() on all ranks, between forward and backward pass, changes nothing."""

    def actions(rank: int) -> list[Action]:
        return [forward(given(rank, 0)), forward(given(rank, 1), no_grad=True, to="other"), backward(), NOTE]

    for rank in training.run(world, actions, hook=HOOK):
        rank.expect_calls([1])
        rank.expect_gradients(0, mean_over(BOTH, 0), "after a forward pass under no_grad()")
