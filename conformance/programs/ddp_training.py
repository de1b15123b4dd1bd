"""Real models under data-parallel training, and the same models in one process on the joined batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from commhooks.adapters import Adapter
from commhooks.adapters.adapter import Array

T = TypeVar("T")
Record = dict[str, Any]


def compare_with_one_process(
    adapter: Adapter[T],
    model: str,
    hook: str = "",
    own: bool = False,
    state: Mapping[str, Any] | None = None,
    steps: int = 6,
    options: Mapping[str, Any] | None = None,
) -> Record:
    """Takes gradients of a model for a few steps, on this rank's part of the batch and in float64 on the whole of it.

    All weights and inputs are small whole numbers, so that the gradients are too, and no order of operations matters.

    Args:
        adapter: The implementation.
        model: A name of ``_model``.
        hook: A hook's expression; none by default.
        own: One process gets this rank's part of the batch instead of the whole.
        state: Arguments of PowerSGDState, where that is the hook's state.
        steps: How many steps; the inputs differ by step and rank, and the parameters stay.
        options: Arguments of DistributedDataParallel.

    Returns:
        ``found``: for each step the gradients of all parameters, flat; ``expected``: on rank 0 the same of one process
        on the joined batch, divided by the number of ranks, or with ``own`` on each rank of its own part. If the hook
        is refused at its registration, ``refused`` has type and text of the error, and the lists are empty.
    """
    torch = adapter.framework()
    place = adapter.place
    group = adapter.group(range(place.world_size))
    wrapped = adapter.data_parallel(_model(torch, model), 10.0, process_group=group, **(options or {}))
    record: Record = {"refused": ["", ""], "found": [], "expected": []}
    if hook:
        record["refused"] = _register(adapter, wrapped, hook, group, state)
    if record["refused"][0]:
        return record
    plain = _in_double(torch, _model(torch, model))
    for step in range(steps):
        parts = [_inputs(torch, model, step, rank) for rank in range(place.world_size)]
        record["found"].append(_gradients(adapter, wrapped, parts[place.rank].to(adapter.device)))
        if own:
            record["expected"].append(_gradients(adapter, plain, parts[place.rank]))
        elif place.rank == 0:
            record["expected"].append(np.divide(_gradients(adapter, plain, torch.cat(parts)), place.world_size))
    adapter.barrier()
    return record


def train_sparse(adapter: Adapter[T], hook: str, steps: int = 3) -> Record:
    """Takes gradients of a model with a sparse embedding, with a hook that notes what its buckets hold.

    Returns:
        ``found`` and ``joined`` as for ``compare_with_one_process``, of the embedding; ``sparse_gradient``: for each
        step whether its gradient is sparse; ``alone`` and ``sparse_buffer``: for each call of the hook with it whether
        it has the bucket to itself, and whether the buffer is sparse.
    """
    torch = adapter.framework()
    place = adapter.place
    group = adapter.group(range(place.world_size))
    inner = adapter.hook(hook)
    record: Record = {"found": [], "joined": [], "sparse_gradient": [], "alone": [], "sparse_buffer": []}
    model = _model(torch, "sparse embedding")
    weight = model.embedding.weight

    def noting(state, bucket):  # type: ignore[no-untyped-def]
        if any(parameter is weight for parameter in bucket.parameters()):
            record["alone"].append(len(bucket.parameters()) == 1)
            record["sparse_buffer"].append(bool(bucket.buffer().is_sparse))
        return inner(state, bucket)

    noting.__annotations__ = {}
    wrapped = adapter.data_parallel(model, 10.0, process_group=group)
    wrapped.register_comm_hook(adapter.state(hook, group), noting)
    plain = _in_double(torch, _model(torch, "embedding"))
    for step in range(steps):
        parts = [_inputs(torch, "embedding", step, rank) for rank in range(place.world_size)]
        _gradients(adapter, wrapped, parts[place.rank].to(adapter.device))
        _gradients(adapter, plain, torch.cat(parts))
        record["sparse_gradient"].append(bool(weight.grad.is_sparse))
        record["found"].append(adapter.array(weight.grad.to_dense()).reshape(-1))
        record["joined"].append(np.divide(adapter.array(plain.embedding.weight.grad).reshape(-1), place.world_size))
    adapter.barrier()
    return record


def train(adapter: Adapter[T], hook: str, state: Mapping[str, Any] | None = None, steps: int = 20) -> Record:
    """Trains a small network to tell inside from outside of a ring, and does the same in one process.

    Returns:
        ``start``, ``loss`` and ``alone``: the loss on all data before, after training under data-parallel training, and
        (on rank 0 only) after training in one process. ``parameters``: the flat parameters at the end, in float32.
        ``refused``: type and text of the error of the hook's registration; then there is nothing else.
    """
    torch = adapter.framework()
    place = adapter.place
    group = adapter.group(range(place.world_size))
    generator = np.random.default_rng(0)
    points = generator.uniform(-1.5, 1.5, (64 * place.world_size, 2)).astype(np.float32)
    labels = ((points**2).sum(1) < 1.8).astype(np.float32)[:, None]
    features = np.concatenate([points, points**2], 1)
    x, y = (torch.tensor(one, device=adapter.device) for one in (features, labels))
    wrapped = adapter.data_parallel(_network(torch), 10.0, process_group=group)
    refused = _register(adapter, wrapped, hook, group, state)
    if refused[0]:
        return {"refused": refused}
    alone = _network(torch).to(adapter.device)
    own = slice(place.rank, None, place.world_size)
    start = _loss(torch, alone, x, y).item()
    for _ in range(steps):
        for model, part in ((wrapped, own), (alone, slice(None)))[: 2 if place.rank == 0 else 1]:
            _loss(torch, model, x[part], y[part]).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.5 * parameter.grad
                    parameter.grad = None
    with torch.no_grad():
        losses = [_loss(torch, model, x, y).item() for model in (wrapped.module, alone)]
    parameters = np.concatenate([adapter.array(one).reshape(-1) for one in wrapped.module.parameters()])
    adapter.barrier()
    return {"refused": refused, "start": start, "loss": losses[0], "alone": losses[1], "parameters": parameters}


def _register(
    adapter: Adapter[T], wrapped: Any, hook: str, group: object, state: Mapping[str, Any] | None
) -> list[str]:
    """Registers a hook; gives type and text of what was raised, or empty texts."""
    make: Any = adapter.named("PowerSGDState") if state is not None else None
    given = adapter.state(hook, group) if state is None else make(group, **state)
    try:
        wrapped.register_comm_hook(given, adapter.hook(hook))
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def _network(torch: Any) -> Any:
    torch.manual_seed(1)
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))


def _loss(torch: Any, model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)


def _gradients(adapter: Adapter[T], model: Any, x: Any) -> Array:
    """The gradients of all parameters after one backward pass, flat, complex numbers as pairs."""
    torch = adapter.framework()
    for parameter in model.parameters():
        parameter.grad = None
    output = model(x)
    (torch.view_as_real(output) if output.is_complex() else output).double().sum().backward()
    flat = []
    for parameter in model.parameters():
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        flat.append(adapter.array(gradient).reshape(-1).astype(np.float64))
    return np.concatenate(flat)


def _in_double(torch: Any, model: Any) -> Any:
    """The same model in float64 or complex128."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.complex128 if parameter.is_complex() else torch.float64)
    return model


