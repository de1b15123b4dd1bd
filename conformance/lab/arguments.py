"""Reads the arguments of a process group's methods, in the long form and in the short ones that people also use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from .transport import REDUCE_OPS

Tensors = torch.Tensor | Sequence[torch.Tensor]


def listed(tensors: Tensors) -> Sequence[torch.Tensor]:
    """One tensor, or several, as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def first(tensors: Sequence[Tensors]) -> Sequence[torch.Tensor]:
    """The inner list of a list of one list; or the list itself, which short forms of the calls give."""
    return tensors[0] if len(tensors) and not isinstance(tensors[0], torch.Tensor) else tensors  # type: ignore[return-value]


def elements_in(tensors: Sequence[torch.Tensor]) -> int:
    """The number of elements of all tensors."""
    return sum(tensor.numel() for tensor in tensors)


def root_of(opts: object) -> int:
    """The root in the group, out of the options or given as such."""
    return opts if isinstance(opts, int) else int(getattr(opts, "rootRank", 0))


def reduction_of(opts: object) -> str:
    """The name of the reduction, out of the options or given as such."""
    found = getattr(opts, "reduceOp", opts)
    if found is None:
        return "sum"
    names = [name for name in REDUCE_OPS if name and found == getattr(dist.ReduceOp, name.upper())]
    return names[0] if names else str(found)


def split_as(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Cuts a flat tensor into parts of as many elements as the tensors have."""
    return torch.split(flat, [tensor.numel() for tensor in tensors])
