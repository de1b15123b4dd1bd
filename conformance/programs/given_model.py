"""A model whose gradients are given as numbers, and what is noted of its buckets and gradients.

The model's output is the sum over its parameters of parameter times given number; so the local gradient of each
parameter is what was given, bit for bit, in any dtype, and becomes ready in an order that can be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from commhooks.adapters import Adapter
from commhooks.adapters.adapter import Array

T = TypeVar("T")
Record = dict[str, Any]


def given_model(
    adapter: Adapter[T],
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str],
    channels_last: bool,
    frozen: Sequence[int],
    buffers: Array | None,
    start: Sequence[Array],
) -> Any:
    torch = adapter.framework()

    class Given(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            for place, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
                values = torch.ones(tuple(shape), dtype=getattr(torch, dtype))
                if start:
                    values = torch.tensor(start[place], dtype=values.dtype).reshape(tuple(shape))
                if channels_last and len(shape) == 4:
                    values = values.contiguous(memory_format=torch.channels_last)
                setattr(self, f"w{place}", torch.nn.Parameter(values, requires_grad=place not in frozen))
            if buffers is not None:
                # As in most models, some are those of a part of it, and one is not saved.
                self.register_buffer("shift", torch.tensor(buffers))
                self.part = torch.nn.Module()
                self.part.register_buffer("shift", torch.tensor(buffers))
                self.part.register_buffer("unsaved", torch.tensor(buffers), persistent=False)

        def forward(self, given: Sequence[Any], order: Sequence[int]) -> Any:
            total = sum(self.buffers(), torch.zeros((), dtype=torch.float64)).sum()
            # The backward pass takes the terms in the opposite order.
            for place in reversed(order):
                if given[place] is not None:
                    weight = getattr(self, f"w{place}")
                    term = (weight * given[place].conj()).sum()
                    total = total + (term.real if term.is_complex() else term).double()
            return total

    return Given()


def note_ready(record: Record, parameters: Sequence[Any]) -> None:
    for place, parameter in enumerate(parameters):
        if parameter.requires_grad:
            parameter.register_hook(lambda _, place=place: record["courses"][-1].append(f"gradient {place}"))


def note_bucket(
    adapter: Adapter[T], bucket: Any, places: Mapping[int, int], number: int, contents: bool, same_state: bool
) -> Record:
    """What a hook can ask a bucket; ``parameters``: their places in the model, -1 for a strange one.

    ``views`` says whether the gradient of each parameter is in the memory of the buffer.
    """
    buffer = bucket.buffer()
    parameters = bucket.parameters()
    record: Record = {
        "model": number,
        "index": bucket.index(),
        "is_last": bucket.is_last(),
        "numel": int(buffer.numel()),
        "bytes": int(buffer.numel() * buffer.element_size()),
        "dtype": str(buffer.dtype).rpartition(".")[2],
        "parameters": [places.get(id(parameter), -1) for parameter in parameters],
        "same_state": same_state,
        "records": bool(adapter.framework().is_grad_enabled()),
        "views": [lies_inside(parameter.grad, buffer) for parameter in parameters],
    }
    if contents:
        record["buffer"] = flat_values(adapter, buffer)
        record["gradients"] = [flat_values(adapter, one) for one in bucket.gradients()]
    return record


def lies_inside(gradient: Any, buffer: Any) -> bool:
    if gradient is None or gradient.is_sparse or buffer.is_sparse:
        return False
    start = buffer.data_ptr()
    return bool(start <= gradient.data_ptr() < start + max(1, buffer.numel()) * buffer.element_size())


def note_gradients(adapter: Adapter[T], parameters: Sequence[Any]) -> list[Record]:
    """Of each parameter ``values`` (None without a gradient), ``stride``, ``own_stride`` and ``dtype``."""
    return [
        {
            "values": None if one.grad is None else flat_values(adapter, one.grad),
            "stride": [] if one.grad is None else list(one.grad.stride()),
            "own_stride": list(one.stride()),
            "dtype": "" if one.grad is None else str(one.grad.dtype).rpartition(".")[2],
        }
        for one in parameters
    ]


def flat_values(adapter: Adapter[T], tensor: Any) -> Array:
    """Row-major and flat; complex numbers as pairs."""
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = adapter.framework().view_as_real(tensor.detach().clone().resolve_conj().contiguous())
    return np.asarray(adapter.array(tensor)).reshape(-1)


def tensor_like(adapter: Adapter[T], values: Array, parameter: Any) -> Any:
    """A tensor like the parameter, or one number for all its elements; complex numbers come as pairs."""
    torch = adapter.framework()
    made = torch.tensor(np.asarray(values), device=parameter.device)
    if parameter.is_complex():
        return torch.view_as_complex(made.double().reshape(*parameter.shape, 2)).to(parameter.dtype)
    return made.reshape(parameter.shape if made.ndim else ()).to(parameter.dtype)
