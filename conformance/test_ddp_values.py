"""The gradients of data-parallel training, with and without hooks, compared with one process on the joined batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from commhooks.conformance import inputs, training
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_array, expect_equal
from commhooks.conformance.expected import FloatArray, deviation, is_representable, mean, mean_bound
from commhooks.conformance.marks import claims, clauses, dtypes, every_hook, needs, worlds
from commhooks.conformance.programs import ddp_training
from commhooks.conformance.training import STEPS, a_pass, given, mean_over
from commhooks.conformance.world import RankFailure, World

HOOK = "allreduce_hook"
MODELS = (
    "mlp",
    "mixed dtypes",
    "convolutions",
    "channels_last",
    "tied embedding",
    "no dimension, no elements",
)
SPECIAL = ("sparse embedding", "complex")
SMALL = {"bucket_cap_mb": 60 / 2**20}


def compare(world: World, model: str, hook: str = "", own: bool = False, **arguments: Any) -> None:
    """Expects the gradients of the joined batch on each rank in each step, or with ``own`` those of its own part."""
    results = world.run(ddp_training.compare_with_one_process, model=model, hook=hook, own=own, **arguments)
    for rank, result in enumerate(results):
        training.expect_registered(rank, result, hook)
        for step, found in enumerate(result["found"]):
            expected = results[rank if own else 0]["expected"][step]
            if not is_representable(expected, "bfloat16").all():
                raise RuntimeError(f"{model}, step {step}: the gradients are not exact in every dtype")
            place = f'results[0][{rank}]["found"][{step}]'
            expect_array(rank, f"the gradients of {model} in step {step}", found, expected, place)


@clauses("DDP-MEAN")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", [*MODELS, *SPECIAL])
def test_models(world: World, case: str) -> None:
    """Without a hook a model has the gradients of the joined batch, in six steps."""
    compare(world, case)


@clauses("DDP-MEAN")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["mlp", "sparse embedding", "mixed dtypes", "tied embedding"])
def test_models_in_small_buckets(world: World, case: str) -> None:
    """The same with several buckets in flight and gradients that are views of them."""
    compare(world, case, options={**SMALL, "gradient_as_bucket_view": True})


def random_gradients(world_size: int, step: int, dtype: str) -> FloatArray:
    """Gradients whose mean has something to round, shape ``(W, n)``, of all parameters together."""
    return inputs.spread(world_size, inputs.numel(training.SHAPES), dtype, seed=step)


def random_passes(world: World, dtype: str, hook: str = "", **options: Any) -> list[training.Rank]:
    """Six steps with random gradients."""
    gradients = [random_gradients(world.size, step, dtype) for step in range(STEPS)]
    ends = np.cumsum([inputs.numel([shape]) for shape in training.SHAPES])[:-1]
    return training.run(
        world,
        lambda rank: [a_pass(np.split(one[rank], ends)) for one in gradients],
        dtypes=[dtype] * len(training.SHAPES),
        hook=hook,
        contents=False,
        options=options,
    )


def flat(rank: training.Rank, step: int) -> FloatArray:
    """All gradients of a step."""
    return np.concatenate([note["values"] for note in rank.record["notes"][step]])


@clauses("DDP-MEAN")
@needs("DistributedDataParallel")
@dtypes("float32", "bfloat16")
def test_mean(world: World, dtype: str) -> None:
    """Random gradients have their mean, within the rounding of one division and of a sum in any order."""
    for rank in random_passes(world, dtype):
        for step in range(STEPS):
            local = random_gradients(world.size, step, dtype)
            error, bound, found = deviation(flat(rank, step), local), mean_bound(local, dtype), flat(rank, step)
            if (error <= bound).all():
                continue
            worst = int(np.argmax(error - bound))
            raise ClauseFailure(
                "value",
                f"rank {rank.rank}, step {step}, element {worst}: found {found[worst]!r}, "
                f"expected {mean(local)[worst]!r}",
                expected=repr(float(mean(local)[worst])),
                found=repr(float(found[worst])),
                bound=f"{bound[worst]:.3g}",
                excess=f"{error[worst] / bound[worst] if bound[worst] else np.inf:.3g} times the bound",
                place=f'np.concatenate([note["values"] for note in {rank.place}["notes"][{step}]])[{worst}]',
                holds=f"abs(float(found) - {float(mean(local)[worst])!r}) <= {float(bound[worst])!r}",
            )


@clauses("DDP-AGREE")
@needs("DistributedDataParallel")
@worlds(at_least=2)
@dtypes("float32", "bfloat16")
def test_agree(world: World, dtype: str) -> None:
    """All ranks have the same bits in every step."""
    first, *others = random_passes(world, dtype)
    for rank in others:
        for step in range(STEPS):
            expected = [note["values"] for note in first.record["notes"][step]]
            rank.expect_gradients(step, expected, f"in step {step}, compared with rank 0,")


@clauses("ALLREDUCE-AS-DDP")
@needs("DistributedDataParallel", HOOK)
@dtypes("float32", "bfloat16")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["one bucket", "small buckets", "views"])
def test_allreduce_hook_as_no_hook(world: World, dtype: str, case: str) -> None:
    """allreduce_hook gives, bit for bit, what data-parallel training gives without a hook, in six steps."""
    cases: dict[str, dict[str, Any]] = {"small buckets": SMALL, "views": {"gradient_as_bucket_view": True}}
    options = cases.get(case, {})
    plain, hooked = (random_passes(world, dtype, hook, **options) for hook in ("", HOOK))
    for one, other in zip(plain, hooked, strict=True):
        for step in range(STEPS):
            expected = [note["values"] for note in one.record["notes"][step]]
            other.expect_gradients(step, expected, f"in step {step}, compared with the one without a hook,")


@clauses("HOOK-IN-DDP")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", MODELS)
def test_hook(world: World, hook: str, case: str) -> None:
    """With each hook a model has the gradients of the joined batch, with noop_hook its own, in six steps."""
    compare(world, case, hook, own=hook == "noop_hook", options=SMALL)


@clauses("HOOK-KINDS")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", SPECIAL)
def test_hook_on_special_gradients(world: World, hook: str, case: str, note: Callable[[str], None]) -> None:
    """Sparse and complex gradients get their mean, or an error."""
    try:
        compare(world, case, hook, own=hook == "noop_hook", options=SMALL)
    except (RankFailure, ClauseFailure) as failure:
        if not failure.kind.startswith("raises"):
            raise
        note(f"refused: {failure.kind}")


@every_hook
@claims("mean")
@clauses("HOOK-IN-DDP")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["mlp", "convolutions", "mixed dtypes"])
def test_hook_that_claims_a_mean(world: World, hook: str, case: str) -> None:
    """With a hook that claims to average a model has the gradients of the joined batch."""
    compare(world, case, hook, options=SMALL)


@clauses("HOOK-IN-DDP")
@needs("DistributedDataParallel", "powerSGD_hook", "PowerSGDState")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["mlp", "convolutions"])
def test_powersgd_before_it_compresses(world: World, case: str) -> None:
    """powerSGD_hook gives the gradients of the joined batch before its first compressed step."""
    compare(world, case, "powerSGD_hook", state={"start_powerSGD_iter": 10})


@clauses("DDP-HOOK-RESULT")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["unchanged", "numbered", "numbered, views", "numbered, float64"])
def test_hook_result(world: World, case: str) -> None:
    """The gradients are what the hook's future holds, divided by nothing, also in a tensor of its own."""
    options = {"gradient_as_bucket_view": True} if "views" in case else {}
    kinds = ["float64" if "float64" in case else "float32"] * 3
    hook = case.partition(",")[0]
    for rank in training.run(
        world, lambda rank: [a_pass(given(rank, step)) for step in range(3)], hook=hook, options=options, dtypes=kinds
    ):
        for step in range(3):
            expected = given(rank.rank, step) if hook == "unchanged" else counted(rank, step)
            rank.expect_gradients(step, expected, f"in step {step} with a hook that gives back {case}")


