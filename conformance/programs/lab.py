"""Calling hooks in the laboratory, and noting the results, the collectives and what the laboratory found."""

from __future__ import annotations

import importlib
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from commhooks.adapters import Adapter, Bucket
from commhooks.adapters.adapter import Array

if TYPE_CHECKING:
    from commhooks.conformance import lab

T = TypeVar("T")
Record = dict[str, Any]


def call_in_lab(
    adapter: Adapter[T],
    hook: str,
    dtype: str,
    steps: Sequence[Sequence[Array]],
    options: Mapping[str, Any],
    patience: float,
    shapes: Sequence[Sequence[Sequence[Sequence[int]]]],
    group: Sequence[int] | None = None,
    absent: bool = False,
    one_by_one: bool = False,
    resumed_at: int | None = None,
    linger: float = 0.0,
    drawn: int | None = None,
) -> Record:
    """Calls a hook for all buckets of each step, and waits for the results of the step after its last call.

    What the hook or its future raises is noted and ends the run. Ranks do not wait for each other.

    Args:
        adapter: The implementation, whose default process group is the laboratory's.
        hook: A hook's name, or an expression with wrappers.
        dtype: dtype of the buckets.
        steps: For each step the flat buffers of its buckets.
        options: The options of the laboratory that are not the default ones.
        patience: Seconds that a future may take.
        shapes: For each step and each of its buckets the shapes of the bucket's parameters.
        group: Ranks of the process group that is the hook's state; all by default.
        absent: This rank does not call the hook.
        one_by_one: Waits for each result before it calls the hook again.
        resumed_at: Before this step the state is pickled, and the copy used from then on.
        drawn: The seed that decides the options not given; by default they have their default values.
        linger: Seconds to wait, after the last step, for somebody who still writes.

    Returns:
        ``calls``: for each bucket of each step what ``_note`` notes, ``buffer_then``, the bucket's buffer when the
        step was over, and before the next step, or at the end, ``later`` and ``buffer``, the values of the result and
        of the buffer; a later step may use their memory again. ``error``,
        ``text``: what was raised. ``entries``, ``findings``, ``groups``: the log of the laboratory. ``steps``: for each
        step the number of collectives and of groups at its start. ``seconds`` and ``busy``: how long it took, and how
        long the process computed meanwhile.
    """
    from commhooks.conformance import lab  # here, because it needs torch

    process_group = adapter.group(list(group) if group is not None else list(range(adapter.place.world_size)))
    record: Record = {"calls": [], "error": "", "text": "", "steps": []}
    if absent:
        return {**record, **lab.Log().plain(), "seconds": 0.0, "busy": 0.0}
    called = adapter.hook(hook)
    state = adapter.state(hook, process_group)
    buckets = [_buckets(adapter, *of_step, dtype) for of_step in zip(steps, shapes, strict=True)]
    of_last_step: list[tuple[Record, object, T]] = []
    began, computed = time.monotonic(), time.process_time()
    log = lab.Log()
    try:
        with lab.session(_chosen(options, drawn), patience=patience) as session:
            try:
                for number, of_step in enumerate(buckets):
                    if number == resumed_at:
                        state = pickle.loads(pickle.dumps(state))
                    _look_again(adapter, of_last_step)
                    of_last_step = []
                    so_far = lab.log()
                    record["steps"].append([len(so_far.entries), len(so_far.groups)])
                    buffers = [bucket.buffer() for bucket in of_step]
                    futures = (called(state, bucket) for bucket in of_step)
                    for future, buffer in zip(futures if one_by_one else list(futures), buffers, strict=True):
                        call: Record = {}
                        record["calls"].append(call)
                        of_last_step.append((call, _note(adapter, call, future, patience), buffer))
                    for call, _, buffer in of_last_step:
                        call["buffer_then"] = adapter.array(buffer)
            except Exception as error:
                record.update(error=type(error).__name__, text=str(error))
            record.update(seconds=time.monotonic() - began, busy=time.process_time() - computed)
            time.sleep(linger)
            log = lab.log()
        log = session.log
    except TimeoutError as error:
        # Something is still under way, and will be when the next program begins: this world has come to its end.
        record.update(error=record["error"] or "TimeoutError", text=record["text"] or str(error))
    _look_again(adapter, of_last_step)
    return {**record, **log.plain()}


