"""The reference's DistributedDataParallel does what its clauses say, and what torch's own does where that is right.

Each case runs on two ranks, with its assertions on the ranks.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ddp_models import (
    Branches,
    Complex,
    Embedded,
    MixedDtypes,
    OddShapes,
    OrderByRank,
    Tied,
    conv,
    inputs_of,
    mlp,
    rows_of,
    small,
)
from torch import nn
from torch.futures import Future
from two_ranks import Case, run_on_two_ranks

from commhooks.reference.bucket import GradBucket
from commhooks.reference.bucketing import assign_to_buckets
from commhooks.reference.ddp import DistributedDataParallel
from commhooks.reference.default_hooks import allreduce_hook

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Collects a case that ``test_case`` reports under its name."""
    CASES[function.__name__] = function
    return function


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_on_two_ranks(__name__, tmp_path_factory.mktemp("ranks"))


def recording(log: list[GradBucket], contents: list[torch.Tensor] | None = None) -> Callable[..., Future[torch.Tensor]]:
    def hook(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
        log.append(bucket)
        if contents is not None:
            contents.append(bucket.buffer().clone())
        return allreduce_hook(None, bucket)

    # torch compares annotations with the class; here they are strings.
    hook.__annotations__ = {}
    return hook


def gradient(model: nn.Module) -> torch.Tensor:
    return next(model.parameters()).grad


def copies(model: nn.Module, **options: object) -> tuple[nn.Module, nn.Module]:
    return (
        nn.parallel.DistributedDataParallel(copy.deepcopy(model), **options),
        DistributedDataParallel(copy.deepcopy(model), **options),
    )


# The same gradients as torch's own wrapper, bit for bit.


def assert_trains_as_torch(model: nn.Module, inputs: Callable[[int], torch.Tensor], **options: object) -> None:
    pair = copies(model, **options)
    for step in range(6):
        for wrapped in pair:
            wrapped.zero_grad()
            wrapped(inputs(step)).float().square().sum().backward()
        for (name, theirs), ours in zip(pair[0].module.named_parameters(), pair[1].module.parameters(), strict=True):
            expected, found = theirs.grad, ours.grad
            assert expected.layout == found.layout, (step, name)
            assert expected.is_sparse or expected.stride() == found.stride(), (step, name)
            assert torch.equal(expected.to_dense(), found.to_dense()), (step, name)
            assert expected.to_dense().isfinite().all(), (step, name)
        for wrapped in pair:
            descend(wrapped)


def descend(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad.to_dense(), alpha=1e-3)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], torch.Tensor]]] = {
    "mlp": (mlp, lambda step, rank: inputs_of((9, 40), step, rank)),
    "conv": (conv, lambda step, rank: inputs_of((2, 3, 9, 9), step, rank)),
    "channels_last": (
        lambda: conv().to(memory_format=torch.channels_last),
        lambda step, rank: inputs_of((2, 3, 9, 9), step, rank).to(memory_format=torch.channels_last),
    ),
    "embedding": (lambda: Embedded(sparse=False), rows_of),
    "sparse": (lambda: Embedded(sparse=True), rows_of),
    "tied": (Tied, lambda step, rank: inputs_of((4, 5), step, rank)),
    "mixed_dtypes": (MixedDtypes, lambda step, rank: inputs_of((4, 5), step, rank)),
    "odd_shapes": (OddShapes, lambda step, rank: inputs_of((4, 5), step, rank)),
    "complex": (Complex, lambda step, rank: inputs_of((4, 5), step, rank)),
}


def _compare(model_name: str, options: dict[str, object], rank: int) -> None:
    make, inputs = MODELS[model_name]
    assert_trains_as_torch(make(), lambda step: inputs(step, rank), **options)


for _model in MODELS:
    CASES[f"as_torch_{_model}"] = functools.partial(_compare, _model, {})
    CASES[f"as_torch_{_model}_in_small_views"] = functools.partial(
        _compare, _model, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.005}
    )
for _model in ("mlp", "sparse", "mixed_dtypes"):
    CASES[f"as_torch_{_model}_find_unused"] = functools.partial(_compare, _model, {"find_unused_parameters": True})


# Buckets as a hook sees them.


def seen(model: nn.Module, log: list[GradBucket]) -> list[tuple[int, bool, int, list[str]]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(b.index(), b.is_last(), b.buffer().numel(), [names[id(p)] for p in b.parameters()]) for b in log]


