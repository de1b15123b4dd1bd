"""Forward and backward passes of data-parallel training, with gradients that are given as numbers."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from commhooks.adapters import Adapter
from commhooks.adapters.adapter import Array
from commhooks.conformance.programs.given_model import (
    flat_values,
    given_model,
    note_bucket,
    note_gradients,
    note_ready,
    tensor_like,
)

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
    no_group: bool = False,
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
            ``of``, multiplied by ``scale`` (1); "note" notes the gradients; "pass" does all four; "register" registers
            ``hook``; "set buffer" fills the model's buffers with ``value``; "eval" switches to evaluation; "keep" keeps
            the gradients as they are, and "note kept" notes those that were kept. ``inside`` has "forward" or
            "backward" run inside no_sync(), see ``_no_sync``, or in "that of the first model". ``no_grad``: the forward
            pass runs without gradients. ``retain``: the graph is kept. With ``catch`` an exception is noted instead of
            raised.
        shapes: Shapes of the parameters.
        dtypes: Their dtypes; float32 by default.
        channels_last: Parameters of four dimensions have the layout channels_last.
        frozen: Places of parameters that require no gradient.
        buffers: Values of the model's three buffers, see ``given_model``; none by default.
        start: Values of the parameters; ones by default.
        hook: "" for none, "unchanged" and so on: see ``_inner``; "built-in" and a name for one of the framework's
            own, whose calls cannot be noted; else a hook's expression. Each call is noted.
        group: Ranks of the process group; all by default. Other ranks do nothing.
        alone: Each rank has a group of its own.
        no_group: The wrapper is given None as its process group.
        state_is_none: The hook gets None for a state instead of what the adapter makes for the process group.
        models: How many models.
        join: All actions are done inside join(); a refusal is noted under ``errors``.
        catch_construction: An exception of the wrapper's constructor is noted under ``errors``, and nothing is done.
        options: Arguments of DistributedDataParallel.
        contents: The buffers are noted too.
        seconds: How long the wrapper may wait for a hook's result.
        late: Seconds that this rank waits before the first action.

    Returns:
        ``passes``: for each "note" the calls of the hook since the one before, see ``note_bucket``; ``courses``: the
        same with the gradients that became ready, as words such as "gradient 3" and "hook 0". ``notes``: for each
        "note" the gradients by place, see ``note_gradients``. ``errors``: for each "catch" type and text, empty if
        nothing was raised. ``parameters`` and ``buffer``: values after construction; those of the buffers at the end
        too. ``entries``: the names in state_dict(). ``warnings``: texts of the warnings of registration. ``kept``:
        values of the gradients that were kept.
    """
    torch = adapter.framework()
    ranks = list(range(adapter.place.world_size)) if group is None else list(group)
    process_group = adapter.group(ranks)
    if alone:
        process_group = [adapter.group([rank]) for rank in ranks][adapter.place.rank]
    record: Record = {"passes": [[]], "courses": [[]], "notes": [], "kept": [], "errors": [], "warnings": []}
    if adapter.place.rank not in ranks:
        adapter.barrier()
        return record
    wrapped = []
    for _ in range(models):
        model = given_model(adapter, shapes, dtypes or ["float32"] * len(shapes), channels_last, frozen, buffers, start)
        try:
            given_group = None if no_group else process_group
            wrapped.append(adapter.data_parallel(model, seconds, process_group=given_group, **(options or {})))
        except Exception as error:
            if not catch_construction:
                raise
            record["errors"].append([type(error).__name__, str(error)])
            return record
    everyone = [list(one.module.parameters()) for one in wrapped]
    for number, parameters in enumerate(everyone):
        note_ready(record, parameters)
        if hook:
            _register(adapter, record, wrapped[number], number, hook, process_group, state_is_none, contents)
    record["parameters"] = [flat_values(adapter, one) for one in everyone[0]]
    record["buffer"] = [flat_values(adapter, one) for one in wrapped[0].module.buffers()]
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
                first = action.get("inside") == "that of the first model"
                with wrapped[0].no_sync() if first else contextlib.nullcontext():
                    _act(
                        adapter,
                        torch,
                        wrapped[number],
                        everyone[number],
                        number,
                        action,
                        outputs,
                        record,
                        process_group,
                    )
            except Exception as error:
                if not action.get("catch"):
                    raise
                error_noted = [type(error).__name__, str(error)]
            if action.get("catch"):
                record["errors"].append(error_noted)
    record["buffer"] += [flat_values(adapter, one) for one in wrapped[0].module.buffers()]
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
    do = action["do"]
    if do == "keep":
        outputs["kept"] = [parameter.grad for parameter in parameters]
    if do == "note kept":
        record["kept"] += [flat_values(adapter, kept) for kept in outputs["kept"]]
    if do == "register":
        _register(adapter, record, wrapped, number, action["hook"], process_group, False, True)
    if do == "eval":
        wrapped.eval()
    if do == "set buffer":
        for buffer in wrapped.module.buffers():
            buffer.fill_(action["value"])
    if do in ("zero", "pass"):
        for parameter in parameters:
            parameter.grad = None
    if do in ("forward", "pass"):
        given = [
            None if values is None else tensor_like(adapter, values, parameter)
            for values, parameter in zip(action["gradients"], parameters, strict=True)
        ]
        order = list(action.get("order", range(len(parameters))))
        with _no_sync(wrapped, action), torch.no_grad() if action.get("no_grad") else contextlib.nullcontext():
            outputs[action.get("to", "out")] = wrapped(given, order)
    if do in ("backward", "pass"):
        loss = sum(outputs[name] for name in action.get("of", ["out"]))
        with _no_sync(wrapped, action):
            (loss * action.get("scale", 1.0)).backward(retain_graph=bool(action.get("retain")))
    if do in ("note", "pass"):
        record["notes"].append(note_gradients(adapter, parameters))
        record["passes"].append([])
        record["courses"].append([])


@contextlib.contextmanager
def _no_sync(wrapped: Any, action: Mapping[str, Any]) -> Iterator[None]:
    """Runs an action inside no_sync(), if it says ``inside``: also "an inner one" that has ended, or "a failed one"."""
    inside = action.get("inside")
    if inside == "a failed one":
        with contextlib.suppress(LookupError), wrapped.no_sync():
            raise LookupError("the reason why a pass inside no_sync() ended early")
    with wrapped.no_sync() if inside in (True, "an inner one") else contextlib.nullcontext():
        if inside == "an inner one":
            with wrapped.no_sync():
                pass
        yield


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
    kind, _, name = hook.partition(" ")
    if kind == "built-in":
        wrapped._register_builtin_comm_hook(getattr(adapter.framework().distributed.BuiltinCommHookType, name))
        return
    state = None if state_is_none else adapter.state(hook, process_group)
    called = _inner(adapter, hook)
    places = {id(parameter): place for place, parameter in enumerate(wrapped.module.parameters())}

    def noting(given: Any, bucket: Any) -> Any:
        noted = note_bucket(adapter, bucket, places, number, contents, given is state)
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
