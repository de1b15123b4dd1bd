"""Many steps of a PowerSGD hook with one state, and everything that a check may ask about them."""

from __future__ import annotations

import hashlib
import inspect
import logging
import pickle
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from commhooks.adapters import Adapter, Bucket
from commhooks.adapters.adapter import Array

T = TypeVar("T")
Record = dict[str, object]


def run_steps(
    adapter: Adapter[T],
    hook: str,
    options: Mapping[str, object],
    dtype: str,
    steps: Sequence[Sequence[Mapping[str, Any]]],
    group: Sequence[int] | None = None,
    alone: bool = False,
    group_as: str = "group",
    absent: bool = False,
    channels_last: bool = False,
    load_after: int | None = None,
    load_from: str = "bytes",
    measure_after: Sequence[int] = (),
    random_seed: int | None = None,
    watch: bool = False,
    keep_log: bool = False,
    look_again: bool = False,
) -> Record:
    """Makes a state and calls a hook for each bucket of each step, waiting for each result before the next call.

    What the hook raises is noted and ends the run, so that a hook that raises on every rank costs no world.

    Args:
        adapter: The implementation.
        hook: A hook's name, or an expression with wrappers.
        options: Arguments of PowerSGDState besides the process group.
        dtype: dtype of the buckets.
        steps: For each step its buckets in order, each with ``values``, its flat buffer, and ``shapes``, those of its
            parameters.
        group: Ranks of the process group; all by default.
        alone: Each rank has a process group of its own, with itself alone in it.
        group_as: "group" hands the process group to the state, "none" hands it None.
        absent: This rank makes its state and its buckets but does not call the hook.
        channels_last: The parameters lie in memory in channels_last order, and so do the values.
        load_after: The state is pickled after this many steps, and the loaded one goes on.
        load_from: "bytes", or "file" for a file on the disk.
        measure_after: After these numbers of steps the length of the pickled state is noted.
        random_seed: The global random states are seeded with it first.
        watch: The collectives of each call are noted.
        keep_log: The log records of each call are noted.
        look_again: The values of all results are noted again at the end.

    Returns:
        ``error``, ``text`` and ``where``: type, text and place of what was raised, or empty texts. ``steps``: for each
        step a list with one record for each bucket: ``values`` and ``dtype`` of the result; ``is_tensor``, ``shape``,
        ``contiguous`` and ``storage_offset``; ``stats``, what compression_stats() said after the call; with
        ``look_again`` ``later``, its values at the end; with ``watch`` ``collectives``, or None if they cannot be seen;
        with ``keep_log`` ``log``, a list of level and text. ``start_stats``: what compression_stats() said at first.
        ``lengths``: of the pickled states. ``random_untouched``: whether the global random states are as before the
        first step.
    """
    record: Record = {"error": "", "text": "", "where": "", "steps": []}
    process_group = _process_group(adapter, group, alone)
    if random_seed is not None:
        random.seed(random_seed)
        np.random.seed(random_seed)
        adapter.set_random_state(random_seed)
    make: Callable[..., Any] = adapter.named("PowerSGDState")  # type: ignore[assignment]
    notes: list[list[Record]] = []
    results: list[list[T]] = []
    lengths: list[int] = []
    try:
        state = make(process_group if group_as == "group" else None, **options)
        record["start_stats"] = _numbers(state.compression_stats())
        called = adapter.hook(hook)
        before = _random_states(adapter)
        for number, buckets in enumerate(steps):
            if number == load_after:
                state = _loaded(state, load_from)
            notes.append([])
            results.append([])
            for index in range(len(buckets)):
                bucket = _make_bucket(adapter, buckets, index, dtype, channels_last)
                if absent:
                    notes[-1].append({"values": adapter.array(bucket.buffer())})
                    continue
                seen = adapter.watch_collectives() if watch else None
                log: list[list[str]] = []
                end_log = _start_log(log) if keep_log else None
                result: T = adapter.wait(_future(adapter, called(state, bucket)))  # type: ignore[assignment]
                if end_log is not None:
                    end_log()
                results[-1].append(result)
                stats = _numbers(state.compression_stats())
                collectives = None if seen is None else list(seen)
                notes[-1].append(
                    {**_note_step(adapter, result), "stats": stats, "collectives": collectives, "log": log}
                )
            if number + 1 in measure_after:
                lengths.append(len(pickle.dumps(state)))
        record["random_untouched"] = _random_states(adapter) == before
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        record.update(
            error=type(error).__name__, text=str(error), where=f"{last.name}, line {last.lineno}: {last.line}"
        )
        return {**record, "steps": notes}
    if look_again:
        adapter.barrier()
        for noted, kept in zip(notes, results, strict=True):
            for one, result in zip(noted, kept, strict=False):
                one["later"] = adapter.array(result) if one["is_tensor"] else None
    return {**record, "steps": notes, "lengths": lengths}


