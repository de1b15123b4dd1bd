"""Registering hooks of many kinds with data-parallel training."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

from commhooks.adapters import Adapter

T = TypeVar("T")
Record = dict[str, Any]


def register_hooks(adapter: Adapter[T], hooks: Sequence[str], late: bool = False) -> Record:
    """Registers hooks one after the other with one new model, and trains one step.

    Args:
        adapter: The implementation.
        hooks: What is registered, by names of ``_candidates``.
        late: A step is done before the first registration.

    Returns:
        ``errors``: for each type and text of what was raised, or empty texts. ``called``: the names of those that were
        called in the step. ``same_state``: whether each call got the state that was registered with the hook.
    """
    torch = adapter.framework()
    calls: list[list[Any]] = []
    candidates = _candidates(adapter, calls)
    model = adapter.data_parallel(torch.nn.Linear(3, 2), 5.0, process_group=adapter.group([0]))
    if late:
        model(torch.ones(1, 3, device=adapter.device)).sum().backward()
    errors, states = [], {}
    for name in hooks:
        states[name] = {"the state of": name}
        try:
            model.register_comm_hook(states[name], candidates[name])
            errors.append(["", ""])
        except Exception as error:
            errors.append([type(error).__name__, str(error)])
    model(torch.ones(1, 3, device=adapter.device)).sum().backward()
    return {
        "errors": errors,
        "called": [name for name, _ in calls],
        "same_state": [state is states.get(name) for name, state in calls],
    }


def _candidates(adapter: Adapter[T], calls: list[list[Any]]) -> dict[str, Any]:
    """What can be registered, right and wrong, by name."""
    torch = adapter.framework()
    bucket_type: Any = adapter.named("GradBucket") if _has_bucket(adapter) else torch.distributed.GradBucket
    future_type = torch.futures.Future

    def called(name: str, state: Any, bucket: Any) -> Any:
        calls.append([name, state])
        return adapter.completed(bucket.buffer())

    def plain(name: str, **annotations: object) -> Any:
        def hook(state, bucket):  # type: ignore[no-untyped-def]
            return called(name, state, bucket)

        hook.__annotations__ = annotations
        return hook

    class Callable:
        def __call__(self, state, bucket):  # type: ignore[no-untyped-def]
            return called("callable object", state, bucket)

        def method(self, state, bucket):  # type: ignore[no-untyped-def]
            return called("bound method", state, bucket)

    def other_names(given, gradients):  # type: ignore[no-untyped-def]
        return called("other parameter names", given, gradients)

    def with_option(option, state, bucket):  # type: ignore[no-untyped-def]
        return called("partial", state, bucket)

    named = plain("called bf16_compress_hook")
    named.__name__ = named.__qualname__ = "bf16_compress_hook"
    right = future_type[torch.Tensor]
    return {
        "a number": 3,
        "None": None,
        "text": "allreduce_hook",
        "bucket: int": plain("bucket: int", bucket=int),
        "bucket: Tensor": plain("bucket: Tensor", bucket=torch.Tensor),
        "-> int": plain("-> int", **{"return": int}),
        "-> Future": plain("-> Future", **{"return": future_type}),
        "-> Future[list]": plain("-> Future[list]", **{"return": future_type[list]}),
        "-> Tensor": plain("-> Tensor", **{"return": torch.Tensor}),
        "right annotations": plain("right annotations", **{"bucket": bucket_type, "return": right}),
        "no annotations": plain("no annotations"),
        "lambda": lambda state, bucket: called("lambda", state, bucket),
        "bound method": Callable().method,
        "partial": functools.partial(with_option, 1),
        "callable object": Callable(),
        "right strings": plain(
            "right strings",
            **{"bucket": "torch.distributed.GradBucket", "return": "torch.futures.Future[torch.Tensor]"},
        ),
        "wrong bucket string": plain("wrong bucket string", bucket="int"),
        "wrong return string": plain("wrong return string", **{"return": "int"}),
        "other parameter names": other_names,
        "called bf16_compress_hook": named,
    }


def _has_bucket(adapter: Adapter[T]) -> bool:
    try:
        adapter.named("GradBucket")
    except (AttributeError, KeyError):
        return False
    return True
