"""The reference's DistributedDataParallel does what its clauses say, and what torch's own does where that is right.

Each case runs on two ranks, with its assertions on the ranks. One pair of processes runs all cases of a kind, so a case
costs milliseconds.
"""

from __future__ import annotations

import copy
import datetime
import functools
import importlib
import inspect
import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future

from commhooks.reference.bucket import GradBucket
from commhooks.reference.bucketing import assign_to_buckets
from commhooks.reference.ddp import DistributedDataParallel
from commhooks.reference.default_hooks import allreduce_hook, fp16_compress_wrapper
from commhooks.reference.registration import check_hook

SECONDS = 40


# Two ranks, and the cases they run.


def run_on_two_ranks(cases: dict[str, Callable[[int], None]], folder: Path) -> dict[str, str]:
    """Runs all cases one after the other on two ranks; gives what went wrong on either rank, by case."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_run_cases, args=(rank, cases, folder), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + SECONDS
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
    faults: dict[str, str] = {}
    for rank in range(2):
        outcomes = {path.stem: pickle.loads(path.read_bytes()) for path in folder.glob(f"{rank}/*.pickle")}
        for name in cases:
            fault = outcomes.get(name, "the rank died or ran out of time")
            if fault is not None:
                faults[name] = f"{faults.get(name, '')}rank {rank}: {fault}\n"
    return faults


def _run_cases(rank: int, cases: dict[str, Callable[[int], None]], folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=10))
    (folder / str(rank)).mkdir()
    for name, case in cases.items():
        torch.manual_seed(0)
        fault = None
        try:
            case(rank)
        except BaseException:
            fault = traceback.format_exc()
        (folder / str(rank) / f"{name}.pickle").write_bytes(pickle.dumps(fault))
    dist.destroy_process_group()


Case = Callable[[int], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Collects a case that ``test_case`` reports under its name."""
    CASES[function.__name__] = function
    return function


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    # torch's own wrapper imports the compiler when it first runs; once here instead of once on each rank.
    importlib.import_module("torch._dynamo")
    return run_on_two_ranks(CASES, tmp_path_factory.mktemp("ranks"))


# Models and hooks.


class Embedded(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6, sparse=sparse)
        self.linear = nn.Linear(6, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(self.embedding(rows))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


class MixedDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_single, self.in_double, self.in_half = (
            nn.Linear(5, 5),
            nn.Linear(5, 5).double(),
            nn.Linear(5, 5).bfloat16(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.in_half(self.in_double(self.in_single(x).double()).bfloat16())


class OddShapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.lone_empty = nn.Parameter(torch.empty(0, 4, dtype=torch.float64))
        self.transposed = nn.Parameter(torch.randn(4, 5).t())
        self.linear = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nothing = self.empty.sum() + self.lone_empty.sum()
        return self.linear(x + (x @ self.transposed).mean() * self.scale) + nothing


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real((x * 1j + x.square()) @ self.weight)


class Branches(nn.Module):
    """Uses a different layer on each rank, and never the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.of_rank = nn.ModuleList([nn.Linear(3, 3, bias=False) for _ in range(2)])
        self.shared = nn.Linear(3, 3, bias=False)
        self.never = nn.Linear(3, 3, bias=False)

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.shared(self.of_rank[branch](x))


class OrderByRank(nn.Module):
    """Applies its layers in another order than that of their definition, and on rank 1 in a third one."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(30, 30) for _ in range(4)])
        self.order = [2, 0, 3, 1] if rank == 0 else [1, 3, 0, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.order:
            x = self.layers[layer](x)
        return x


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 7))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(100, 5)
    )


def small() -> nn.Module:
    return nn.Linear(3, 2, bias=False)


def inputs_of(shape: tuple[int, ...], step: int, rank: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * step + rank))


def rows_of(step: int, rank: int) -> torch.Tensor:
    return torch.randint(20, (8,), generator=torch.Generator().manual_seed(100 * step + rank))


def done(value: object) -> Future[torch.Tensor]:
    future: Future[torch.Tensor] = Future()
    future.set_result(value)
    return future


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


# Registration.


def test_what_cannot_be_called_with_two_arguments_is_a_type_error() -> None:
    for hook in (
        3,
        None,
        "hook",
        lambda: None,
        lambda state: None,
        lambda a, b, c: None,
        lambda *, state, bucket: None,
    ):
        with pytest.raises(TypeError, match="hook"):
            check_hook(hook)


def _annotated(bucket: object, returned: object) -> Callable[..., object]:
    def hook(state, bucket):  # type: ignore[no-untyped-def]
        raise AssertionError

    hook.__annotations__ = {
        key: value
        for key, value in {"bucket": bucket, "return": returned}.items()
        if value is not inspect.Signature.empty
    }
    return hook


@pytest.mark.parametrize(
    ("bucket", "returned"),
    [
        (int, Future[torch.Tensor]),
        (torch.Tensor, inspect.Signature.empty),
        ("int", "Future[torch.Tensor]"),
        (GradBucket, int),
        (GradBucket, Future),
        (GradBucket, Future[list]),
        (GradBucket, torch.Tensor),
        ("GradBucket", "Future[int]"),
        (GradBucket, None),
    ],
)
def test_wrong_annotations_are_a_value_error(bucket: object, returned: object) -> None:
    with pytest.raises(ValueError, match="must be annotated"):
        check_hook(_annotated(bucket, returned))


