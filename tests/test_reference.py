"""The reference: its examples, its bucket, and its hooks with torch's own bucket in real training."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks, values
from torch.nn.parallel import DistributedDataParallel

import commhooks.reference as reference

MODULES = [module.name for module in pkgutil.iter_modules(reference.__path__)]
WORLD_SIZE = 2
STEPS = 4


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    """The examples in the docstrings give what they say."""
    module = importlib.import_module(f"commhooks.reference.{name}")
    names: dict[str, Any] = {"torch": torch, **{name: getattr(reference, name) for name in reference.__all__}}
    failed, _ = doctest.testmod(module, extraglobs=names)
    assert failed == 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"index": True}, TypeError, "index must be an int, got bool"),
        ({"index": -1}, ValueError, "index must be 0 or more, got -1"),
        ({"is_last": 1}, TypeError, "is_last must be a bool, got int"),
        ({"buffer": [1.0]}, TypeError, "buffer must be a torch.Tensor, got list"),
        ({"buffer": torch.zeros(2, 3)}, ValueError, r"buffer must have one dimension, got shape \(2, 3\)"),
        ({"buffer": torch.zeros(12)[::2]}, ValueError, r"buffer must be contiguous, got stride \(2,\)"),
        ({"parameters": torch.zeros(6)}, TypeError, "parameters must be a sequence"),
        ({"parameters": [(2, 2)]}, ValueError, "parameters must have as many elements as buffer: 4 found, 6 expected"),
        ({"parameters": [(2, "3")]}, TypeError, r"parameters\[0\] must be a tensor or a shape"),
        ({"parameters": [(6,), (-1,)]}, ValueError, r"parameters\[1\] must have lengths of 0 or more"),
    ],
)
def test_bucket_arguments(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    """A wrong argument is refused with its name, what was found and what was expected."""
    good = {"index": 0, "buffer": torch.zeros(6), "parameters": [(2, 3)], "is_last": True}
    with pytest.raises(error, match=words):
        reference.GradBucket(**{**good, **arguments})


def test_set_buffer_arguments() -> None:
    """A buffer of another length or shape is refused, and the bucket keeps its own."""
    bucket = reference.GradBucket(0, torch.zeros(6), [(6,)], True)
    own = bucket.buffer()
    for wrong in (torch.zeros(5), torch.zeros(2, 3), torch.zeros(12)[::2]):
        with pytest.raises(ValueError, match="buffer must"):
            bucket.set_buffer(wrong)
    with pytest.raises(TypeError, match=r"buffer must be a torch\.Tensor, got NoneType"):
        bucket.set_buffer(None)  # type: ignore[arg-type]
    assert bucket.buffer() is own


def test_stand_ins_take_no_memory() -> None:
    """Parameters that are given as shapes have those shapes and share one element."""
    bucket = reference.GradBucket(0, torch.zeros(1 << 16), [(1 << 8, 1 << 8)], True)
    (parameter,) = bucket.parameters()
    assert parameter.shape == (1 << 8, 1 << 8)
    assert parameter.untyped_storage().nbytes() == parameter.element_size()


def test_sparse_buffer() -> None:
    """A sparse buffer is kept as it is and has no views."""
    buffer = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([[2.0, 3.0]]), (4, 2))
    bucket = reference.GradBucket(0, buffer, [(4, 2)], True)
    assert bucket.buffer() is buffer
    assert bucket.gradients() == []


@pytest.mark.usefixtures("one_rank")
def test_complex_bucket() -> None:
    """The mean of complex gradients is complex, although the collective moves pairs of real numbers."""
    values = torch.tensor([1 + 2j, -3j])
    bucket = reference.GradBucket(0, values.clone(), [(2,)], True)
    result = reference.allreduce_hook(None, bucket).wait()
    assert torch.equal(result, values)


@pytest.mark.usefixtures("one_rank")
def test_failing_inner_hook_leaves_the_bucket() -> None:
    """If the inner hook raises, or its future does, the bucket has its own buffer again."""

    def raises(state: object, bucket: Any) -> Any:
        raise LookupError("no")

    def fails(state: object, bucket: Any) -> Any:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_exception(LookupError("no"))
        return future

    for inner in (raises, fails):
        bucket = reference.GradBucket(0, torch.ones(2), [(2,)], True)
        own = bucket.buffer()
        with pytest.raises(Exception, match="no"):
            reference.fp16_compress_wrapper(inner)(None, bucket).wait()
        assert bucket.buffer() is own


HOOKS = {
    "allreduce_hook": reference.allreduce_hook,
    "fp16_compress_hook": reference.fp16_compress_hook,
    "fp16_compress_wrapper(allreduce_hook)": reference.fp16_compress_wrapper(reference.allreduce_hook),
    "bf16_compress_wrapper(allreduce_hook)": reference.bf16_compress_wrapper(reference.allreduce_hook),
    "noop_hook": reference.noop_hook,
}
TOLERANCE = {"fp16": 2**-9, "bf16": 2**-6, "allr": 1e-6}


def _train(rank: int, world: int) -> dict[str, list[torch.Tensor]]:
    """Trains one model with each hook in torch's DistributedDataParallel; gives the gradients."""
    found = {}
    for name, hook in HOOKS.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.001)
        parallel.register_comm_hook(None, hook)
        for step in range(STEPS):
            parallel.zero_grad()
            inputs = torch.randn(4, 20, generator=torch.Generator().manual_seed(10 * step + rank))
            parallel(inputs).square().mean().backward()
        found[name] = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return found


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[torch.Tensor]]]:
    """The gradients of the last step, by rank and hook."""
    return values(on_ranks(WORLD_SIZE, tmp_path_factory.mktemp("training"), _train))


@pytest.mark.parametrize("name", HOOKS)
def test_hook_in_torchs_training(name: str, gradients: list[dict[str, list[torch.Tensor]]]) -> None:
    """With torch's bucket, rebuilt and several at once, the hooks give what they say."""
    own = [rank["noop_hook"] for rank in gradients]
    for number, found in enumerate(zip(*(rank[name] for rank in gradients), strict=True)):
        if name == "noop_hook":
            assert not torch.equal(*found)
            continue
        assert torch.equal(*found), "the ranks disagree"
        mean = torch.stack([rank[number] for rank in own]).mean(0)
        scale = torch.stack([rank[number] for rank in own]).abs().mean(0)
        assert ((found[0] - mean).abs() <= TOLERANCE[name[:4]] * scale + 1e-6).all()
