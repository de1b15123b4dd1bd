"""Asking a bucket everything its six methods can tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from commhooks.adapters import Adapter
from commhooks.adapters.adapter import Array

T = TypeVar("T")
Record = dict[str, object]


def examine_bucket(
    adapter: Adapter[T],
    dtype: str,
    shapes: Sequence[Sequence[int]],
    values: Array,
    index: int = 0,
    is_last: bool = True,
    channels_last: bool = False,
) -> Record:
    """Builds a bucket, calls its methods that change nothing, and then writes to its tensors.

    Returns:
        ``index`` and ``is_last``, as noted by ``_note_value``; ``buffer``, the facts and values of buffer();
        ``same_memory``, whether a second call of buffer() gives the same memory; ``gradients``, a list of facts and
        values; ``own_parameters``, whether parameters() has the very objects in order; ``parameter_strides``;
        ``written_to_gradients``, the buffer's values after number 100 + i was written to gradient i;
        ``written_to_buffer``, the gradients' values after ``values`` was written to the buffer again.
    """
    parameters = [adapter.parameter(shape, dtype, channels_last) for shape in shapes]
    bucket = adapter.bucket(index, values, parameters, is_last)
    record: Record = {"index": _note_value(bucket.index()), "is_last": _note_value(bucket.is_last())}
    buffer = bucket.buffer()
    record["buffer"] = note_tensor(adapter, buffer)
    record["same_memory"] = adapter.facts(bucket.buffer()).address == adapter.facts(buffer).address
    gradients = bucket.gradients()
    record["gradients"] = [note_tensor(adapter, gradient) for gradient in gradients]
    found = bucket.parameters()
    record["own_parameters"] = [one is other for one, other in zip(found, parameters, strict=False)]
    record["parameter_count"] = len(found)
    record["parameter_strides"] = [list(adapter.facts(parameter).stride) for parameter in parameters]

    for number, gradient in enumerate(gradients):
        shape = adapter.facts(gradient).shape
        adapter.write(gradient, np.full(shape, 100.0 + number, np.float32))
    record["written_to_gradients"] = adapter.array(bucket.buffer())
    adapter.write(bucket.buffer(), values)
    record["written_to_buffer"] = [adapter.array(gradient) for gradient in gradients]
    return record


def replace_buffer(
    adapter: Adapter[T], dtype: str, shapes: Sequence[Sequence[int]], values: Array, new_dtype: str
) -> Record:
    """Sets another buffer, of another dtype, with ``values`` negated, and asks for buffer and gradients again.

    Returns:
        ``is_new``, whether buffer() is the memory of the new tensor; ``buffer`` and ``gradients``, their facts and
        values; ``written``, the new tensor's values after number 100 + i was written to gradient i;
        ``old``, the values of the tensor that was replaced.
    """
    bucket = adapter.bucket(0, values, [adapter.parameter(shape, dtype) for shape in shapes], True)
    old = bucket.buffer()
    new = adapter.tensor(np.negative(values), new_dtype)
    bucket.set_buffer(new)
    gradients = bucket.gradients()
    record: Record = {
        "is_new": adapter.facts(bucket.buffer()).address == adapter.facts(new).address,
        "buffer": note_tensor(adapter, bucket.buffer()),
        "gradients": [note_tensor(adapter, gradient) for gradient in gradients],
    }
    for number, gradient in enumerate(gradients):
        adapter.write(gradient, np.full(adapter.facts(gradient).shape, 100.0 + number, np.float32))
    return {**record, "written": adapter.array(new), "old": adapter.array(old)}


def build_wrongly(adapter: Adapter[T], argument: str, wrong: str) -> Record:
    """Calls the bucket's constructor with one wrong argument; ``error`` and ``text`` say what it raised."""
    make: Callable[..., object] = adapter.named("GradBucket")  # type: ignore[assignment]
    flat = adapter.tensor(np.arange(6, dtype=np.float32), "float32")
    square = adapter.tensor(np.arange(6, dtype=np.float32).reshape(2, 3), "float32")
    arguments: dict[str, object] = {
        "index": 0,
        "buffer": flat,
        "parameters": [adapter.parameter([2, 3], "float32")],
        "is_last": True,
    }
    wrong_values: dict[str, object] = {
        "negative": -1,
        "text": "no",
        "a list of numbers": [1.0, 2.0],
        "two dimensions": square,
        "too few elements": [adapter.parameter([5], "float32")],
        "too many elements": [adapter.parameter([2, 3], "float32"), adapter.parameter([1], "float32")],
    }
    try:
        make(**{**arguments, argument: wrong_values[wrong]})
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": "", "text": ""}


def note_tensor(adapter: Adapter[T], tensor: T) -> Record:
    """The facts about a tensor, and its values."""
    facts = adapter.facts(tensor)
    return {
        "dtype": facts.dtype,
        "shape": list(facts.shape),
        "stride": list(facts.stride),
        "contiguous": facts.contiguous,
        "values": adapter.array(tensor),
    }


def _note_value(value: object) -> list[object]:
    """A value that should be a number or a truth value, with the name of its type."""
    return [type(value).__name__, value if isinstance(value, bool | int | float | str) else repr(value)]
