"""The laboratory under DistributedDataParallel."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from lab_hooks import RIGHT
from lab_ranks import on_ranks, values
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from commhooks.conformance import lab
from commhooks.conformance.lab import Log, Options


def model(width: int = 16) -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 8))
    return DistributedDataParallel(layers, bucket_cap_mb=0.0003 * width / 16)


def train(ddp: DistributedDataParallel, rank: int, steps: int = 3) -> torch.Tensor:
    """The gradients of some steps, whose first rebuilds the buckets."""
    found = []
    for step in range(steps):
        ddp.zero_grad()
        ddp(torch.full((4, 8), 1.0 + rank + step) + torch.eye(4, 8)).square().sum().backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in ddp.parameters()]).clone())
    return torch.stack(found)


def compare_ddp(rank: int, world: int) -> list[str]:
    with lab.session(Options()):
        expected = train(model(), rank)
    complaints = []
    for seed, (name, hook) in itertools.product(range(2), {"no hook": None, **RIGHT}.items()):
        if "wrapper" in name:
            continue  # torch's bucket does not take the reference's bucket methods back in a callback on every version
        with lab.session(Options.drawn(seed)) as session:
            ddp = model()
            if hook is not None:
                ddp.register_comm_hook(None, hook)
            gradients = train(ddp, rank)
        if not torch.allclose(gradients, expected, rtol=5e-3, atol=2e-2) or session.log.findings:
            complaints.append(f"{name} {seed}: {session.log.findings} {(gradients - expected).abs().max()}")
        if len([entry for entry in session.log.entries if entry.operation.startswith("all")]) < 5:
            complaints.append(f"{name} has fewer than two buckets: {session.log.entries}")
    return complaints


def test_ddp(tmp_path: Path) -> None:
    """DistributedDataParallel works, with and without hooks, with buffers and rebuilt buckets."""
    assert values(on_ranks(2, tmp_path, compare_ddp)) == [[], []]


def fail_in_ddp(rank: int, world: int, hook) -> str:  # type: ignore[no-untyped-def]
    ddp = model()
    ddp.register_comm_hook(None, hook)
    with lab.session(Options(fail_at=2, fail_rank=1)):
        try:
            train(ddp, rank, steps=1)
        except RuntimeError as error:
            return str(error)
    return "ended well"


def test_a_failing_collective_surfaces_in_backward(tmp_path: Path) -> None:
    """The error of a collective reaches the caller of backward, on the rank where it failed."""
    first, second = values(on_ranks(2, tmp_path, fail_in_ddp, default_hooks.allreduce_hook))
    assert first == "ended well"
    assert "the laboratory lets number 2, allreduce sum" in second


def train_with_power_sgd(rank: int, world: int, options: Options) -> tuple[Log, str]:
    ddp = model(64)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    error = ""
    try:
        with lab.session(options):
            try:
                train(ddp, rank, steps=4)
            except RuntimeError as failure:
                error = str(failure)
            return lab.log(), error
    except TimeoutError:
        return lab.log(), error


def test_torch_power_sgd_blocks_in_callbacks(tmp_path: Path) -> None:
    """The log says why torch's powerSGD_hook fails with two buckets: its callbacks wait for further collectives."""
    options = Options(callback_threads="one", deadlock_after=0.3, patience=5.0)
    for log, error in values(on_ranks(2, tmp_path, train_with_power_sgd, options)):
        assert any("powerSGD_hook.py:" in text for text in log.found(lab.BLOCKS)), (log, error)
        assert log.found(lab.DEADLOCK) or error
        assert error
