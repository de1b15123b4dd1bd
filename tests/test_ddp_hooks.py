"""Which hooks the reference's DistributedDataParallel takes, and what it says to what they give back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ddp_models import small
from torch.futures import Future
from two_ranks import Case, run_on_two_ranks

from commhooks.reference.bucket import GradBucket
from commhooks.reference.ddp import DistributedDataParallel
from commhooks.reference.default_hooks import allreduce_hook, fp16_compress_wrapper
from commhooks.reference.registration import check_hook

CASES: dict[str, Case] = {}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_on_two_ranks(__name__, tmp_path_factory.mktemp("ranks"))


def done(value: object) -> Future[torch.Tensor]:
    future: Future[torch.Tensor] = Future()
    future.set_result(value)
    return future


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
