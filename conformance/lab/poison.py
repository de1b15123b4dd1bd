"""Fills tensors whose collective has not completed, so that whoever reads them early gets NaN and not luck.

The NaNs are signalling ones: arithmetic on them, which keeps them NaN, clears the signalling bit. So a tensor that was
computed on while in flight is told apart from one that was left alone. Integers get a pattern that no gradient has.
"""

from __future__ import annotations

import torch

_AS_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PATTERN: dict[torch.dtype, int] = {
    torch.float16: 0x7DA5,
    torch.bfloat16: 0x7FA5,
    torch.float32: 0x7FA5A5A5,
    torch.float64: 0x7FF5A5A5A5A5A5A5,
    torch.bool: 1,
}
_INTEGER_PATTERN = {1: 0x5A, 2: 0x5AA5, 4: 0x5AA5A5A5, 8: 0x5AA5A5A5A5A5A5A5}


def fill(tensor: torch.Tensor) -> None:
    """Overwrites every element."""
    bits, pattern = _bits(tensor)
    bits.fill_(pattern)


def untouched(tensor: torch.Tensor) -> bool:
    """Whether every element still has the bits that ``fill`` gave it."""
    bits, pattern = _bits(tensor)
    return bool((bits == pattern).all())


def _bits(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    values = torch.view_as_real(tensor.data) if tensor.is_complex() else tensor.data
    size = values.element_size()
    return values.view(_AS_INTEGER[size]), _PATTERN.get(values.dtype, _INTEGER_PATTERN[size])


def same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and size have the same bits, NaNs included."""
    bits, _ = _bits(tensor)
    others, _ = _bits(other)
    return bool((bits.reshape(-1) == others.reshape(-1)).all())
