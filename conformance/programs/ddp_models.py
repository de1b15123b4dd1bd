"""Small models of every kind, whose weights, inputs and gradients are whole numbers, so that no rounding can hide."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from commhooks.adapters import Adapter
from commhooks.adapters.adapter import Array

T = TypeVar("T")


def flat_gradients(adapter: Adapter[T], model: Any, x: Any, forward: Any = None) -> Array:
    """The gradients of all parameters after one pass, flat, complex numbers as pairs; ``forward`` runs the model."""
    torch = adapter.framework()
    for parameter in model.parameters():
        parameter.grad = None
    output = (forward or model)(x)
    (torch.view_as_real(output) if output.is_complex() else output).double().sum().backward()
    flat = []
    for parameter in model.parameters():
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        flat.append(adapter.array(gradient).reshape(-1).astype(np.float64))
    return np.concatenate(flat)


def in_double(torch: Any, model: Any) -> Any:
    """The same model in float64 or complex128."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.complex128 if parameter.is_complex() else torch.float64)
    return model


def make_model(torch: Any, name: str) -> Any:
    """A small model; its parameters are whole numbers from -1 to 1."""
    nn = torch.nn

    class Embedded(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            # A bag of one row each gives the same as an embedding.
            kind = nn.EmbeddingBag if "bag" in name else nn.Embedding
            self.embedding = kind(12, 4, sparse="sparse" in name, **({"mode": "sum"} if "bag" in name else {}))
            self.linear = nn.Linear(4, 12)
            if name == "tied embedding":
                self.linear.weight = self.embedding.weight
            self.other = nn.Embedding(12, 4, sparse="sparse" in name) if "two" in name else None

        def forward(self, rows: Any) -> Any:
            found = self.embedding(rows.reshape(-1, 1) if "bag" in name else rows)
            return self.linear(found if self.other is None else found + self.other(rows))

    class OddShapes(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.empty = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(0, 4))
            self.transposed = nn.Parameter(torch.ones(3, 5).t())

        def forward(self, x: Any) -> Any:
            return _like(x, self.scale) @ self.transposed * self.scale + self.empty.sum()

    class Complex(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 3, dtype=torch.complex64))

        def forward(self, x: Any) -> Any:
            x = _like(x, self.weight)
            return (x * 1j + x * x) @ self.weight

    class Stack(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, *layers: Any) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                parameter = next(layer.parameters(), None)
                x = layer(x if parameter is None else _like(x, parameter))
            return x

    def _like(x: Any, parameter: Any) -> Any:
        return x.to(parameter.dtype)

    def mlp(*dtypes: str) -> Any:
        layers = [nn.Linear(5, 6), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2)]
        kinds = [getattr(torch, dtypes[number % len(dtypes)]) for number in range(len(layers))]
        return Stack(*(layer.to(device="cpu", dtype=kind) for layer, kind in zip(layers, kinds, strict=True)))

    def conv() -> Any:
        return Stack(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Flatten(), nn.Linear(3, 2))

    makers = {
        "mlp": lambda: mlp("float32"),
        "mixed dtypes": lambda: mlp("float32", "float64", "float64", "float16", "bfloat16"),
        "convolutions": conv,
        "channels_last": lambda: conv().to(memory_format=torch.channels_last),
        "embedding": Embedded,
        "sparse embedding": Embedded,
        "two embeddings": Embedded,
        "two sparse embeddings": Embedded,
        "embedding bag": Embedded,
        "sparse embedding bag": Embedded,
        "tied embedding": Embedded,
        "no dimension, no elements": OddShapes,
        "complex": Complex,
    }
    model = makers[name]()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            numbers = torch.tensor((np.arange(parameter.numel()) * 5 + number) % 7 % 3 - 1.0)
            parameter.copy_(numbers.reshape(parameter.shape))
    return model


def make_inputs(torch: Any, name: str, step: int, rank: int) -> Any:
    """Three examples: whole numbers that differ by step and rank."""
    generator = np.random.default_rng([step, rank])
    if "embedding" in name:
        return torch.tensor(generator.integers(0, 12, 3))
    shape = (3, 2, 3, 3) if name in ("convolutions", "channels_last") else (3, 5)
    x = torch.tensor(generator.integers(-1, 2, shape).astype(np.float64))
    return x.contiguous(memory_format=torch.channels_last) if name == "channels_last" else x
