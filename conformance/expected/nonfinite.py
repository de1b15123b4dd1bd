"""What a mean has to be where infinities and NaN are among the inputs.

The classes are words, "finite", "+inf", "-inf" and "nan", so that they read well in a failure message.
"""

import numpy as np
import numpy.typing as npt

from .rounding import Float64Array, FloatArray, round_to

MAX_WORLD_SIZE = 4096
"""The proofs need (1 + u_wide)^(W + 1) <= 1 + u; the pair of float16 and float32 allows this many ranks."""


def classify(found: FloatArray) -> npt.NDArray[np.str_]:
    """Names each element "finite", "+inf", "-inf" or "nan"; same shape."""
    values = np.asarray(found, dtype=np.float64)
    return np.select([np.isnan(values), values == np.inf, values == -np.inf], ["nan", "+inf", "-inf"], "finite")


def ieee_mean_class(x: FloatArray) -> npt.NDArray[np.str_]:
    """Says what the mean has to be, element by element, when some rank holds an infinity or NaN.

    A NaN on any rank makes it NaN, and so do infinities of both signs; infinities of one sign make it that infinity.

    Args:
        x: Shape ``(W, n)``: row i is what rank i holds.

    Returns:
        Shape ``(n,)``: "finite", "+inf", "-inf" or "nan".

    Example:
        >>> ieee_mean_class(np.array([[np.inf, np.inf, 1.0], [2.0, -np.inf, 2.0]])).tolist()
        ['+inf', 'nan', 'finite']
    """
    ranks = by_rank(x)
    plus, minus = (ranks == np.inf).any(axis=0), (ranks == -np.inf).any(axis=0)
    is_nan = np.isnan(ranks).any(axis=0) | (plus & minus)
    return np.select([is_nan, plus, minus], ["nan", "+inf", "-inf"], "finite")


def compressed_mean_class(x: FloatArray, wire: str) -> npt.NDArray[np.str_]:
    """Says the same as `ieee_mean_class` for a compressing hook: a value beyond the wire type's range is infinite.

    Example:
        >>> compressed_mean_class(np.array([[70000.0], [1.0]]), "float16").tolist()
        ['+inf']
    """
    return ieee_mean_class(round_to(by_rank(x), wire))


def by_rank(x: FloatArray) -> Float64Array:
    ranks = np.asarray(x, dtype=np.float64)
    if ranks.ndim != 2 or not 1 <= len(ranks) <= MAX_WORLD_SIZE:
        raise ValueError(f"x has shape {ranks.shape}: expected (W, n), one row per rank, 1 <= W <= {MAX_WORLD_SIZE}")
    return ranks
