"""Ranks in the laboratory, for its own tests."""

from __future__ import annotations

import functools
from datetime import timedelta

import torch.distributed as dist
from ranks import on_ranks as on_ranks_of_a_group
from ranks import values

from commhooks.conformance import lab

__all__ = ["on_ranks", "values"]


def _start(rank: int, world: int, store: dist.Store) -> None:
    lab.init(rank, world, store, timeout=timedelta(seconds=8))


on_ranks = functools.partial(on_ranks_of_a_group, start=_start, seconds=15.0)
