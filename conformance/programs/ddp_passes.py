"""Forward and backward passes of data-parallel training, with gradients that are given as numbers.

The model's output is the sum over its parameters of parameter times given number; so the local gradient of each
parameter is what was given, bit for bit, in any dtype, and becomes ready in an order that can be chosen.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from commhooks.adapters import Adapter
from commhooks.adapters.adapter import Array

T = TypeVar("T")
Record = dict[str, Any]


def run_passes(
    adapter: Adapter[T],
    actions: Sequence[Mapping[str, Any]],
    shapes: Sequence[Sequence[int]] = ((3, 2), (4,)),
    dtypes: Sequence[str] = (),
    channels_last: bool = False,
    frozen: Sequence[int] = (),
    buffers: Array | None = None,
    start: Sequence[Array] = (),
    hook: str = "",
    group: Sequence[int] | None = None,
    alone: bool = False,
    state_is_none: bool = False,
    models: int = 1,
    join: bool = False,
    catch_construction: bool = False,
    options: Mapping[str, Any] | None = None,
    contents: bool = True,
    seconds: float = 10.0,
    late: float = 0.0,
) -> Record:
    """Wraps one model or several alike, and does with them what ``actions`` say.

    Args:
        adapter: The implementation.
        actions: Each a mapping; ``do`` says what, ``model`` with which model (0): "zero" sets the gradients to None;
            "forward" runs the model with ``gradients`` (one for each parameter, None leaves it out; ``order``: the
            order in which they become ready) and keeps the output under ``to``; "backward" starts at the outputs in
            ``of``; "note" notes the gradients; "pass" does all four; "register" registers ``hook``; "set buffer" fills
            the model's buffer with ``value``. ``inside`` has "forward" or "backward" run inside no_sync(). ``no_grad``:
            the forward pass runs without gradients. ``retain``: the graph is kept. With ``catch`` an exception is noted
            instead of raised.
        shapes: Shapes of the parameters.
        dtypes: Their dtypes; float32 by default.
        channels_last: Parameters of four dimensions have the layout channels_last.
        frozen: Places of parameters that require no gradient.
        buffers: Values of a buffer, which the output has added; none by default.
        start: Values of the parameters; ones by default.
        hook: "" for none, "sum unchanged" and so on: see ``_inner``; else a hook's expression. Each call is noted.
        group: Ranks of the process group; all by default. Other ranks do nothing.
        alone: Each rank has a group of its own.
        state_is_none: The hook gets None for a state instead of what the adapter makes for the process group.
        models: How many models.
        join: All actions are done inside join(); a refusal is noted under ``errors``.
        catch_construction: An exception of the wrapper's constructor is noted under ``errors``, and nothing is done.
        options: Arguments of DistributedDataParallel.
        contents: The buffers are noted too.
        seconds: How long the wrapper may wait for a hook's result.
        late: Seconds that this rank waits before the first action.

    Returns:
        ``passes``: for each "note" the calls of the hook since the one before, see ``_note_bucket``; ``courses``: the
        same with the gradients that became ready, as words such as "gradient 3" and "hook 0". ``notes``: for each
        "note" the gradients by place, see ``_note_gradients``. ``errors``: for each "catch" type and text, empty if
        nothing was raised. ``parameters`` and ``buffer``: values after construction; the buffer's at the end too.
        ``entries``: the names in state_dict(). ``warnings``: texts of the warnings of registration.
    """
    torch = adapter.framework()
    ranks = list(range(adapter.place.world_size)) if group is None else list(group)
    process_group = adapter.group(ranks)
    if alone:
        process_group = [adapter.group([rank]) for rank in ranks][adapter.place.rank]
    record: Record = {"passes": [[]], "courses": [[]], "notes": [], "errors": [], "warnings": []}
    if adapter.place.rank not in ranks:
        adapter.barrier()
        return record
    wrapped = []
    for _ in range(models):
        model = _given_model(
            adapter, shapes, dtypes or ["float32"] * len(shapes), channels_last, frozen, buffers, start
        )
        try:
            wrapped.append(adapter.data_parallel(model, seconds, process_group=process_group, **(options or {})))
        except Exception as error:
            if not catch_construction:
                raise
            record["errors"].append([type(error).__name__, str(error)])
            return record
    everyone = [list(one.module.parameters()) for one in wrapped]
    for number, parameters in enumerate(everyone):
        _note_ready(record, parameters)
        if hook:
            _register(adapter, record, wrapped[number], number, hook, process_group, state_is_none, contents)
    record["parameters"] = [_values(adapter, one) for one in everyone[0]]
    record["buffer"] = [_values(adapter, one) for one in wrapped[0].module.buffers()]
    record["entries"] = list(wrapped[0].state_dict())
    outputs: dict[str, Any] = {}
    time.sleep(late)
    try:
        joining = wrapped[0].join() if join else contextlib.nullcontext()
    except NotImplementedError as error:
        record["errors"].append([type(error).__name__, str(error)])
        return record
    with joining:
        for action in actions:
            number = action.get("model", 0)
            error_noted = ["", ""]
            try:
                _act(adapter, torch, wrapped[number], everyone[number], number, action, outputs, record, process_group)
            except Exception as error:
                if not action.get("catch"):
                    raise
                error_noted = [type(error).__name__, str(error)]
            if action.get("catch"):
                record["errors"].append(error_noted)
    record["buffer"] += [_values(adapter, one) for one in wrapped[0].module.buffers()]
    adapter.barrier()
    return record


def _act(
    adapter: Adapter[T],
    torch: Any,
    wrapped: Any,
    parameters: Sequence[Any],
    number: int,
    action: Mapping[str, Any],
    outputs: dict[str, Any],
    record: Record,
    process_group: object,
) -> None:
    inside = wrapped.no_sync if action.get("inside") else contextlib.nullcontext
    do = action["do"]
    if do == "register":
        _register(adapter, record, wrapped, number, action["hook"], process_group, False, True)
    if do == "set buffer":
        for buffer in wrapped.module.buffers():
            buffer.fill_(action["value"])
    if do in ("zero", "pass"):
        for parameter in parameters:
            parameter.grad = None
    if do in ("forward", "pass"):
        given = [
            None if values is None else _complex_tensor(adapter, values, parameter)
            for values, parameter in zip(action["gradients"], parameters, strict=True)
        ]
        order = list(action.get("order", range(len(parameters))))
        with inside(), torch.no_grad() if action.get("no_grad") else contextlib.nullcontext():
            outputs[action.get("to", "out")] = wrapped(given, order)
    if do in ("backward", "pass"):
        loss = sum(outputs[name] for name in action.get("of", ["out"]))
        with inside():
            loss.backward(retain_graph=bool(action.get("retain")))
    if do in ("note", "pass"):
        record["notes"].append(_note_gradients(adapter, parameters))
        record["passes"].append([])
        record["courses"].append([])


def _register(
    adapter: Adapter[T],
    record: Record,
    wrapped: Any,
    number: int,
    hook: str,
    process_group: object,
    state_is_none: bool,
    contents: bool,
) -> None:
    state = None if state_is_none else adapter.state(hook, process_group)
    called = _inner(adapter, hook)
    places = {id(parameter): place for place, parameter in enumerate(wrapped.module.parameters())}

    def noting(given: Any, bucket: Any) -> Any:
        noted = _note_bucket(adapter, bucket, places, number, contents, given is state)
        record["passes"][-1].append(noted)
        record["courses"][-1].append(f"hook {noted['index']}")
        return called(given, bucket)

    # They are strings in this file, which some wrappers refuse; that is another clause.
    noting.__annotations__ = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapped.register_comm_hook(state, noting)
    record["warnings"] += [str(one.message) for one in caught]


def _inner(adapter: Adapter[T], hook: str) -> Any:
    """A hook of the implementation's, or one of ours by what it does with the buffer."""
    torch = adapter.framework()

    def unchanged(state: Any, bucket: Any) -> Any:
        return adapter.completed(bucket.buffer())

    def numbered(state: Any, bucket: Any) -> Any:
        """1, 2, 3 and so on, in a tensor of its own."""
        return adapter.completed(torch.ones_like(bucket.buffer()).cumsum(0).to(bucket.buffer().dtype))

    def late_double(state: Any, bucket: Any) -> Any:
        """Twice the buffer, from another thread, after a while."""
        buffer, future = bucket.buffer(), torch.futures.Future()
        threading.Timer(0.05, lambda: future.set_result(buffer.mul_(2))).start()
        return future

    def replacing(state: Any, bucket: Any) -> Any:
        """The buffer, after another one was put in its place in the bucket."""
        buffer = bucket.buffer()
        bucket.set_buffer(torch.full_like(buffer, 77.0))
        return adapter.completed(buffer)

    ours = {one.__name__: one for one in (unchanged, numbered, late_double, replacing)}
    return ours[hook] if hook in ours else adapter.hook(hook)


