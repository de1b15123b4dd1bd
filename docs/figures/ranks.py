"""Ranks that run hooks for the figures: the same worlds and programs that the checks use."""

from __future__ import annotations

import atexit
import contextlib
import functools
from collections.abc import Iterator

from commhooks.conformance.world import Implementation, Launcher, RankSettings, World

WORLD_SIZE = 2


@contextlib.contextmanager
def of(text: str) -> Iterator[Implementation]:
    """An implementation whose ranks end with the context; ``text`` is that of ``--impl``."""
    launcher = Launcher()
    try:
        implementation = Implementation(text, RankSettings(timeout=60.0), launcher)
        obstacle = implementation.obstacle(WORLD_SIZE)
        if obstacle is not None:
            raise RuntimeError(f"the figures need ranks: {obstacle}")
        yield implementation
        implementation.close()
    finally:
        launcher.close()


@functools.cache
def _reference() -> Implementation:
    """The reference, for all figures of a process: its ranks end with the process."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(of("reference"))


def world(backend: str | None = None) -> World:
    """Two ranks of the reference; with the backend "lab" they meet in the laboratory, which notes what is sent."""
    return _reference().world(WORLD_SIZE, backend)
