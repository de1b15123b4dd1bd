"""The gradients of data-parallel training, with and without hooks, compared with one process on the joined batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from commhooks.conformance import inputs, training
from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import expect_array, expect_equal
from commhooks.conformance.expected import FloatArray, deviation, mean, mean_bound
from commhooks.conformance.marks import claims, clauses, dtypes, every_hook, needs, worlds
from commhooks.conformance.programs import ddp_training
from commhooks.conformance.training import STEPS, a_pass, given, mean_over
from commhooks.conformance.world import World

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


@clauses("DDP-MEAN")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", [*MODELS, *SPECIAL])
def test_models(world: World, case: str) -> None:
    """Without a hook a model has the gradients of the joined batch, in six steps."""
    training.compare(world, case)


@clauses("DDP-MEAN")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["mlp", "sparse embedding", "mixed dtypes", "tied embedding"])
def test_models_in_small_buckets(world: World, case: str) -> None:
    """The same with several buckets in flight and gradients that are views of them."""
    training.compare(world, case, options={**SMALL, "gradient_as_bucket_view": True})


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
    training.compare(world, case, hook, own=hook == "noop_hook", options=SMALL)


@clauses("HOOK-KINDS")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", SPECIAL)
def test_hook_on_special_gradients(world: World, hook: str, case: str, note: Callable[[str], None]) -> None:
    """Sparse and complex gradients get their mean, or an error."""
    with training.or_refused(note):
        training.compare(world, case, hook, own=hook == "noop_hook", options=SMALL)


@every_hook
@claims("mean")
@clauses("HOOK-IN-DDP")
@needs("DistributedDataParallel")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["mlp", "convolutions", "mixed dtypes"])
def test_hook_that_claims_a_mean(world: World, hook: str, case: str) -> None:
    """With a hook that claims to average a model has the gradients of the joined batch."""
    training.compare(world, case, hook, options=SMALL)


@clauses("HOOK-IN-DDP")
@needs("DistributedDataParallel", "powerSGD_hook", "PowerSGDState")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["mlp", "convolutions"])
def test_powersgd_before_it_compresses(world: World, case: str) -> None:
    """powerSGD_hook gives the gradients of the joined batch before its first compressed step."""
    training.compare(world, case, "powerSGD_hook", state={"start_powerSGD_iter": 10})


@clauses("HOOK-IN-DDP")
@needs("DistributedDataParallel", "batched_powerSGD_hook", "PowerSGDState")
@worlds(2, 2)
@pytest.mark.parametrize("case", ["mlp", "convolutions"])
def test_batched_powersgd_before_it_compresses(world: World, case: str) -> None:
    """batched_powerSGD_hook, too, in several buckets."""
    training.compare(world, case, "batched_powerSGD_hook", state={"start_powerSGD_iter": 10}, options=SMALL)


@clauses("DDP-GRAD-KEPT")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", [HOOK, "no hook", "numbered"])
def test_kept_gradients(world: World, case: str) -> None:
    """Gradients of the first two steps that somebody keeps have the same values after two steps more."""
    hook = "" if case == "no hook" else case
    steps = [a_pass(given(0, step)) for step in range(2)]
    more = [a_pass([7.0] * 3), a_pass([9.0] * 3)]
    actions = [
        steps[0],
        {"do": "keep"},
        *more,
        {"do": "note kept"},
        steps[1],
        {"do": "keep"},
        *more,
        {"do": "note kept"},
    ]
    for rank in training.run(world, lambda _: actions, hook=hook):
        noted = [note["values"] for step in (0, 3) for note in rank.record["notes"][step]]
        for number, (found, expected) in enumerate(zip(rank.record["kept"], noted, strict=True)):
            expect_array(rank.rank, f"kept gradient {number}", found, expected, f'{rank.place}["kept"][{number}]')


@clauses("DDP-GRAD-LAYOUT")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["copies", "views", "copies, unused on rank 1", "views, unused on rank 1"])
def test_layout(world: World, case: str) -> None:
    """The gradient of a channels_last parameter has its strides and the right values, where it is not used too."""
    shapes = ((2, 3, 2, 2), (4,))
    unused = "unused" in case
    options = {"gradient_as_bucket_view": "views" in case, "find_unused_parameters": unused}

    def local(rank: int, step: int) -> list[Any]:
        first, second = given(rank, step, shapes)
        return [None if unused and rank == 1 else first, second]

    for rank in training.run(
        world,
        lambda rank: [a_pass(local(rank, step)) for step in range(3)],
        shapes=shapes,
        channels_last=True,
        hook=HOOK,
        options=options,
    ):
        for step in range(3):
            noted = rank.record["notes"][step][0]
            place = f'["notes"][{step}][0]["stride"]'
            rank.expect("the strides of the gradient", noted["stride"], noted["own_stride"], place, "strides")
            expected = mean_over((0, 1), step, shapes)
            expected[0] = given(0, step, shapes)[0] / 2 if unused else expected[0]
            rank.expect_gradients(step, expected, f"in step {step}")


@clauses("DDP-SPARSE")
@needs("DistributedDataParallel", HOOK)
@worlds(2, 2)
@pytest.mark.parametrize("case", ["sparse embedding", "sparse embedding bag", "two sparse embeddings"])
def test_sparse(world: World, case: str) -> None:
    """A sparse gradient is alone in its bucket, and the result is sparse and right."""
    for rank, result in enumerate(world.run(ddp_training.train_sparse, hook=HOOK, model=case)):
        for key, expected in (("alone", [True]), ("sparse_buffer", [True]), ("sparse_gradient", [True] * 3)):
            found = sorted(set(result[key])) if key != "sparse_gradient" else result[key]
            place = f'results[0][{rank}]["{key}"]'
            holds = f"sorted(set({place}))" if key != "sparse_gradient" else place
            expect_equal(rank, f"{key} of the embedding", found, expected, holds, "sparse")
        for step, found in enumerate(result["found"]):
            place = f'results[0][{rank}]["found"][{step}]'
            expect_array(rank, f"the gradient in step {step}", found, result["joined"][step], place)
