"""What the conformance suite cannot see of the PowerSGD reference: constructor errors, pickles, real training."""

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commhooks.reference import GradBucket, fp16_compress_wrapper
from commhooks.reference.low_rank import Memory
from commhooks.reference.powersgd import PowerSGDState, batched_powerSGD_hook, powerSGD_hook

RANKS = 2
STEPS = 5
SHAPES = [(24, 16), (16,), (24, 16), (12, 4, 3), (), (0, 3)]

Hook = Callable[..., torch.futures.Future[torch.Tensor]]


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("process_group", "world", TypeError),
        ("matrix_approximation_rank", 0, ValueError),
        ("matrix_approximation_rank", 1.0, TypeError),
        ("start_powerSGD_iter", -1, ValueError),
        ("start_powerSGD_iter", 1, ValueError),
        ("start_powerSGD_iter", True, TypeError),
        ("min_compression_rate", -0.5, ValueError),
        ("min_compression_rate", float("nan"), ValueError),
        ("min_compression_rate", "2", TypeError),
        ("use_error_feedback", 1, TypeError),
        ("warm_start", None, TypeError),
        ("orthogonalization_epsilon", -1e-8, ValueError),
        ("orthogonalization_epsilon", float("inf"), ValueError),
        ("random_seed", -1, ValueError),
        ("random_seed", 0.5, TypeError),
        ("compression_stats_logging_frequency", 0, ValueError),
        ("batch_tensors_with_same_shape", 0, TypeError),
    ],
)
def test_wrong_argument_is_refused_by_name(argument: str, value: object, error: type[Exception]) -> None:
    """A wrong argument raises the right kind of error, which says its name and what was found."""
    found = type(value).__name__ if error is TypeError else str(value)
    with pytest.raises(error, match=rf"^{argument} must be .*, got {found}$"):
        PowerSGDState(**{"process_group": None, argument: value})


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("hook", [powerSGD_hook, batched_powerSGD_hook])
@pytest.mark.parametrize("warm_start", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_resumed_run_equals_unbroken_run(hook: Hook, warm_start: bool, dtype: torch.dtype) -> None:
    """A state that was pickled in mid-run goes on with the same bits, and has the default process group."""
    unbroken = PowerSGDState(dist.group.WORLD, 2, start_powerSGD_iter=2, warm_start=warm_start)
    for step in range(4):
        hook(unbroken, _bucket(step, dtype)).wait()

    resumed = pickle.loads(pickle.dumps(unbroken))

    assert "process_group" not in unbroken.__getstate__()
    assert resumed.process_group is dist.group.WORLD
    assert resumed.compression_stats() == unbroken.compression_stats()
    for step in range(4, 7):
        expected = hook(unbroken, _bucket(step, dtype)).wait()
        assert torch.equal(hook(resumed, _bucket(step, dtype)).wait(), expected)


@pytest.mark.usefixtures("one_rank")
def test_error_follows_the_dtype_of_the_bucket() -> None:
    """A bucket that comes in another dtype than before, without and with a wrapper, keeps its error."""
    state = PowerSGDState(None, start_powerSGD_iter=2)
    for step in range(3):
        powerSGD_hook(state, _bucket(step)).wait()
    owed = state._memories[0].errors.clone()

    result = fp16_compress_wrapper(powerSGD_hook)(state, _bucket(3, scale=0.0)).wait()

    assert state._memories[0].errors.dtype == torch.float16
    assert result.dtype == torch.float32
    matrices = [result[:384], result[400:784], result[784:928]]
    left = state._memories[0].errors.float()
    # In the order of the memory, which has the matrices sorted by their shape.
    torch.testing.assert_close(torch.cat([matrices[2], *matrices[:2]]) + left, owed, atol=4e-3, rtol=4e-3)


@pytest.mark.usefixtures("one_rank")
def test_memory_is_reset_when_the_layout_changes() -> None:
    """A bucket with other shapes, or the same in another order, starts without error and with a new Q."""
    state = PowerSGDState(None, start_powerSGD_iter=2)
    for step in range(4):
        powerSGD_hook(state, _bucket(step)).wait()
    buffer = _bucket(4).buffer()

    fresh = copy.copy(state)
    fresh._memories = {0: Memory(layout=[], rng=copy.deepcopy(state._memories[0].rng))}
    expected = powerSGD_hook(fresh, GradBucket(0, buffer.clone(), SHAPES[::-1], is_last=True)).wait()
    result = powerSGD_hook(state, GradBucket(0, buffer.clone(), SHAPES[::-1], is_last=True)).wait()

    assert torch.equal(result, expected)
    assert state._memories[0].errors.abs().max() > 0


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("hook", [powerSGD_hook, batched_powerSGD_hook])
def test_unsupported_dtype_is_refused(hook: Hook) -> None:
    """A complex bucket is refused in the first step, not only when compression starts."""
    bucket = GradBucket(0, torch.zeros(4, dtype=torch.complex64), [(2, 2)], is_last=True)
    with pytest.raises(TypeError, match=r"float16.*got torch\.complex64"):
        hook(PowerSGDState(None), bucket)


def test_real_training(tmp_path: Path) -> None:
    """The hooks run in real data-parallel training with several buckets, and give the right gradients."""
    assert values(on_ranks(RANKS, tmp_path, _train_on_rank)) == [None] * RANKS


def _bucket(step: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> GradBucket:
    generator = torch.Generator().manual_seed(step)
    numel = sum(torch.Size(shape).numel() for shape in SHAPES)
    buffer = scale * torch.randn(numel, generator=generator)
    return GradBucket(0, buffer.to(dtype), SHAPES, is_last=True)


def _perceptron() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(4)])


def _convolutions() -> nn.Module:
    layers = [nn.Conv2d(4, 16, 3), nn.ReLU(), nn.ConvTranspose2d(16, 4, 3), nn.Flatten(), nn.Linear(256, 16)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _train(model: nn.Module, inputs: torch.Tensor, hook: Hook, tolerance: float) -> None:
    """Runs STEPS steps with full approximation rank, so that each gradient has to be the mean."""
    state = PowerSGDState(None, 1000, start_powerSGD_iter=2, min_compression_rate=1e-6)
    # So small a cap gives each large parameter a bucket of its own.
    parallel = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.005)
    calls = []

    def counted_hook(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        calls.append(bucket.index())
        return hook(state, bucket)

    parallel.register_comm_hook(state, counted_hook)
    for step in range(STEPS):
        for trained in (model, parallel):
            trained.zero_grad()
            trained(inputs + step).square().mean().backward()
        for mean, averaged in zip(_gradients(model), _gradients(parallel), strict=True):
            dist.all_reduce(mean.div_(RANKS))
            difference = (averaged - mean).abs().max()
            assert difference <= tolerance * mean.abs().max(), f"step {step}: {difference}"
    assert state.iter == STEPS
    assert max(calls) > 0, "one bucket only"


def _train_on_rank(rank: int, world: int) -> None:
    torch.manual_seed(0)
    perceptron, convolutions = _perceptron(), _convolutions()
    torch.manual_seed(rank)
    for hook, tolerance in [
        (powerSGD_hook, 1e-4),
        (batched_powerSGD_hook, 1e-4),
        (fp16_compress_wrapper(powerSGD_hook), 2e-2),
    ]:
        _train(perceptron, torch.randn(32, 64), hook, tolerance)
        _train(convolutions, torch.randn(8, 4, 8, 8), hook, tolerance)
    # Registration looks at the annotations of the hook itself.
    parallel = DistributedDataParallel(perceptron)
    parallel.register_comm_hook(PowerSGDState(None), powerSGD_hook)
