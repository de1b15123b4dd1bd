"""Hooks that give back what they should not, or raise, in data-parallel training."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from commhooks.adapters import Adapter

T = TypeVar("T")
Record = dict[str, Any]


def give_back(
    adapter: Adapter[T], what: str, at_step: int = 0, only_rank: int | None = None, seconds: float = 5.0
) -> Record:
    """Trains a model of 12 parameters with a hook that gives back something else at one step, and one step more.

    Args:
        adapter: The implementation.
        what: What it gives back: see ``_wrong``. What is a tensor has the values 1 to 12.
        at_step: The step; before it the hook gives its buffer back.
        only_rank: On other ranks the hook averages in that step, over a process group with a time limit.
        seconds: How long the wrapper may wait for a result, and that process group for a collective.

    Returns:
        ``error`` and ``text``: of what was raised in the backward pass, or empty texts; ``seconds``: how long that
        pass took; ``gradient``: the values after it; ``next_error`` and ``next_text``: the same of the step after it,
        in which the hook gives its buffer back; ``next_gradient``, of which the rank's own is 5.
    """
    torch = adapter.framework()
    place = adapter.place
    group = torch.distributed.new_group(list(range(place.world_size)), timeout=timedelta(seconds=seconds))
    everyone = adapter.group(range(place.world_size))
    step = 0

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        buffer = bucket.buffer()
        if step == at_step and only_rank in (None, place.rank):
            return _wrong(adapter, torch, what, buffer, everyone)
        if step == at_step:
            work = torch.distributed.all_reduce(buffer.div_(place.world_size), group=group, async_op=True)
            return work.get_future().then(lambda done: done.value()[0])
        return adapter.completed(buffer)

    hook.__annotations__ = {}
    layer = torch.nn.Linear(4, 3, bias=False)
    model = adapter.data_parallel(layer, seconds, process_group=everyone)
    model.register_comm_hook(None, hook)
    outcomes: list[dict[str, Any]] = []
    for number in range(at_step + 2):
        step = number
        started = time.perf_counter()
        error = ["", ""]
        try:
            layer.weight.grad = None
            model(torch.full((1, 4), 5.0, device=adapter.device)).sum().backward()
        except Exception as raised:
            error = [type(raised).__name__, str(raised)]
            if number < at_step:
                raise
        gradient = np.zeros(0) if layer.weight.grad is None else adapter.array(layer.weight.grad).reshape(-1)
        outcomes.append({"error": error, "seconds": time.perf_counter() - started, "gradient": gradient})
    failing, following = outcomes[-2:]
    return {
        "error": failing["error"][0],
        "text": failing["error"][1],
        "gradient": failing["gradient"],
        "seconds": failing["seconds"],
        "next_error": following["error"][0],
        "next_text": following["error"][1],
        "next_gradient": following["gradient"],
    }


def meet(adapter: Adapter[T]) -> None:
    """Meets the other ranks, which shows how busy the machine is."""
    adapter.barrier()


def _wrong(adapter: Adapter[T], torch: Any, what: str, buffer: Any, group: Any) -> Any:
    """What a hook gives back, or raises."""
    numbers = torch.arange(1.0, 13.0, device=buffer.device)
    if what == "raises":
        raise LookupError("the hook's own text")
    if what == "set_exception":
        failed = torch.futures.Future()
        failed.set_exception(LookupError("the future's own text"))
        return failed
    if what == "raises in then":
        completed: Any = adapter.completed(buffer)
        return completed.then(_raise_in_callback)
    if what == "never completes":
        return torch.futures.Future()
    if what == "future of a collective":
        return torch.distributed.all_reduce(buffer, group=group, async_op=True).get_future()
    values: dict[str, Callable[[], Any]] = {
        "None": lambda: None,
        "a tensor": lambda: buffer,
        "a number": lambda: 7,
        "text": lambda: "text",
        "future of a list": lambda: [numbers],
        "future of a tuple": lambda: (numbers,),
        "future of a number": lambda: 7,
        "shorter": lambda: numbers[:9].clone(),
        "shorter view of the buffer": lambda: buffer[:9],
        "longer": lambda: torch.arange(1.0, 20.0, device=buffer.device),
        "half": lambda: numbers.half(),
        "double": lambda: numbers.double(),
        "int64": lambda: numbers.long(),
        "two dimensions": lambda: numbers.reshape(3, 4),
        "not contiguous": lambda: torch.stack([numbers, numbers + 100], 1).reshape(-1)[::2],
        "with an offset": lambda: torch.cat([numbers + 100, numbers])[12:],
    }
    if what in ("None", "a tensor", "a number", "text"):
        return values[what]()
    future = torch.futures.Future()
    future.set_result(None if what == "future of None" else values[what]())
    return future


def _raise_in_callback(future: Any) -> Any:
    raise LookupError("the callback's own text")