def run_steps_in_flight(
    adapter: Adapter[T],
    hook: str,
    options: Mapping[str, object],
    dtype: str,
    steps: Sequence[Sequence[Mapping[str, Any]]],
    late: float = 0.0,
) -> Record:
    """Calls a hook for all buckets of a step before it waits for the first result, as data-parallel training does.

    Args:
        adapter: The implementation.
        hook: A hook's name.
        options: Arguments of PowerSGDState besides the process group.
        dtype: dtype of the buckets.
        steps: As for ``run_steps``.
        late: Seconds that this rank waits before each step, so that its peers' collectives cannot be complete.

    Returns:
        As ``run_steps``, with ``values``, ``dtype``, ``is_tensor``, ``contiguous`` and ``storage_offset`` only.
    """
    make: Callable[..., Any] = adapter.named("PowerSGDState")  # type: ignore[assignment]
    state = make(adapter.group(range(adapter.place.world_size)), **options)
    called = adapter.hook(hook)
    notes: list[list[Record]] = []
    for buckets in steps:
        made = [_make_bucket(adapter, buckets, index, dtype, False) for index in range(len(buckets))]
        time.sleep(late)
        futures = [called(state, bucket) for bucket in made]
        results: list[T] = [adapter.wait(future) for future in futures]  # type: ignore[misc]
        notes.append([_note_step(adapter, result) for result in results])
    return {"error": "", "text": "", "where": "", "steps": notes}


def make_states(adapter: Adapter[T], arguments: Sequence[Mapping[str, object]]) -> Record:
    """Makes a state with each of ``arguments``.

    Returns:
        ``made``: for each the type and the text of the error that was raised, or empty texts. ``defaults``: the default
        of each argument that has one, as its ``repr``; None if the constructor's signature cannot be seen.
    """
    make: Callable[..., object] = adapter.named("PowerSGDState")  # type: ignore[assignment]
    made: list[list[str]] = []
    for keywords in arguments:
        error = _error_of(make, {"process_group": None, **keywords})
        made.append(["", ""] if error is None else [type(error).__name__, str(error)])
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return {"made": made, "defaults": None}
    defaults = {one.name: _plain(one.default) for one in parameters if one.default is not one.empty}
    return {"made": made, "defaults": defaults}


def _error_of(make: Callable[..., object], keywords: Mapping[str, object]) -> Exception | None:
    try:
        make(**keywords)
    except Exception as error:
        return error
    return None


def _start_log(kept: list[list[str]]) -> Callable[[], None]:
    """Adds level and text of each log record to ``kept``, of all loggers, from level INFO on; gives what ends it."""

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not hasattr(record, "_kept"):
                record._kept = True
                kept.append([record.levelname, record.getMessage()])

    keeper = Keeper(logging.INFO)
    loggers = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    levels = {logger: logger.level for logger in [logging.root, *loggers]}
    listening = [logger for logger in levels if logger is logging.root or not logger.propagate]
    for logger, level in levels.items():
        if level > logging.INFO:
            logger.setLevel(logging.INFO)
    for logger in listening:
        logger.addHandler(keeper)

    def end() -> None:
        for logger in listening:
            logger.removeHandler(keeper)
        for logger, level in levels.items():
            if logger.level != level:
                logger.setLevel(level)

    return end


def _process_group(adapter: Adapter[T], group: Sequence[int] | None, alone: bool) -> object:
    ranks = range(adapter.place.world_size)
    if alone:
        return [adapter.group([rank]) for rank in ranks][adapter.place.rank]
    return adapter.group(list(group) if group is not None else list(ranks))


def _make_bucket(
    adapter: Adapter[T], buckets: Sequence[Mapping[str, Any]], index: int, dtype: str, channels_last: bool
) -> Bucket[T]:
    shapes, values = buckets[index]["shapes"], buckets[index]["values"]
    parameters = [adapter.parameter(shape, dtype, channels_last and len(shape) == 4) for shape in shapes]
    return adapter.bucket(index, values, parameters, index == len(buckets) - 1)


def _loaded(state: object, load_from: str) -> Any:
    if load_from == "bytes":
        return pickle.loads(pickle.dumps(state))
    with tempfile.TemporaryFile() as file:
        pickle.dump(state, file)
        file.seek(0)
        return pickle.load(file)


def _future(adapter: Adapter[T], returned: object) -> object:
    if not adapter.is_future(returned):
        raise TypeError(f"the hook returned a {type(returned).__name__} instead of a future")
    return returned


def _note_step(adapter: Adapter[T], result: T) -> Record:
    if not adapter.is_tensor(result):
        return {"is_tensor": False, "dtype": type(result).__name__, "values": np.zeros(0)}
    facts = adapter.facts(result)
    values: Array = adapter.array(result)
    return {
        "is_tensor": True,
        "dtype": facts.dtype,
        "values": values.reshape(-1),
        "shape": list(facts.shape),
        "contiguous": facts.contiguous,
        "storage_offset": facts.storage_offset,
    }


def _numbers(stats: Sequence[float]) -> list[float]:
    return [float(number) for number in stats]


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _random_states(adapter: Adapter[T]) -> str:
    """One digest of the global random states of Python, NumPy and the framework."""
    digest = hashlib.sha256(pickle.dumps(random.getstate()))
    digest.update(pickle.dumps(np.random.get_state()))
    digest.update(adapter.random_state())
    return digest.hexdigest()
