"""What is left of data-parallel training: after a step, and when its wrapper is dropped."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar

from commhooks.adapters import Adapter
from commhooks.conformance.programs.memory import heap_in_use

T = TypeVar("T")
Record = dict[str, Any]


def memory_left(
    adapter: Adapter[T], hook: str, width: int, steps: int, allowed: int, state: Mapping[str, Any] | None = None
) -> int | None:
    """Trains a square matrix with a hook, and notes what is in use after the last step, when the gradient is dropped.

    Args:
        adapter: The implementation.
        hook: A hook's expression.
        width: Rows of the matrix, which is the model's one parameter.
        steps: How many steps.
        allowed: Bytes that may be left. Threads of the process group may let go of a tensor a little after the step, so
            more than that is looked at again for a while.
        state: Arguments of PowerSGDState, where that is the hook's state.

    Returns:
        How many bytes more are in use than before the model was made, the least of some trials; None where the system
        does not tell.
    """
    torch = adapter.framework()
    group = adapter.group(range(adapter.place.world_size))
    called = adapter.hook(hook)
    make: Any = adapter.named("PowerSGDState") if state is not None else None
    x = torch.ones(1, width, device=adapter.device)

    def noting(state, bucket):  # type: ignore[no-untyped-def]
        return called(state, bucket)

    noting.__annotations__ = {}

    def in_use() -> int:
        gc.collect()
        return (heap_in_use() or 0) + adapter.device_memory()

    def grown(looks: int) -> int:
        before = in_use()
        layer = torch.nn.Linear(width, width, bias=False)
        wrapped = adapter.data_parallel(layer, 10.0, process_group=group)
        wrapped.register_comm_hook(adapter.state(hook, group) if state is None else make(group, **state), noting)
        for _ in range(steps):
            wrapped(x).sum().backward()
            layer.weight.grad = None
        while (found := in_use() - before) > allowed and looks > 0:
            looks -= 1
            time.sleep(0.01)
        return found

    if heap_in_use() is None:
        return None
    gc.freeze()  # what was there before needs no second look, which would take longer than the steps
    try:
        # The first one also pays for what is made once, and any for what a library keeps by thread: which thread runs
        # a callback is chance, and gloo has two. What a hook does not let go is left by each.
        grown(looks=0)
        return min(grown(looks=50) for _ in range(3))
    finally:
        gc.unfreeze()
        adapter.barrier()


def drop_the_wrapper(adapter: Adapter[T]) -> Record:
    """Trains three steps with a hook, drops the wrapper, and trains the model one step more on its own.

    Returns:
        ``alive``: what of the wrapper, the hook and its state is still there. ``gradient``: of the last step, of which
        the rank's own is 1 + rank. ``calls``: of the hook in it.
    """
    torch = adapter.framework()

    class State:
        calls = 0

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        State.calls += 1
        return adapter.completed(bucket.buffer().zero_())

    hook.__annotations__ = {}
    layer = torch.nn.Linear(3, 2, bias=False).to(adapter.device)
    state = State()
    group = adapter.group(range(adapter.place.world_size))
    model = adapter.data_parallel(layer, 5.0, process_group=group)
    model.register_comm_hook(state, hook)
    for _ in range(3):
        model(torch.ones(1, 3, device=adapter.device)).sum().backward()
    dropped = {"wrapper": weakref.ref(model), "hook": weakref.ref(hook), "state": weakref.ref(state)}
    del model, hook, state
    gc.collect()
    before = State.calls
    layer.weight.grad = None
    layer(torch.full((1, 3), 1.0 + adapter.place.rank, device=adapter.device)).sum().backward()
    return {
        "alive": [name for name, reference in dropped.items() if reference() is not None],
        "gradient": adapter.array(layer.weight.grad).reshape(-1),
        "calls": State.calls - before,
    }
