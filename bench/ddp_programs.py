"""What a rank runs to time data-parallel training: several implementations in turn, in one process group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from commhooks.adapters import TorchAdapter
from commhooks.adapters.loading import load
from commhooks.bench.programs import sharing


def time_steps(
    adapter: TorchAdapter, implementations: Sequence[str], model: str, options: dict[str, Any], rounds: int
) -> dict[str, Any]:
    """Takes steps of forward and backward under each implementation in turn, with its allreduce_hook.

    Args:
        adapter: The adapter that has joined the process group, which all implementations use.
        implementations: Texts of ``--impl``.
        model: "mlp" or "convolutions".
        options: Arguments of DistributedDataParallel.
        rounds: How many steps of each implementation, after three that do not count.

    Returns:
        For each implementation and step: ``seconds`` that it took, ``alone`` without communication, ``communication``:
        the seconds during which a collective was under way, summed over the buckets, and ``hidden``: those of them
        before the last gradient was there.
    """
    others = [sharing(load(text), adapter) for text in implementations]
    timed = [_Timed(other, adapter, model, options) for other in others]
    for number in range(rounds + 3):
        for one in timed:
            one.step(counts=number >= 3)
    found = ("seconds", "alone", "communication", "hidden")
    return {name: [getattr(one, name) for one in timed] for name in found}


class _Timed:
    """A model under data-parallel training whose steps are timed."""

    def __init__(
        self, implementation: TorchAdapter, adapter: TorchAdapter, model: str, options: dict[str, Any]
    ) -> None:
        import torch

        self._adapter = adapter
        torch.manual_seed(0)
        made, self._x = _model(model)
        self._wrapped = implementation.data_parallel(made, 60.0, **options)
        self._wrapped.register_comm_hook(None, self._noting(implementation.hook("allreduce_hook")))
        for parameter in made.parameters():
            parameter.register_hook(self._note_gradient)
        self._last_gradient = 0.0
        self._spans: list[list[float]] = []
        self.seconds: list[float] = []
        self.alone: list[float] = []
        self.communication: list[float] = []
        self.hidden: list[float] = []

    def step(self, counts: bool) -> None:
        """One step without communication, and one with it."""
        with self._wrapped.no_sync():
            alone = self._forward_and_backward()
        self._spans.clear()
        elapsed = self._forward_and_backward()
        if not counts:
            return
        self.alone.append(alone)
        self.seconds.append(elapsed)
        self.communication.append(sum(end - start for start, end in self._spans))
        self.hidden.append(sum(max(0.0, min(end, self._last_gradient) - start) for start, end in self._spans))

    def _forward_and_backward(self) -> float:
        for parameter in self._wrapped.parameters():
            parameter.grad = None
        self._adapter.barrier()
        started = time.perf_counter()
        self._wrapped(self._x).square().mean().backward()
        return time.perf_counter() - started

    def _note_gradient(self, _: object) -> None:
        self._last_gradient = time.perf_counter()

    def _noting(self, hook: Any) -> Any:
        def noting(state: object, bucket: Any) -> Any:
            span = [time.perf_counter(), 0.0]
            self._spans.append(span)

            def done(future: Any) -> Any:
                span[1] = time.perf_counter()
                return future.value()

            return hook(state, bucket).then(done)

        noting.__annotations__ = {}
        return noting


def _model(name: str) -> tuple[Any, Any]:
    """A model and a batch: an MLP of 25 MiB, or a small convolutional net."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    if name == "mlp":
        for _ in range(4):
            layers += [nn.Linear(1280, 1280), nn.ReLU()]
        return nn.Sequential(*layers), torch.randn(32, 1280)
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 26 * 26, 10)), torch.randn(8, 3, 32, 32)
