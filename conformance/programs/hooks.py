"""Calling hooks on buckets, and noting everything a check may ask about the call."""

from __future__ import annotations

import hashlib
import pickle
import random
import time
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from commhooks.adapters import Adapter, Bucket
from commhooks.adapters.adapter import Array

T = TypeVar("T")
Record = dict[str, object]


def call_hook(
    adapter: Adapter[T],
    hook: str,
    dtype: str,
    gradients: Sequence[Array],
    shapes: Sequence[Sequence[int]] | None = None,
    group: Sequence[int] | None = None,
    group_as: str = "group",
    absent: bool = False,
    same_bucket: bool = False,
    in_flight: bool = False,
    wait_order: Sequence[int] | None = None,
    one_pass: bool = False,
    late: float = 0.0,
    look_again: bool = False,
    watch_random: bool = False,
) -> Record:
    """Calls a hook once for each of ``gradients`` and notes what it gives back.

    Args:
        adapter: The implementation.
        hook: A hook's name, or an expression with wrappers.
        dtype: dtype of the buckets.
        gradients: The flat buffer of each call.
        shapes: Shapes of the bucket's parameters; one of the buffer's length by default.
        group: Ranks of the process group; all by default.
        group_as: "group" hands the process group to the hook as its state, "none" hands it None.
        absent: This rank makes its bucket but does not call the hook.
        same_bucket: One bucket object serves all calls; before each the gradient is written to the flat tensor that
            the bucket had at first, as data-parallel training does when it keeps its buckets.
        in_flight: All calls are made before any result is waited for.
        one_pass: The buckets are those of one pass, and have indices of their own; so they have when ``in_flight``.
        wait_order: Order in which results are waited for when ``in_flight``; that of the calls by default.
        late: Seconds that this rank waits before its first call, so that its peers' collectives cannot be complete.
        look_again: When every rank is done the tensors are noted again. The same for all ranks.
        watch_random: The global random states are compared.

    Returns:
        ``calls``: one record for each call, see ``_note_result``. With ``look_again`` each has the values of the flat
        tensor that the bucket had at first, ``buffer_then`` when the result was there and ``buffer`` when every rank
        was done, and ``later``, the values of the result when every rank was done. With ``watch_random``
        ``random_untouched``: whether the global random states are as before.
    """
    ranks = list(group) if group is not None else list(range(adapter.place.world_size))
    process_group = adapter.group(ranks)
    state_group = process_group if group_as == "group" else None

    buckets: list[Bucket[T]] = []
    buffers: list[T] = []
    for number, values in enumerate(gradients):
        if same_bucket and buckets:
            buckets.append(buckets[0])
            buffers.append(buffers[0])
            continue
        parameters = [adapter.parameter(shape, dtype) for shape in shapes or [[len(values)]]]
        # Apart from its order, a bucket in flight is like any other; the last one is the last of the pass.
        together = in_flight or one_pass
        last = number == len(gradients) - 1 or not together
        bucket = adapter.bucket(number if together else 0, values, parameters, last)
        buckets.append(bucket)
        buffers.append(bucket.buffer())

    records: list[Record] = [{} for _ in gradients]
    if absent:
        if look_again:
            adapter.barrier()
        return {"calls": [{"buffer": adapter.array(buffer)} for buffer in buffers]}

    called = adapter.hook(hook)
    state = adapter.state(hook, state_group)
    before = ""
    if watch_random:
        # An earlier call of a hook that seeds the generators has left them as the next one would.
        seed = 20_261 + adapter.place.rank
        random.seed(seed)
        np.random.seed(seed)
        adapter.set_random_state(seed)
        before = _random_states(adapter)
    if late:
        time.sleep(late)
    results: list[object] = [None] * len(gradients)
    returned: list[object] = [None] * len(gradients)
    for number, values in enumerate(gradients):
        if same_bucket and number > 0:
            adapter.write(buffers[number], values)
        returned[number] = called(state, buckets[number])
        if not in_flight:
            results[number] = _note_result(adapter, records[number], returned[number], buffers[number])
            if look_again:
                records[number]["buffer_then"] = adapter.array(buffers[number])
            records[number]["buffer_restored"] = _same_memory(adapter, buckets[number].buffer(), buffers[number])
    if in_flight:
        for number in wait_order or range(len(gradients)):
            results[number] = _note_result(adapter, records[number], returned[number], buffers[number])
    found: Record = {"calls": records}
    if watch_random:
        found["random_untouched"] = _random_states(adapter) == before
    if look_again:
        adapter.barrier()
        for record, result, buffer in zip(records, results, buffers, strict=True):
            record["later"] = adapter.array(result) if adapter.is_tensor(result) else None  # type: ignore[arg-type]
            record["buffer"] = adapter.array(buffer)
    return found


