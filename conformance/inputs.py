"""Gradients to check with: the same in every run, and short enough to be written down in a script.

Every input has the shape ``(W, n)``: one flat buffer for each rank, in the numpy type that carries the dtype (float32
for bfloat16). Long buffers repeat a pattern of ``PERIOD`` numbers; it is prime, so the repetition falls on no chunk of
a reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from commhooks.conformance.expected import FloatArray, float_type, round_to

PERIOD = 509
LENGTHS = (1, 2, 7, 511, 512, 513)
# One beyond 2**16, and one beyond 2**20: where an index, a chunk or a message may end.
LONG_LENGTHS = (65_537, 1_048_583)


def carried(values: FloatArray, dtype: str) -> FloatArray:
    """Rounds values to a dtype and gives them in the numpy type that carries it."""
    return round_to(values, dtype).astype(float_type(dtype).carrier)


def spread(world_size: int, length: int, dtype: str, seed: int = 0, reach: int | None = None) -> FloatArray:
    """Normal numbers of many magnitudes, different on every rank, whose mean is far from both ends of the range.

    The magnitudes go from ``2**-reach`` to ``2**reach``, by default over half of the significant bits, so that a sum
    has something to round.
    """
    kind = float_type(dtype)
    generator = np.random.default_rng([seed, world_size, kind.significant_bits])
    shape = (world_size, min(length, PERIOD))
    reach = kind.significant_bits // 2 if reach is None else reach
    values = generator.standard_normal(shape) * 2.0 ** generator.integers(-reach, reach, shape)
    return carried(np.stack([np.resize(row, length) for row in values]), dtype)


def cancelling(world_size: int, length: int, dtype: str) -> FloatArray:
    """Numbers that almost cancel over the ranks, where a relative error would be large but the bound is not."""
    values = spread(world_size, length, dtype, seed=1).astype(np.float64)
    values[-1] -= values[:-1].sum(0) + values[-1] * 0.5
    return carried(values, dtype)


def integers(world_size: int, length: int, dtype: str) -> FloatArray:
    """Multiples of the world size whose mean is exact in every dtype and order: any error is a real one."""
    place = np.arange(length, dtype=np.float64)[None, :]
    rank = np.arange(world_size, dtype=np.float64)[:, None]
    return carried(((place + 3 * rank) % 7 - 3) * world_size, dtype)


def subnormals(world_size: int, length: int, dtype: str) -> FloatArray:
    """Numbers around the smallest normal one and below, down to the smallest of all."""
    kind = float_type(dtype)
    generator = np.random.default_rng([2, world_size])
    shape = (world_size, length)
    exponents = generator.integers(-kind.significant_bits - 1, 3, shape)
    return carried(generator.choice([-1.0, 1.0], shape) * kind.smallest_normal * 2.0**exponents, dtype)


def below_maximum(world_size: int, length: int, dtype: str) -> FloatArray:
    """Numbers so large that their sum just stays in range, on every rank alike in sign."""
    kind = float_type(dtype)
    generator = np.random.default_rng([3, world_size])
    return carried(kind.largest / world_size * generator.uniform(0.5, 0.98, (world_size, length)), dtype)


def alike(world_size: int, length: int, dtype: str) -> FloatArray:
    """The same numbers on every rank, so that nothing cancels and sums become as large as they can."""
    (row,) = spread(1, length, dtype, seed=4, reach=1)
    return carried(np.stack([row] * world_size), dtype)


def zeros(world_size: int, length: int, dtype: str) -> FloatArray:
    """Zeros on every rank."""
    return carried(np.zeros((world_size, length)), dtype)


def by_name(name: str, world_size: int, length: int, dtype: str) -> FloatArray:
    """The input with that name, such as "cancelling"."""
    makers: dict[str, Callable[[int, int, str], FloatArray]] = {
        maker.__name__: maker for maker in (spread, cancelling, integers, subnormals, below_maximum, alike, zeros)
    }
    return makers[name](world_size, length, dtype)


def numel(shapes: Sequence[Sequence[int]]) -> int:
    """Number of elements of parameters with these shapes."""
    return sum(math.prod(shape) for shape in shapes)
