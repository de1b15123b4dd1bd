"""The mean over the ranks, and how far a result is from it."""

import numpy as np
import numpy.typing as npt

from .nonfinite import by_rank, classify, ieee_mean_class
from .rounding import Float64Array, FloatArray, two_sum


def mean(x: FloatArray) -> Float64Array:
    """Takes the mean over the ranks, for float64 inputs as well in more precision than the inputs have.

    Args:
        x: Shape ``(W, n)``: row i is what rank i holds.

    Returns:
        Float64, shape ``(n,)``: the mean, off by at most 2^-52 of itself plus 2^-80 of the mean of magnitudes.
        Columns with an infinity or NaN get what IEEE arithmetic makes of their sum.

    Example:
        >>> mean(np.array([[1.0, 1e300], [2.0, 1.0], [6.0, -1e300]])).tolist()
        [3.0, 0.3333333333333333]
    """
    ranks = by_rank(x)
    finite = np.isfinite(ranks).all(axis=0)
    high, low, exponent = _scaled_sum(np.where(finite, ranks, 0.0))
    first_guess = high / len(ranks)
    corrected = first_guess - _scaled_difference(first_guess, high, low, len(ranks))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(finite, np.ldexp(corrected, exponent), ranks.sum(axis=0))


def deviation(found: FloatArray, x: FloatArray) -> Float64Array:
    """Measures how far a result is from the mean, |found - mean|.

    The mean itself is never rounded, so the figure is good to 2^-40 even where it is far below the last bit of
    ``found``.

    Args:
        found: Shape ``(n,)``: a hook's result.
        x: Shape ``(W, n)``: row i is what rank i holds.

    Returns:
        Float64, shape ``(n,)``, never NaN. Where ``found`` or the mean is not finite it is 0 if both are the same
        infinity or both NaN, and infinite otherwise; so it is where ``found`` is above 2^500 times the largest input.

    Example:
        >>> deviation(np.array([0.25, np.inf]), np.array([[0.0, np.inf], [1.0, 1.0]])).tolist()
        [0.25, 0.0]
    """
    ranks = by_rank(x)
    result = np.asarray(found, dtype=np.float64)
    finite = np.isfinite(ranks).all(axis=0) & np.isfinite(result)
    high, low, exponent = _scaled_sum(np.where(finite, ranks, 0.0))
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.ldexp(np.where(finite, result, 0.0), -exponent)
        # The products below would overflow.
        comparable = np.abs(scaled) < 2.0**500
        difference = _scaled_difference(np.where(comparable, scaled, 0.0), high, low, len(ranks))
        measured = np.where(comparable, np.ldexp(np.abs(difference), exponent), np.inf)
    same = classify(result) == ieee_mean_class(x)
    return np.where(finite, measured, np.where(same & ~np.isfinite(result), 0.0, np.inf))


def _scaled_sum(ranks: Float64Array) -> tuple[Float64Array, Float64Array, npt.NDArray[np.int32]]:
    """Sums over the ranks in twice float64's precision: high + low, times 2 to the exponent (so nothing overflows)."""
    _, exponent = np.frexp(np.abs(ranks).max(axis=0))
    rows, low = np.ldexp(ranks, -exponent), np.zeros(ranks.shape[1])
    while len(rows) > 1:
        half = len(rows) // 2
        sums, errors = two_sum(rows[:half], rows[half : 2 * half])
        rows, low = np.concatenate([sums, rows[2 * half :]]), low + errors.sum(axis=0)
    high, error = two_sum(rows[0], low)
    return high, error, exponent


def _scaled_difference(found: Float64Array, high: Float64Array, low: Float64Array, world_size: int) -> Float64Array:
    """Computes found - (high + low) / W. Cutting ``found`` into two halves makes both products with W exact."""
    upper_half = (found.view(np.int64) & ~np.int64(0x7FF_FFFF)).view(np.float64)
    lower_half = found - upper_half
    difference, error = two_sum(upper_half * world_size, -high)
    difference, second_error = two_sum(difference, lower_half * world_size)
    return (difference + ((error + second_error) - low)) / world_size
