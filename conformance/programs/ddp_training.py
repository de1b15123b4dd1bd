"""Real models under data-parallel training, and the same models in one process on the joined batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from commhooks.adapters import Adapter
from commhooks.adapters.adapter import Array
from commhooks.conformance.programs.ddp_models import flat_gradients, in_double, make_inputs, make_model

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
    compiled: str = "",
    autocast: str = "",
    mixed_precision: str = "",
    noted: bool = False,
) -> Record:
    """Takes gradients of a model for a few steps, on this rank's part of the batch and in float64 on the whole of it.

    All weights and inputs are small whole numbers, so that the gradients are too, and no order of operations matters.

    Args:
        adapter: The implementation.
        model: A name of ``make_model``.
        hook: A hook's expression; none by default.
        own: One process gets this rank's part of the batch instead of the whole.
        state: Arguments of PowerSGDState, where that is the hook's state.
        steps: How many steps; the inputs differ by step and rank, and the parameters stay.
        options: Arguments of DistributedDataParallel.
        compiled: What is compiled, without a change of its operations: "model" or "wrapper".
        autocast: The dtype that the forward pass casts to by itself.
        mixed_precision: The dtype of the wrapper's own mixed precision.
        noted: Each call of the hook is noted.

    Returns:
        ``found``: for each step the gradients of all parameters, flat; ``expected``: on rank 0 the same of one process
        on the joined batch, divided by the number of ranks, or with ``own`` on each rank of its own part. ``calls``:
        for each step and call of the hook dtype and parameters (by place) of its bucket, if ``noted``. If the hook
        is refused at its registration, ``refused`` has type and text of the error, and the lists are empty.
    """
    torch = adapter.framework()
    place = adapter.place
    group = adapter.group(range(place.world_size))
    options = dict(options or {})
    if mixed_precision:
        dtype = getattr(torch, mixed_precision)
        make: Any = torch.nn.parallel.distributed._MixedPrecision
        options["mixed_precision"] = make(param_dtype=dtype, reduce_dtype=dtype)
    own_model = make_model(torch, model)
    inside = torch.compile(own_model, backend="eager") if compiled == "model" else own_model
    wrapped = adapter.data_parallel(inside, 10.0, process_group=group, **options)
    record: Record = {"refused": ["", ""], "found": [], "expected": [], "calls": []}
    places = {id(parameter): number for number, parameter in enumerate(own_model.parameters())}

    def note(bucket: Any) -> None:
        numbers = [places.get(id(parameter), -1) for parameter in bucket.parameters()]
        dtype = str(bucket.buffer().dtype).rpartition(".")[2]
        record["calls"][-1].append({"dtype": dtype, "parameters": numbers})

    if hook:
        record["refused"] = _register(adapter, wrapped, hook, group, state, note if noted else None)
    if record["refused"][0]:
        return record
    called = torch.compile(wrapped, backend="eager") if compiled == "wrapper" else wrapped

    def forward(x: Any) -> Any:
        with torch.autocast(adapter.device.type, getattr(torch, autocast or "bfloat16"), enabled=bool(autocast)):
            return called(x)

    plain = in_double(torch, make_model(torch, model))
    for step in range(steps):
        parts = [make_inputs(torch, model, step, rank) for rank in range(place.world_size)]
        record["calls"].append([])
        own_part = parts[place.rank].to(adapter.device)
        record["found"].append(flat_gradients(adapter, wrapped, own_part, forward))
        if own:
            record["expected"].append(flat_gradients(adapter, plain, parts[place.rank]))
        elif place.rank == 0:
            record["expected"].append(np.divide(flat_gradients(adapter, plain, torch.cat(parts)), place.world_size))
    adapter.barrier()
    return record


def train_sparse(adapter: Adapter[T], hook: str, model: str, steps: int = 3) -> Record:
    """Takes gradients of a model with a sparse embedding, with a hook that notes what its buckets hold.

    Args:
        adapter: The implementation.
        hook: The hook's expression.
        model: A name of ``ddp_models.make_model`` with "sparse " in it.
        steps: How many steps.

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
    made = make_model(torch, model)
    weight = made.embedding.weight

    def noting(state, bucket):  # type: ignore[no-untyped-def]
        if any(parameter is weight for parameter in bucket.parameters()):
            record["alone"].append(len(bucket.parameters()) == 1)
            record["sparse_buffer"].append(bool(bucket.buffer().is_sparse))
        return inner(state, bucket)

    noting.__annotations__ = {}
    wrapped = adapter.data_parallel(made, 10.0, process_group=group)
    wrapped.register_comm_hook(adapter.state(hook, group), noting)
    plain = in_double(torch, make_model(torch, model.replace("sparse ", "")))
    for step in range(steps):
        parts = [make_inputs(torch, "embedding", step, rank) for rank in range(place.world_size)]
        flat_gradients(adapter, wrapped, parts[place.rank].to(adapter.device))
        flat_gradients(adapter, plain, torch.cat(parts))
        record["sparse_gradient"].append(bool(weight.grad.is_sparse))
        record["found"].append(adapter.array(weight.grad.to_dense()).reshape(-1))
        record["joined"].append(np.divide(adapter.array(plain.embedding.weight.grad).reshape(-1), place.world_size))
    adapter.barrier()
    return record