def _note_result(adapter: Adapter[T], record: Record, returned: object, buffer: T) -> object:
    """Waits for what a hook returned and notes it; returns the result.

    The record has ``returned``, the type of what the hook returned; ``is_future``; ``value``, the type of the future's
    value; and if that is a tensor: ``dtype``, ``shape``, ``contiguous``, ``storage_offset``, ``is_buffer`` (it is the
    memory of the bucket's buffer) and ``values``.
    """
    record["returned"] = _type_name(returned)
    record["is_future"] = adapter.is_future(returned)
    if not record["is_future"]:
        return None
    value = adapter.wait(returned)
    record["value"] = _type_name(value)
    if not adapter.is_tensor(value):
        return None
    facts = adapter.facts(value)  # type: ignore[arg-type]
    record["dtype"] = facts.dtype
    record["shape"] = list(facts.shape)
    record["contiguous"] = facts.contiguous
    record["storage_offset"] = facts.storage_offset
    record["is_buffer"] = _same_memory(adapter, value, buffer)  # type: ignore[misc]
    record["values"] = adapter.array(value)  # type: ignore[arg-type]
    return value


def look_inside_wrapper(
    adapter: Adapter[T], wrapper: str, dtype: str, gradient: Array, shapes: list[list[int]]
) -> Record:
    """Wraps a hook of ours, and notes what that one sees: its bucket's tensors, and whether the state is the same."""
    seen: Record = {}
    state = object()

    def probe(given_state: object, bucket: Bucket[T]) -> object:
        buffer = bucket.buffer()
        views = bucket.gradients()
        seen["buffer"] = {"dtype": adapter.facts(buffer).dtype, "values": adapter.array(buffer)}
        seen["gradients"] = [
            {
                "dtype": adapter.facts(view).dtype,
                "shape": list(adapter.facts(view).shape),
                "values": adapter.array(view),
            }
            for view in views
        ]
        seen["index"] = bucket.index()
        seen["is_last"] = bucket.is_last()
        seen["same_state"] = given_state is state
        return adapter.completed(buffer)

    parameters = [adapter.parameter(shape, dtype) for shape in shapes]
    bucket = adapter.bucket(0, gradient, parameters, True)
    record: Record = {}
    own_buffer = bucket.buffer()
    returned = adapter.hook(f"{wrapper}(probe)", probe=probe)(state, bucket)
    _note_result(adapter, record, returned, own_buffer)
    return {"seen": seen, "calls": [record]}


def without_hook(adapter: Adapter[T], dtype: str, gradient: Array) -> Record:
    """What the implementation's DistributedDataParallel makes of a gradient when it has no hook."""
    return {"values": adapter.gradient_without_hook(gradient, dtype)}


def _same_memory(adapter: Adapter[T], one: T, other: T) -> bool:
    first, second = adapter.facts(one), adapter.facts(other)
    return (first.address, first.dtype, first.shape) == (second.address, second.dtype, second.shape)


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _random_states(adapter: Adapter[T]) -> str:
    """One digest of the global random states of Python, NumPy and the framework."""
    digest = hashlib.sha256(pickle.dumps(random.getstate()))
    digest.update(pickle.dumps(np.random.get_state()))
    digest.update(adapter.random_state())
    return digest.hexdigest()
