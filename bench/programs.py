"""What a rank runs to time hooks: several implementations in turn, in one process group."""

from __future__ import annotations

import contextlib
import ctypes
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commhooks.adapters import TorchAdapter
from commhooks.adapters.loading import load


def time_hooks(
    adapter: TorchAdapter,
    implementations: Sequence[str],
    hook: str,
    dtype: str,
    shapes: Sequence[Sequence[int]],
    rounds: int,
    warm_up: int = 1,
    powersgd: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Calls a hook of each implementation in turn, on a bucket of random numbers, and times each call to its result.

    Args:
        adapter: The adapter that has joined the process group, which all implementations use.
        implementations: Texts of ``--impl``.
        hook: A hook's name, or an expression with wrappers.
        dtype: dtype of the bucket.
        shapes: Shapes of the bucket's parameters.
        rounds: How often each implementation is called, after ``warm_up`` calls that do not count.
        warm_up: Calls that do not count.
        powersgd: Settings of the PowerSGDState that the hook is called with; None calls it without a state.

    Returns:
        ``seconds``: for each implementation the seconds of each call. ``memory``: for each the most bytes that the
        rank's resident memory grew by during a call, or -1 where the system does not tell.
    """
    others = [sharing(load(text), adapter) for text in implementations]
    numel = sum(math.prod(shape) for shape in shapes)
    values = np.random.default_rng(adapter.place.rank).standard_normal(numel, dtype=np.float32)
    hooks = [other.hook(hook) for other in others]
    states = [_state(other, powersgd) for other in others]
    buckets = [other.bucket(0, values, [other.parameter(shape, dtype) for shape in shapes], True) for other in others]
    own = [bucket.buffer() for bucket in buckets]
    seconds: list[list[float]] = [[] for _ in others]
    memory = [-1 for _ in others]
    for round_number in range(warm_up + rounds):
        for number, other in enumerate(others):
            # A wrapper may have left its copy in the bucket.
            buckets[number].set_buffer(own[number])
            other.write(own[number], values)
            adapter.barrier()
            before = _reset_peak()
            started = time.perf_counter()
            other.wait(hooks[number](states[number], buckets[number]))
            elapsed = time.perf_counter() - started
            if round_number >= warm_up:
                seconds[number].append(elapsed)
                memory[number] = max(memory[number], _peak() - before) if before >= 0 else -1
    return {"seconds": seconds, "memory": memory, "median": [statistics.median(calls) for calls in seconds]}


def _state(adapter: TorchAdapter, settings: Mapping[str, Any] | None) -> object:
    if settings is None:
        return None
    make: Callable[..., object] = adapter.named("PowerSGDState")  # type: ignore[assignment]
    return make(None, **settings)


def sharing(other: Any, adapter: TorchAdapter) -> TorchAdapter:
    """Another adapter in the rank and process group that one has joined."""
    if not isinstance(other, TorchAdapter):
        raise TypeError(f"{type(other).__name__} does not use torch, so it cannot share its process group")
    other.place, other.device = adapter.place, adapter.device
    return other


def _reset_peak() -> int:
    """Resets the peak of resident memory and gives the present size in bytes; -1 where there is no /proc.

    What earlier calls freed is given back to the system first, or the next call would take it without growing.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return -1
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return -1
