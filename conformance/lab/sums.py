"""Reductions over the ranks in a chosen order and precision: pure functions on lists of tensors.

All ranks have the same inputs and options, so all get the same bits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_COMBINE: dict[str, Combine] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
OPERATIONS = tuple(_COMBINE)
_ACCUMULATOR = {"float32": torch.float32, "float64": torch.float64}


def reduce(
    inputs: Sequence[torch.Tensor],
    operation: str = "sum",
    summation: str = "rank",
    precision: str = "own",
    seed: str = "",
) -> torch.Tensor:
    """Reduces one tensor of each rank to a new tensor.

    Args:
        inputs: Flat tensors of one dtype and length, in the order of the ranks. They are not changed.
        operation: "sum", "avg", "product", "min", "max", "band", "bor" or "bxor".
        summation: A name of ``options.SUMMATIONS``.
        precision: A name of ``options.PRECISIONS``. Integers are always added in their own type.
        seed: Decides the tree when ``summation`` is "tree".

    Raises:
        ValueError: The operation is unknown.

    Example:
        >>> big = [torch.tensor([value]) for value in (1e8, -1e8, 1.0)]
        >>> reduce(big, summation="rank").item(), reduce(big, summation="reversed").item()
        (1.0, 0.0)
    """
    if operation not in _COMBINE:
        raise ValueError(f"the laboratory cannot reduce with {operation}; it knows {', '.join(_COMBINE)}")
    dtype = inputs[0].dtype
    terms = [_widened(term, precision) for term in inputs]
    total = _ring(terms, _COMBINE[operation]) if summation == "ring" else None
    if total is None:
        total = _in_order(terms, _COMBINE[operation], summation, seed)
    if operation == "avg":
        total = total / len(inputs) if dtype.is_floating_point or dtype.is_complex else total // len(inputs)
    return rounded(total, dtype)


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounds to nearest even, once; always a new tensor.

    torch casts float64 to a half type by way of float32, which rounds twice. Here the step to float32 rounds to odd,
    which keeps what the second rounding has to know.
    """
    if values.dtype == torch.float64 and dtype in (torch.float16, torch.bfloat16):
        return torch.from_numpy(_rounded_to_odd(values.numpy())).to(dtype)
    return values.to(dtype, copy=True)


def _rounded_to_odd(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    with np.errstate(over="ignore", under="ignore"):
        nearest = values.astype(np.float32)
    inexact = (nearest.astype(np.float64) != values) & ~np.isnan(values)
    bits = nearest.view(np.int32)
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(inexact, (bits - (inexact & too_far)) | 1, bits).astype(np.int32).view(np.float32)


def _widened(values: torch.Tensor, precision: str) -> torch.Tensor:
    if precision not in _ACCUMULATOR or not (values.dtype.is_floating_point or values.dtype.is_complex):
        return values
    return values.to(torch.promote_types(values.dtype, _ACCUMULATOR[precision]))


def _in_order(terms: list[torch.Tensor], combine: Combine, summation: str, seed: str) -> torch.Tensor:
    terms = terms[::-1] if summation == "reversed" else list(terms)
    draw = random.Random(seed)
    while len(terms) > 1:
        if summation == "tree":
            first, second = sorted(draw.sample(range(len(terms)), 2))
            other = terms.pop(second)
            terms[first] = combine(terms[first], other)
        elif summation == "pairwise":
            pairs = [terms[place : place + 2] for place in range(0, len(terms), 2)]
            terms = [combine(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        else:
            terms = [combine(terms[0], terms[1]), *terms[2:]]
    return terms[0]


def _ring(terms: list[torch.Tensor], combine: Combine) -> torch.Tensor:
    """As a ring allreduce does: the sum of chunk c goes round from rank c + 1 and ends at rank c."""
    size = len(terms)
    chunks = [term.tensor_split(size) for term in terms]
    sums = []
    for chunk in range(size):
        round_trip = [chunks[(chunk + step) % size][chunk] for step in range(1, size + 1)]
        sums.append(_in_order(round_trip, combine, "rank", ""))
    return torch.cat(sums)