class _Callable:
    def __call__(self, state: object, bucket: GradBucket) -> Future[torch.Tensor]:
        raise AssertionError

    def method(self, state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        raise AssertionError


@pytest.mark.parametrize(
    "hook",
    [
        allreduce_hook,
        fp16_compress_wrapper(allreduce_hook),
        lambda state, bucket: None,
        lambda anything, b: None,
        lambda *arguments: None,
        functools.partial(lambda option, state, bucket: None, 1),
        functools.partial(lambda state, bucket, option: None, option=1),
        _Callable(),
        _Callable().method,
        _annotated("dist.GradBucket", "torch.futures.Future[torch.Tensor]"),
        _annotated("GradBucket", "Future[torch.Tensor]"),
        _annotated("cannot.be.Found", "Future[torch.Tensor]"),
        _annotated(dist.GradBucket | GradBucket, Future[torch.Tensor]),
        _annotated(dist.GradBucket, inspect.Signature.empty),
    ],
)
def test_these_hooks_are_accepted(hook: Callable[..., object]) -> None:
    check_hook(hook)


# What a hook gives back.


def _raises(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
    raise KeyError("the hook's own text")


def _fails(error: Exception) -> Callable[..., Future[torch.Tensor]]:
    def hook(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
        future: Future[torch.Tensor] = Future()
        future.set_exception(error)
        return future

    return hook


def _fails_in_then(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
    def callback(_: Future[torch.Tensor]) -> torch.Tensor:
        raise ValueError("the callback's own text")

    return allreduce_hook(None, bucket).then(callback)


WRONG: dict[str, tuple[Callable[..., object], type[BaseException], str]] = {
    "none": (lambda s, b: None, RuntimeError, "must return a torch.futures.Future of one tensor, got None"),
    "tensor": (lambda s, b: b.buffer(), RuntimeError, r"got a tensor of shape \(6,\)"),
    "int": (lambda s, b: 7, RuntimeError, "got int 7"),
    "string": (lambda s, b: "text", RuntimeError, "got str 'text'"),
    "future_of_none": (lambda s, b: done(None), RuntimeError, r"must hold a tensor of shape \(6,\).* got None"),
    "future_of_list": (lambda s, b: done([b.buffer()]), RuntimeError, "got list"),
    "collective": (
        lambda s, b: dist.all_reduce(b.buffer(), async_op=True).get_future(),
        RuntimeError,
        "bucket 0: the future must hold .* got list",
    ),
    "shorter": (lambda s, b: done(torch.zeros(5)), RuntimeError, r"got a tensor of shape \(5,\)"),
    "shorter_view": (lambda s, b: done(b.buffer()[:5]), RuntimeError, r"got a tensor of shape \(5,\)"),
    "longer": (lambda s, b: done(torch.zeros(7)), RuntimeError, r"got a tensor of shape \(7,\)"),
    "two_dimensions": (lambda s, b: done(torch.zeros(2, 3)), RuntimeError, r"got a tensor of shape \(2, 3\)"),
    "half": (lambda s, b: done(b.buffer().half()), RuntimeError, "torch.float32 .* got .*torch.float16"),
    "strided": (lambda s, b: done(torch.zeros(12)[::2]), RuntimeError, "not contiguous"),
    "offset": (lambda s, b: done(torch.zeros(12)[6:]), RuntimeError, "starts at element 6"),
    "device": (lambda s, b: done(torch.zeros(6, device="meta")), RuntimeError, "on cpu.* on meta"),
    "sparse": (lambda s, b: done(torch.zeros(6).to_sparse()), RuntimeError, "sparse"),
    "never": (lambda s, b: Future(), RuntimeError, r"did not complete within 0\.1 s"),
    "raises": (_raises, KeyError, "the hook's own text"),
    "set_exception": (_fails(OSError("disk full")), RuntimeError, "OSError: disk full"),
    "then_raises": (_fails_in_then, RuntimeError, "the callback's own text"),
}


def _wrong_result(hook: Callable[..., object], error: type[BaseException], text: str, rank: int) -> None:
    model = DistributedDataParallel(small(), hook_timeout=0.1 if "0\\.1" in text else 5)
    model.register_comm_hook(None, hook)
    with pytest.raises(error, match=text) as caught:
        model(torch.ones(1, 3)).sum().backward()
    if caught.type is RuntimeError and hook is not _raises:
        assert getattr(hook, "__qualname__") in str(caught.value)  # noqa: B009
    with pytest.raises(RuntimeError, match="an earlier backward pass failed"):
        model(torch.ones(1, 3))


for _name, (_hook, _error, _text) in WRONG.items():
    CASES[f"wrong_{_name}"] = functools.partial(_wrong_result, _hook, _error, _text)


@pytest.mark.parametrize("name", CASES)
def test_case(faults: dict[str, str], name: str) -> None:
    """The case passed on both ranks."""
    assert name not in faults, faults[name]