def _look_again(adapter: Adapter[T], calls: Sequence[tuple[Record, object, T]]) -> None:
    """Notes the tensors of calls, of which somebody may have changed some since."""
    for call, result, buffer in calls:
        call["later"] = adapter.array(result) if adapter.is_tensor(result) else None  # type: ignore[arg-type]
        call["buffer"] = adapter.array(buffer)


def _chosen(options: Mapping[str, Any], drawn: int | None) -> lab.Options:
    from commhooks.conformance import lab

    return lab.Options.from_plain(options) if drawn is None else lab.Options.drawn(drawn, **options)


def _buckets(
    adapter: Adapter[T], buffers: Sequence[Array], shapes: Sequence[Sequence[Sequence[int]]], dtype: str
) -> list[Bucket[T]]:
    made = []
    for number, (values, own) in enumerate(zip(buffers, shapes, strict=True)):
        parameters = [adapter.parameter(shape, dtype) for shape in own]
        made.append(adapter.bucket(number, values, parameters, number == len(buffers) - 1))
    return made


def _note(adapter: Adapter[T], call: Record, future: object, limit: float) -> object:
    """Waits for what a hook returned and notes it; returns the result.

    The call has ``returned`` and ``is_future``; ``value``, the type of the future's value; and if that is a tensor:
    ``dtype``, ``shape`` and ``values``.
    """
    from commhooks.conformance import lab

    call["returned"] = f"{type(future).__module__}.{type(future).__qualname__}".removeprefix("builtins.")
    call["is_future"] = adapter.is_future(future)
    if not call["is_future"]:
        return None
    complete = threading.Event()
    future.add_done_callback(lambda _: complete.set())  # type: ignore[attr-defined]
    with lab.waiting():
        if not complete.wait(limit):
            raise TimeoutError(f"the hook's future did not complete within {limit:g} s")
    value = adapter.wait(future)
    call["value"] = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if not adapter.is_tensor(value):
        return None
    facts = adapter.facts(value)  # type: ignore[arg-type]
    call.update(dtype=facts.dtype, shape=list(facts.shape), values=adapter.array(value))  # type: ignore[arg-type]
    return value


def run_in_lab(
    adapter: Adapter[T],
    module: str,
    name: str,
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
    drawn: int | None = None,
) -> Record:
    """Runs another program in a session of the laboratory; gives its ``result``, and the log.

    The seed ``drawn`` decides the options not given; by default they have their default values.
    """
    from commhooks.conformance import lab

    program = getattr(importlib.import_module(module), name)
    with lab.session(_chosen(options, drawn)) as session:
        result = program(adapter, **arguments)
    return {"result": result, **session.log.plain()}


def fail_in_backward(adapter: Adapter[T], hook: str, patience: float) -> Record:
    """Trains for a step in which the hook's first collective fails on every rank.

    Returns:
        ``refused``: why the hook could not be registered, or empty. ``error``, ``text``: what backward() raised;
        ``failed``: the numbers of the collectives that failed; ``wrong``: whether gradients are not finite.
    """
    from commhooks.conformance import lab

    torch = adapter.framework()
    group = adapter.group(range(adapter.place.world_size))
    wrapped = adapter.data_parallel(torch.nn.Linear(6, 4), patience, process_group=group)
    record: Record = {"refused": "", "error": "", "text": "", "failed": [], "wrong": False}
    try:
        wrapped.register_comm_hook(adapter.state(hook, group), adapter.hook(hook))
    except Exception as error:
        return {**record, "refused": f"{type(error).__name__}: {error}"}
    with lab.session(lab.Options(fail_at=0, patience=patience), patience=patience) as session:
        try:
            wrapped(torch.ones(3, 6)).sum().backward()
            gradients = [parameter.grad for parameter in wrapped.parameters()]
            record["wrong"] = not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        except Exception as error:
            record.update(error=type(error).__name__, text=str(error))
    return {**record, "failed": list(session.log.failed)}
