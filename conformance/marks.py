"""What a check says about itself: its clauses, what it needs, and over what it runs.

The plugin runs a check once for each implementation and, where the check takes them as arguments, each world size
(``world``), dtype (``dtype``), hook (``hook``), and half type (``half``). Texts here may name the half type in use:
``{half.prefix}-MEAN``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pytest

Check = TypeVar("Check", bound=Callable[..., None])


@dataclass(frozen=True)
class Half:
    """A half-precision type that gradients are compressed to, and the names that go with it."""

    dtype: str
    prefix: str
    hook: str
    wrapper: str

    def __str__(self) -> str:
        return self.dtype


HALVES = (
    Half("float16", "FP16", "fp16_compress_hook", "fp16_compress_wrapper"),
    Half("bfloat16", "BF16", "bf16_compress_hook", "bf16_compress_wrapper"),
)


def clauses(*ids: str) -> Callable[[Check], Check]:
    """Names the clauses that a check verifies."""
    return pytest.mark.clauses(*ids)


def needs(*capabilities: str) -> Callable[[Check], Check]:
    """Names what an implementation must offer; without it the check's cells are unsupported."""
    return pytest.mark.needs(*capabilities)


def dtypes(*names: str) -> Callable[[Check], Check]:
    """Runs a check with these dtypes only; without it a check that takes ``dtype`` runs with all four."""
    return pytest.mark.dtypes(*names)


def worlds(at_least: int = 1, at_most: int | None = None, searched: int | None = None) -> Callable[[Check], Check]:
    """Runs a check in worlds of these sizes only, where it has something to say; with --search up to ``searched``."""
    return pytest.mark.worlds(at_least, at_most, searched)


def claims(*names: str) -> Callable[[Check], Check]:
    """Runs a check only with hooks that claim one of these of themselves: "mean", "sum", "lossy" or "pickle"."""
    return pytest.mark.claims(*names)


def unless(name: str) -> Callable[[Check], Check]:
    """Leaves out hooks that say this of themselves: "local" or "random"."""
    return pytest.mark.unless(name)


def denied(what: str) -> Callable[[Check], Check]:
    """Runs a check only with what an implementation does not offer: "dtype" (each such dtype) or a capability."""
    return pytest.mark.denied(what)


def one_hook(check: Check) -> Check:
    """Runs a check only with a single user-written hook."""
    marked: Check = pytest.mark.one_hook(check)
    return marked


def every_hook(check: Check) -> Check:
    """Runs a check with every hook the implementation offers; a single user-written hook gets these checks only."""
    marked: Check = pytest.mark.every_hook(check)
    return marked


def stateful(check: Check) -> Check:
    """Runs a check of every hook with the PowerSGD hooks too, whose state starts to compress at the third step."""
    marked: Check = pytest.mark.stateful(check)
    return marked


MARKS = {
    "clauses(*ids)": clauses.__doc__,
    "needs(*capabilities)": needs.__doc__,
    "dtypes(*names)": dtypes.__doc__,
    "worlds(at_least, at_most, searched)": worlds.__doc__,
    "claims(*names)": claims.__doc__,
    "unless(name)": unless.__doc__,
    "denied(what)": denied.__doc__,
    "one_hook": one_hook.__doc__,
    "every_hook": every_hook.__doc__,
    "stateful": stateful.__doc__,
}