def _model(torch: Any, name: str) -> Any:
    """A small model; its parameters are whole numbers from -1 to 1."""
    nn = torch.nn

    class Embedded(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(12, 4, sparse=name == "sparse embedding")
            self.linear = nn.Linear(4, 12)
            if name == "tied embedding":
                self.linear.weight = self.embedding.weight

        def forward(self, rows: Any) -> Any:
            return self.linear(self.embedding(rows))

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
        return Stack(*(layer.to(kind) for layer, kind in zip(layers, kinds, strict=True)))

    def conv() -> Any:
        return Stack(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Flatten(), nn.Linear(3, 2))

    makers = {
        "mlp": lambda: mlp("float32"),
        "mixed dtypes": lambda: mlp("float32", "float64", "float64", "float16", "bfloat16"),
        "convolutions": conv,
        "channels_last": lambda: conv().to(memory_format=torch.channels_last),
        "embedding": Embedded,
        "sparse embedding": Embedded,
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


def _inputs(torch: Any, name: str, step: int, rank: int) -> Any:
    """Three examples: whole numbers that differ by step and rank."""
    generator = np.random.default_rng([step, rank])
    if "embedding" in name:
        return torch.tensor(generator.integers(0, 12, 3))
    shape = (3, 2, 3, 3) if name in ("convolutions", "channels_last") else (3, 5)
    x = torch.tensor(generator.integers(-1, 2, shape).astype(np.float64))
    return x.contiguous(memory_format=torch.channels_last) if name == "channels_last" else x
