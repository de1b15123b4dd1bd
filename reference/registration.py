"""What data-parallel training asks of a communication hook: at registration, and of what it gives back."""

import inspect
import threading
import typing
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from .bucket import GradBucket

_BUCKET_TYPES = (dist.GradBucket, GradBucket)
_RETURN_TYPES = (Future[torch.Tensor],)

# What Work.get_future() gives is of this class, from which torch.futures.Future inherits.
_ANY_FUTURE = torch._C.Future


def hook_name(hook: Callable[..., object]) -> str:
    """The name to call a hook by in a message."""
    return getattr(hook, "__qualname__", None) or repr(hook)


def check_hook(hook: Callable[..., object]) -> None:
    """Refuses what cannot be a communication hook.

    A hook is anything that can be called as ``hook(state, bucket)``: a function, a lambda, a bound method, a
    ``functools.partial``, an object with ``__call__``; its parameters may have any names. Annotations are
    optional. Annotations that are strings, as ``from __future__ import annotations`` makes them all, are looked
    up first; one that cannot be looked up says nothing.

    Args:
        hook: What was given to ``register_comm_hook``.

    Raises:
        TypeError: ``hook`` is not callable, or not with two positional arguments.
        ValueError: The second parameter is annotated with something else than ``dist.GradBucket`` or the
            reference's ``GradBucket``, or the return value with something else than
            ``torch.futures.Future[torch.Tensor]``.
    """
    if not callable(hook):
        raise TypeError(f"hook must be callable as hook(state, bucket), got {type(hook).__name__}")
    signature = _signature(hook)
    if signature is None:
        return
    try:
        bound = signature.bind("state", "bucket")
    except TypeError as error:
        raise TypeError(
            f"hook must be callable as hook(state, bucket), got {hook_name(hook)}{signature}: {error}"
        ) from None
    bucket_annotation = signature.parameters[list(bound.arguments)[-1]].annotation
    if not _allows(bucket_annotation, _BUCKET_TYPES):
        raise ValueError(
            f"{hook_name(hook)}: the bucket must be annotated with dist.GradBucket or not at all, "
            f"got {bucket_annotation!r}"
        )
    if not _allows(signature.return_annotation, _RETURN_TYPES):
        raise ValueError(
            f"{hook_name(hook)}: the return value must be annotated with torch.futures.Future[torch.Tensor] "
            f"or not at all, got {signature.return_annotation!r}"
        )


def _signature(hook: Callable[..., object]) -> inspect.Signature | None:
    """The signature with its annotations looked up, or None where Python knows none (some builtins)."""
    try:
        return inspect.signature(hook, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError):
        return inspect.signature(hook)
    except ValueError:
        return None


def _allows(annotation: object, accepted: tuple[object, ...]) -> bool:
    """Whether an annotation permits one of ``accepted``. A string left over could not be looked up."""
    if annotation in (inspect.Parameter.empty, Any, object) or isinstance(annotation, str | typing.TypeVar):
        return True
    alternatives = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return any(alternative in accepted for alternative in alternatives)


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, type(int | str))


def check_future(hook: Callable[..., object], returned: object) -> Future[torch.Tensor]:
    """Refuses what is not a future; gives it back otherwise.

    Args:
        hook: The hook, for the message.
        returned: What it returned.

    Raises:
        RuntimeError: ``returned`` is not a future.
    """
    if not isinstance(returned, _ANY_FUTURE):
        raise RuntimeError(
            f"{hook_name(hook)} must return a torch.futures.Future of one tensor, got {_describe(returned)}"
        )
    return typing.cast("Future[torch.Tensor]", returned)


def wait_for_result(
    hook: Callable[..., object],
    future: Future[torch.Tensor],
    bucket: GradBucket,
    expected: torch.Tensor,
    timeout: float,
) -> torch.Tensor:
    """Waits for what a hook has promised, and refuses what cannot be the bucket's new gradients.

    Args:
        hook: The hook, for the message.
        future: What it returned.
        bucket: The bucket that it was given, for the message.
        expected: The bucket's buffer as the hook got it: its shape, dtype, device and layout are expected.
        timeout: How many seconds to wait.

    Returns:
        The value of the future: a tensor like ``expected``.

    Raises:
        RuntimeError: The future did not complete in time, failed, or has another value.
    """
    about = f"{hook_name(hook)}, bucket {bucket.index()}"
    if not _completes(future, timeout):
        raise RuntimeError(f"{about}: the future did not complete within {timeout:g} s (hook_timeout)")
    try:
        # Not value(): on an accelerator wait() is what orders the current stream after the result.
        result = future.wait()
    except Exception as error:
        raise RuntimeError(f"{about}: the future failed with {type(error).__name__}: {error}") from error
    fault = _fault(result, expected)
    if fault is not None:
        raise RuntimeError(f"{about}: the future must hold {_describe(expected)}, got {fault}")
    return result


def _completes(future: Future[torch.Tensor], timeout: float) -> bool:
    if future.done():
        return True
    # Future.wait takes no time limit.
    completed = threading.Event()
    future.add_done_callback(lambda _: completed.set())
    return completed.wait(timeout)


def _fault(result: object, expected: torch.Tensor) -> str | None:
    """What is wrong with a result, or None."""
    if not isinstance(result, torch.Tensor):
        return _describe(result)
    found = (result.shape, result.dtype, result.device, result.layout)
    if found != (expected.shape, expected.dtype, expected.device, expected.layout):
        return _describe(result)
    if result.layout is not torch.strided:
        return None
    if not result.is_contiguous():
        return f"{_describe(result)} that is not contiguous: stride {result.stride()}"
    if result.storage_offset() != 0:
        # Correct here, but torch takes views of the storage from its start and gets other gradients.
        return f"{_describe(result)} that starts at element {result.storage_offset()} of its storage, not at 0"
    return None


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        layout = "" if value.layout is torch.strided else f", {value.layout}"
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype} on {value.device}{layout}"
    if value is None:
        return "None"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