def _given_model(
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
                self.register_buffer("shift", torch.tensor(buffers))

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


def _note_ready(record: Record, parameters: Sequence[Any]) -> None:
    for place, parameter in enumerate(parameters):
        if parameter.requires_grad:
            parameter.register_hook(lambda _, place=place: record["courses"][-1].append(f"gradient {place}"))


def _note_bucket(
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
        "views": [_inside(parameter.grad, buffer) for parameter in parameters],
    }
    if contents:
        record["buffer"] = _values(adapter, buffer)
        record["gradients"] = [_values(adapter, one) for one in bucket.gradients()]
    return record


def _inside(gradient: Any, buffer: Any) -> bool:
    if gradient is None or gradient.is_sparse or buffer.is_sparse:
        return False
    start = buffer.data_ptr()
    return bool(start <= gradient.data_ptr() < start + max(1, buffer.numel()) * buffer.element_size())


def _note_gradients(adapter: Adapter[T], parameters: Sequence[Any]) -> list[Record]:
    """Of each parameter ``values`` (None without a gradient), ``stride``, ``own_stride`` and ``dtype``."""
    return [
        {
            "values": None if one.grad is None else _values(adapter, one.grad),
            "stride": [] if one.grad is None else list(one.grad.stride()),
            "own_stride": list(one.stride()),
            "dtype": "" if one.grad is None else str(one.grad.dtype).rpartition(".")[2],
        }
        for one in parameters
    ]


def _values(adapter: Adapter[T], tensor: Any) -> Array:
    """Row-major and flat; complex numbers as pairs."""
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = adapter.framework().view_as_real(tensor.detach().clone().resolve_conj().contiguous())
    return np.asarray(adapter.array(tensor)).reshape(-1)


def _complex_tensor(adapter: Adapter[T], values: Array, parameter: Any) -> Any:
    """A tensor like the parameter, or one number for all its elements; complex numbers come as pairs."""
    torch = adapter.framework()
    made = torch.tensor(np.asarray(values), device=parameter.device)
    if parameter.is_complex():
        return torch.view_as_complex(made.double().reshape(*parameter.shape, 2)).to(parameter.dtype)
    return made.reshape(parameter.shape if made.ndim else ()).to(parameter.dtype)