def train(
    adapter: Adapter[T],
    hook: str,
    features: Array,
    labels: Array,
    hidden: int,
    rate: float,
    steps: int,
    state: Mapping[str, Any] | None = None,
) -> Record:
    """Trains a small network to tell classes apart, by steepest descent on all examples, and the same in one process.

    Args:
        adapter: The implementation.
        hook: A hook's expression.
        features: Shape ``(examples, features)``; rank i gets the examples i, i + W, i + 2 W and so on, as many as the
            other ranks.
        labels: The class of each example.
        hidden: Width of the two hidden layers.
        rate: Step length.
        steps: How many steps.
        state: Arguments of PowerSGDState, where that is the hook's state.

    Returns:
        ``start``, ``loss`` and ``alone``: the loss on all data before, after training under data-parallel training, and
        (on rank 0 only) after training in one process. ``right`` and ``right_alone``: the share of examples that are in
        their class then. ``parameters``: the flat parameters at the end, in float32. ``refused``: type and text of the
        error of the hook's registration; then there is nothing else.
    """
    torch = adapter.framework()
    place = adapter.place
    group = adapter.group(range(place.world_size))
    x = torch.tensor(features, dtype=torch.float32, device=adapter.device)
    y = torch.tensor(labels, dtype=torch.int64, device=adapter.device)
    sizes = (features.shape[1], hidden, int(labels.max()) + 1)
    wrapped = adapter.data_parallel(_network(torch, *sizes), 10.0, process_group=group)
    refused = _register(adapter, wrapped, hook, group, state)
    if refused[0]:
        return {"refused": refused}
    alone = _network(torch, *sizes).to(adapter.device)
    own = slice(place.rank, len(labels) // place.world_size * place.world_size, place.world_size)
    start = _loss(torch, alone, x, y).item()
    for _ in range(steps):
        for model, part in ((wrapped, own), (alone, slice(None)))[: 2 if place.rank == 0 else 1]:
            _loss(torch, model, x[part], y[part]).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= rate * parameter.grad
                    parameter.grad = None
    with torch.no_grad():
        losses = [_loss(torch, model, x, y).item() for model in (wrapped.module, alone)]
        right = [(model(x).argmax(1) == y).float().mean().item() for model in (wrapped.module, alone)]
    parameters = np.concatenate([adapter.array(one).reshape(-1) for one in wrapped.module.parameters()])
    adapter.barrier()
    return {
        "refused": refused,
        "start": start,
        "loss": losses[0],
        "alone": losses[1],
        "right": right[0],
        "right_alone": right[1],
        "parameters": parameters,
    }


def _register(
    adapter: Adapter[T],
    wrapped: Any,
    hook: str,
    group: object,
    state: Mapping[str, Any] | None,
    note: Callable[[Any], None] | None = None,
) -> list[str]:
    """Registers a hook, and has its calls noted; gives type and text of what was raised, or empty texts."""
    make: Any = adapter.named("PowerSGDState") if state is not None else None
    given = adapter.state(hook, group) if state is None else make(group, **state)
    inner = adapter.hook(hook)

    def noting(own_state, bucket):  # type: ignore[no-untyped-def]
        if note is not None:
            note(bucket)
        return inner(own_state, bucket)

    noting.__annotations__ = {}
    try:
        wrapped.register_comm_hook(given, inner if note is None else noting)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def _network(torch: Any, features: int, hidden: int, classes: int) -> Any:
    torch.manual_seed(1)
    nn = torch.nn
    layers = [nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers)


def _loss(torch: Any, model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x), y)