def _same_buckets(options: dict[str, object], width: int, rank: int) -> None:
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)])
    logs: tuple[list[GradBucket], list[GradBucket]] = ([], [])
    pair = copies(model, **options)
    for wrapped, log in zip(pair, logs, strict=True):
        wrapped.register_comm_hook(None, recording(log))
    for step in range(6):
        views = []
        for wrapped, log in zip(pair, logs, strict=True):
            log.clear()
            wrapped(inputs_of((2, width), step, rank)).sum().backward()
            views.append(seen(wrapped.module, log))
        if step > 0:
            assert views[0] == views[1], (step, views)
            assert len(views[1]) > 1
        order = [name for bucket in views[1] for name in bucket[3]]
        reverse = [name for name, _ in reversed(list(model.named_parameters()))]
        assert order == reverse, step
        assert [bucket[0] for bucket in views[1]] == list(range(len(views[1]))), step
        assert [bucket[1] for bucket in views[1]] == [False] * (len(views[1]) - 1) + [True], step


CASES["buckets_as_torch"] = functools.partial(_same_buckets, {}, 300)
CASES["buckets_as_torch_capped"] = functools.partial(_same_buckets, {"bucket_cap_mb": 0.3}, 200)


@case
def buckets_in_the_order_of_rank_0(rank: int) -> None:
    logs: tuple[list[GradBucket], list[GradBucket]] = ([], [])
    pair = copies(OrderByRank(rank), bucket_cap_mb=0.004)
    for wrapped, log in zip(pair, logs, strict=True):
        wrapped.register_comm_hook(None, recording(log))
    for step in range(4):
        for wrapped, log in zip(pair, logs, strict=True):
            log.clear()
            wrapped(inputs_of((2, 30), step, rank)).sum().backward()
        theirs, ours = (seen(wrapped.module, log) for wrapped, log in zip(pair, logs, strict=True))
        layers = [int(name.split(".")[1]) for bucket in ours for name in bucket[3] if name.endswith("weight")]
        assert layers == ([3, 2, 1, 0] if step == 0 else [1, 3, 0, 2])
        assert step == 0 or ours == theirs


# Modes.


@case
def unused_in_the_loss(rank: int) -> None:
    class TwoOutputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = small(), small()

        def forward(self, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
            return {"outputs": [self.a(x), self.b(x)]}

    model = DistributedDataParallel(TwoOutputs(), find_unused_parameters=True)
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(1, 3))["outputs"][rank].sum().backward()
        assert model.module.a.weight.grad.flatten().tolist() == [0.5] * 6
        assert model.module.b.weight.grad.flatten().tolist() == [0.5] * 6


@case
def unused_is_refused_by_name(rank: int) -> None:
    model = DistributedDataParallel(Branches())
    model(torch.ones(1, 3), branch=0).sum().backward()
    with pytest.raises(RuntimeError, match=r"of_rank\.1\.weight, never\.weight"):
        model(torch.ones(1, 3), branch=0)


@case
def backward_in_two_parts(rank: int) -> None:
    model = DistributedDataParallel(nn.ModuleList([small(), small()]))
    model.module.forward = lambda x: [layer(x) for layer in list(model.module)]
    first, second = model(torch.full((1, 3), 2.0 * rank))
    first.sum().backward()
    second.sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.flatten().tolist() == [1.0] * 6


@case
def subgroup_of_one(rank: int) -> None:
    groups = [dist.new_group([member]) for member in range(2)]
    model = DistributedDataParallel(small(), process_group=groups[rank])
    model(torch.full((1, 3), 1.0 + rank)).sum().backward()
    assert gradient(model).flatten().tolist() == [1.0 + rank] * 6
    with pytest.raises(ValueError, match="process_group"):
        DistributedDataParallel(small(), process_group=groups[1 - rank])


@case
def wrong_models_are_refused(rank: int) -> None:
    with pytest.raises(RuntimeError, match="same parameters"):
        DistributedDataParallel(nn.Linear(3, 2 + rank))
    with pytest.raises(RuntimeError, match="requires a gradient"):
        DistributedDataParallel(small().requires_grad_(False))
    with pytest.raises(NotImplementedError, match="static_graph"):
        DistributedDataParallel(small(), static_graph=True)
    with pytest.raises(NotImplementedError, match="join"):
        DistributedDataParallel(small()).join()
    with pytest.raises(ValueError, match="bucket_cap_mb"):
        DistributedDataParallel(small(), bucket_cap_mb=0)


# How parameters are put into buckets.


def test_a_bucket_is_closed_when_it_has_its_cap() -> None:
    """The first of each dtype has its own cap, a sparse gradient is alone, the bucket ready first comes first."""
    single, double = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, dtype=torch.float64))
    parameters = [single, single, double, single, single, double, single]
    buckets = assign_to_buckets(parameters, [6, 5, 4, 3, 2, 1, 0], frozenset({4}), first_cap=4, cap=8)
    assert buckets == [[6], [5], [4], [2], [3, 1], [0]]


@pytest.mark.parametrize("name", CASES)
def test_case(faults: dict[str, str], name: str) -> None:
    """The case passed on both ranks."""
    assert name not in faults, faults[name]
