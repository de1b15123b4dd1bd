"""Calling a hook for many steps, and noting how much memory is in use after each."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from typing import TypeVar

from commhooks.adapters import Adapter
from commhooks.adapters.adapter import Array

T = TypeVar("T")


def memory_in_use(
    adapter: Adapter[T], hook: str, dtype: str, values: Array, shape: Sequence[int], stretches: int, steps: int
) -> list[int]:
    """Calls a hook on a fresh bucket in each step of some stretches, and drops the bucket and the result.

    Args:
        adapter: The implementation.
        hook: A hook's name, or an expression with wrappers.
        dtype: dtype of the buckets.
        values: The flat buffer of each step.
        shape: Shape of the bucket's one parameter.
        stretches: Number of stretches.
        steps: Number of steps of each stretch.

    Returns:
        After each stretch the bytes that the process had asked for and not given back, of the rank's device too; empty
        where the system does not tell.
    """
    state = adapter.state(hook, adapter.group(range(adapter.place.world_size)))
    called = adapter.hook(hook)
    found: list[int] = []
    gc.freeze()  # what was there before needs no second look, which would take longer than the steps
    try:
        for _ in range(stretches):
            for _ in range(steps):
                future = called(state, adapter.bucket(0, values, [adapter.parameter(shape, dtype)], True))
                if adapter.is_future(future):
                    adapter.wait(future)
                future = None
            adapter.barrier()
            gc.collect()
            heap = heap_in_use()
            if heap is None:
                return []
            found.append(heap + adapter.device_memory())
    finally:
        gc.unfreeze()
    return found


class _Mallinfo2(ctypes.Structure):
    # The names are those of the GNU C library: bytes in use of the arenas, and of blocks that were mapped alone.
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


def heap_in_use() -> int | None:
    """Bytes that the process has allocated from C, as tensors and arrays are; None without the GNU C library."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)
