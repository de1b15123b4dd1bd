"""A model under data-parallel training is a module like any other: it is called, switched, saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from commhooks.conformance import training
from commhooks.conformance.expectations import expect_array, expect_equal
from commhooks.conformance.marks import clauses, needs, worlds
from commhooks.conformance.programs import ddp_module
from commhooks.conformance.training import a_pass
from commhooks.conformance.world import World


def used(world: World) -> list[Mapping[str, Any]]:
    """What the ranks noted."""
    results: list[Mapping[str, Any]] = world.run(ddp_module.use_as_module, shared=True)
    return results


def expect(world: World, key: str, expected: object, name: str) -> None:
    """Expects something noted on every rank to be as it should."""
    for rank, result in enumerate(used(world)):
        expect_equal(rank, name, result[key], expected, f'results[0][{rank}]["{key}"]', key)


def expect_mean_gradient(world: World, step: int, when: str) -> None:
    """Expects the mean of the ranks' gradients, which are 1, 3, 5 and so on."""
    for rank, result in enumerate(used(world)):
        place = f'results[0][{rank}]["gradients"][{step}]'
        expect_array(rank, f"the gradient {when}", result["gradients"][step], np.full(3, float(world.size)), place)


@clauses("DDP-ARGUMENTS")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_arguments(world: World) -> None:
    """Positional and keyword arguments reach the model, and its mapping of lists comes back."""
    expect(world, "seen", "((3, 'word'), 2.0, {'other': None})", "what the model was called with")
    expect(world, "returned", "['out', 'text'] list as it is", "what the model's call returned")


@clauses("DDP-EVAL")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_eval(world: World) -> None:
    """eval() and train() switch wrapper and model, and a step in eval mode has the mean gradient."""
    expect(world, "modes", [False, False, True, True], "training after eval() and after train()")
    expect_mean_gradient(world, 0, "in eval mode")


@clauses("DDP-STATE-DICT")
@needs("DistributedDataParallel", "allreduce_hook")
@worlds(1, 1)
def test_state_dict(world: World) -> None:
    """state_dict() has the model's names with the prefix "module." and nothing else."""
    for rank in training.run(world, lambda _: [a_pass([1.0] * 3)], hook="allreduce_hook", buffers=np.zeros(2)):
        expected = ["module.w0", "module.w1", "module.w2", "module.shift", "module.part.shift"]
        rank.expect("the names in state_dict()", rank.record["entries"], expected, '["entries"]', "names")


@clauses("DDP-LOAD-STATE-DICT")
@needs("DistributedDataParallel")
@worlds(2, 2)
def test_load_state_dict(world: World) -> None:
    """Another wrapper that loads the state has its values, and the mean gradient in its next step."""
    for rank, result in enumerate(used(world)):
        for number, expected in enumerate((np.full(3, 5.0), np.array([6.0]))):
            place = f'results[0][{rank}]["loaded"][{number}]'
            expect_array(rank, "a value that was loaded", result["loaded"][number], expected, place)
    expect_mean_gradient(world, 1, "after load_state_dict()")