def counted(rank: training.Rank, step: int) -> list[FloatArray]:
    """1, 2, 3 and so on along each bucket, as gradients by parameter."""
    lengths = [inputs.numel([shape]) for shape in training.SHAPES]
    found: list[Any] = [None] * len(lengths)
    for bucket in rank.record["passes"][step]:
        start = 0
        for place in bucket["parameters"]:
            found[place] = np.arange(start + 1.0, start + 1.0 + lengths[place])
            start += lengths[place]
    return found


@clauses("DDP-HOOK-AWAITED")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["one bucket", "small buckets"])
def test_late_results(world: World, case: str) -> None:
    """When backward() returns, results that came late from another thread are in .grad."""
    options = {} if case == "one bucket" else {"bucket_cap_mb": 4 / 2**20}
    for rank in training.run(
        world, lambda rank: [a_pass(given(rank, step)) for step in range(2)], hook="late_double", options=options
    ):
        for step in range(2):
            expected = [2.0 * one for one in given(rank.rank, step)]
            rank.expect_gradients(step, expected, f"in step {step}")


@clauses("DDP-GRAD-LAYOUT")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["copies", "views"])
def test_layout(world: World, case: str) -> None:
    """The gradient of a channels_last parameter has its strides and the right values."""
    shapes = ((2, 3, 2, 2), (4,))
    options = {"gradient_as_bucket_view": case == "views"}
    for rank in training.run(
        world,
        lambda rank: [a_pass(given(rank, step, shapes)) for step in range(3)],
        shapes=shapes,
        channels_last=True,
        hook=HOOK,
        options=options,
    ):
        for step in range(3):
            noted = rank.record["notes"][step][0]
            place = f'["notes"][{step}][0]["stride"]'
            rank.expect("the strides of the gradient", noted["stride"], noted["own_stride"], place, "strides")
            rank.expect_gradients(step, mean_over((0, 1), step, shapes), f"in step {step}")


@clauses("DDP-SPARSE")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
def test_sparse(world: World) -> None:
    """A sparse gradient is alone in its bucket, and the result is sparse and right."""
    for rank, result in enumerate(world.run(ddp_training.train_sparse, hook=HOOK)):
        for key, expected in (("alone", [True]), ("sparse_buffer", [True]), ("sparse_gradient", [True] * 3)):
            found = sorted(set(result[key])) if key != "sparse_gradient" else result[key]
            place = f'results[0][{rank}]["{key}"]'
            holds = f"sorted(set({place}))" if key != "sparse_gradient" else place
            expect_equal(rank, f"{key} of the embedding", found, expected, holds, "sparse")
        for step, found in enumerate(result["found"]):
            place = f'results[0][{rank}]["found"][{step}]'
            expect_array(rank, f"the gradient in step {step}", found, result["joined"][step], place)
