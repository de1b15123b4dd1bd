"""Notes which collective a rank starts, so that a rank that waits for ever can be told apart from one that computes.

torch's functions are replaced by ones that note the call and pass it on unchanged. It has to happen before the
implementation is imported, because ``from torch.distributed import all_reduce`` binds the function of that moment. A
hook that calls the methods of a process group object goes unnoticed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "gather",
    "irecv",
    "isend",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)

_note: Callable[[str], None] = lambda text: None  # noqa: E731
_watched: list[str] | None = None


def install() -> None:
    """Replaces the functions of torch.distributed; they note nothing until ``send_notes_to`` is called."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    for name in COLLECTIVES:
        original = getattr(distributed_c10d, name, None)
        if original is None or hasattr(original, "__commhooks_noted__"):
            continue
        noted = _noted(name, original)
        setattr(distributed_c10d, name, noted)
        setattr(dist, name, noted)


def send_notes_to(note: Callable[[str], None]) -> None:
    """Chooses who gets a line of text, such as ``all_reduce float16[512]``, when a collective starts."""
    global _note
    _note = note


def watch() -> list[str]:
    """A new list, to which the same lines are added from now on. The list of an earlier call gets no more."""
    global _watched
    _watched = []
    return _watched


def _noted(name: str, original: Callable[..., Result]) -> Callable[..., Result]:
    @functools.wraps(original)
    def collective(*args: object, **kwargs: object) -> Result:
        text = f"{name} {_payload([*args, *kwargs.values()])}".rstrip()
        _note(text)
        if _watched is not None:
            _watched.append(text)
        return original(*args, **kwargs)

    collective.__commhooks_noted__ = True  # type: ignore[attr-defined]
    return collective


def _payload(arguments: list[object]) -> str:
    """The first tensor among the arguments, or in a list among them, as ``dtype[shape]``."""
    import torch

    for argument in arguments:
        first = argument[0] if isinstance(argument, list) and argument else argument
        if isinstance(first, torch.Tensor):
            shape = ",".join(map(str, first.shape))
            return f"{str(first.dtype).removeprefix('torch.')}[{shape}]"
    return ""
